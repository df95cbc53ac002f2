# SPDX-License-Identifier: Apache-2.0
"""What a comparison consists of."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rackwell.bench.attribution import Attribution
from rackwell.bench.compare_blocks import Load

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

    load: Load
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
    load: Load
    repeat: int
    reasons: list[str]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**dataclasses.asdict(self), "load": load_dict(self.load)}


@dataclasses.dataclass(frozen=True, slots=True)
class Overall:
    """All comparable loads together, each counting the same: geometric mean of the ratios of the first metric."""

    metric: str
    title: str
    ratio: float
    low: float
    high: float
    verdict: Verdict
    why: str
    loads: int


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
    only_baseline: list[Load]
    only_candidate: list[Load]
    attribution: Attribution
    notes: list[str]
    min_effect: float
    noise: float
    confidence: float
    overall: Overall | None = None

    def row(self, load: Load, metric: str) -> Row | None:
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
            "overall": dataclasses.asdict(self.overall) if self.overall else None,
            "rows": [row.as_dict() for row in self.rows],
            "rejected": [point.as_dict() for point in self.rejected],
            "only_baseline": [load_dict(load) for load in self.only_baseline],
            "only_candidate": [load_dict(load) for load in self.only_candidate],
            "attribution": self.attribution.as_dict(),
            "notes": self.notes,
        }


def load_dict(load: Load) -> dict[str, int]:
    """A load by names."""
    return dict(zip(("input_tokens", "output_tokens", "concurrency"), load, strict=True))
