# SPDX-License-Identifier: Apache-2.0
"""Two runs against each other: per load a ratio with its interval, and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from rackwell.bench.attribution import Attribution
from rackwell.bench.result import BenchResult

Verdict = Literal["faster", "slower", "same", "higher", "lower", "inconclusive", "not-comparable"]
"""``higher`` and ``lower`` are said of power and energy, which are not speeds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One load and one metric.

    Attributes:
        load: input tokens, output tokens, concurrency.
        metric: such as ``output_tok_per_s``. title, unit: for people.
        baseline, candidate: geometric mean over the valid measurements of each side.
        ratio: candidate over baseline; low, high: its interval. All None when not comparable.
        why: what the verdict rests on, in one sentence.
    """

    load: tuple[int, int, int]
    metric: str
    title: str
    unit: str
    baseline: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    why: str
    measurements: tuple[int, int] = (0, 0)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**dataclasses.asdict(self), "load": load_dict(self.load), "measurements": list(self.measurements)}


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """A point that does not count, and why. ``side``: ``baseline`` or ``candidate``."""

    side: str
    run_id: str
    load: tuple[int, int, int]
    repeat: int
    reasons: list[str]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**dataclasses.asdict(self), "load": load_dict(self.load)}


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What `candidate` is against `baseline` (run ids).

    Attributes:
        rows: by load, then metric. only_baseline, only_candidate: loads that one side alone measured.
        notes: what limits the statement, in sentences.
    """

    baseline: list[str]
    candidate: list[str]
    rows: list[Row]
    rejected: list[Rejected]
    only_baseline: list[tuple[int, int, int]]
    only_candidate: list[tuple[int, int, int]]
    attribution: Attribution
    notes: list[str]
    min_effect: float
    noise: float
    confidence: float

    def row(self, load: tuple[int, int, int], metric: str) -> Row | None:
        """The row of a load and a metric."""
        return next((row for row in self.rows if row.load == load and row.metric == metric), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "baseline": self.baseline,
            "candidate": self.candidate,
            "min_effect": self.min_effect,
            "noise": self.noise,
            "confidence": self.confidence,
            "rows": [row.as_dict() for row in self.rows],
            "rejected": [point.as_dict() for point in self.rejected],
            "only_baseline": [load_dict(load) for load in self.only_baseline],
            "only_candidate": [load_dict(load) for load in self.only_candidate],
            "attribution": self.attribution.as_dict(),
            "notes": self.notes,
        }


def load_dict(load: tuple[int, int, int]) -> dict[str, int]:
    """A load by names."""
    return dict(zip(("input_tokens", "output_tokens", "concurrency"), load, strict=True))


def compare(
    a: BenchResult | Sequence[BenchResult],
    b: BenchResult | Sequence[BenchResult],
    metric: str | Sequence[str] | None = None,
) -> Comparison:
    """`b` against `a`; each a run, or several of the same thing.

    Args:
        metric: a name of :data:`rackwell.bench.compare_metrics.METRICS` or several; all that both sides have when None.
    """
    raise NotImplementedError
