# SPDX-License-Identifier: Apache-2.0
"""The variants of a matrix in order: each against the declared profile, and the declared profile against itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rackwell.bench.result import BenchResult
from rackwell.provision.matrices import Matrix, Step

METRIC = "output_tok_per_s"


@dataclasses.dataclass(frozen=True)
class Place:
    """A variant's place. ratio: of the metric to that of the declared profile, over all loads; low, high: its interval.

    All are None when the two have no load in common that counts.
    """

    variant: str
    state: str
    run: str | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best first. drift: the declared profile's last run against its first one; None while one is missing.

    notes: what limits the statement.
    """

    metric: str
    places: list[Place]
    drift: Place | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "metric": self.metric,
            "places": [place.as_dict() for place in self.places],
            "drift": self.drift.as_dict() if self.drift else None,
            "notes": list(self.notes),
        }


def rank(matrix: Matrix, runs: Mapping[int, BenchResult], metric: str = "") -> Ranking | None:
    """The variants by `metric`. None while the declared profile was not measured.

    Args:
        runs: number of the step -> its run.
    """
    baselines = [step for step in matrix.steps if step.change is None and step.number in runs]
    if not baselines:
        return None
    metric = metric or METRIC
    own = [runs[step.number] for step in baselines]
    drift = _against(own[:1], own[1], baselines[1], metric) if len(own) > 1 else None
    places = [
        _against(own, runs[step.number], step, metric)
        if step.number in runs and step.state == "measured"
        else Place(step.variant, step.state, step.run, why=_told(step))
        for step in matrix.steps
        if step.change is not None
    ]
    places.sort(key=lambda place: (place.ratio is None, -(place.ratio or 0)))
    return Ranking(metric, places, drift, tuple(_notes(drift, len(own))))


def _against(baseline: list[BenchResult], run: BenchResult, step: Step, metric: str) -> Place:
    from rackwell.bench.compare import compare

    found = compare(baseline, run, metric)
    overall = found.overall
    if overall is None:
        why = next((row.why for row in found.rows if row.why), "no load counts on both sides")
        return Place(step.variant, step.state, run.run_id, verdict="not-comparable", why=why)
    return Place(
        step.variant,
        step.state,
        run.run_id,
        overall.ratio,
        overall.low,
        overall.high,
        overall.verdict,
        overall.why,
    )


def _told(step: Step) -> str:
    """Why a variant has no run, in a line: what is known of such a failure, else what was told."""
    known = next((str(finding.get("title")) for finding in step.findings if finding.get("title")), "")
    what = step.problems[0]["what"] if step.problems else ""
    why = step.problems[0]["why"] if step.problems else ""
    return known or ": ".join(filter(None, (what, why)))


def _notes(drift: Place | None, baselines: int) -> list[str]:
    if baselines < 2:
        return ["The declared profile was measured once: how much it changes by itself is not known."]
    if drift is not None and drift.verdict in {"faster", "slower", "higher", "lower"} and drift.ratio is not None:
        percent = 100 * (drift.ratio - 1)
        note = f"The declared profile itself came out {percent:+.1f} % different at the end: the machine drifted."
        return [f"{note} A variant that differs by no more than that may owe it to the hour."]
    return []
