# SPDX-License-Identifier: Apache-2.0
"""A gate's question: is what serves now slower than what served before? Pass, fail, or not to be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from rackwell.bench.compare_blocks import Load, Measurement, Unit, blocks, centres, loads, measurements, points, scores
from rackwell.bench.compare_metrics import NOISE, Metric, select
from rackwell.bench.compare_types import load_dict
from rackwell.bench.result import BenchResult
from rackwell.bench.statistics import REPLICATES, Block, Interval, interval

MIN_EFFECT = 0.05
"""The least loss that a gate is about."""
CONFIDENCE = 0.90
"""Two-sided: each bound by itself holds in 95 of 100."""
ALONE = 0.99
"""Of one load by itself, shared by all loads: there are several chances to be wrong."""

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadRatio:
    """One load: how good the candidate is there, and whether that alone makes it fail."""

    load: Load
    ratio: float
    low: float
    high: float
    failed: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**dataclasses.asdict(self), "load": load_dict(self.load)}


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict.

    Attributes:
        ratio, low, high: how good the candidate is against the baseline, over all loads; more is better also where the
            metric is a latency. None without a common valid load.
        why: what the verdict rests on, in one sentence. missing: loads that the candidate has no valid point of.
        drift: ratio of the baseline after the candidate to the one before it; None when there are not two.
        blocks: measurements a side.
    """

    verdict: Verdict
    ratio: float | None
    low: float | None
    high: float | None
    why: str
    metric: str
    min_effect: float
    noise: float
    loads: list[LoadRatio] = dataclasses.field(default_factory=list)
    missing: list[Load] = dataclasses.field(default_factory=list)
    drift: float | None = None
    blocks: tuple[int, int] = (0, 0)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **dataclasses.asdict(self),
            "loads": [load.as_dict() for load in self.loads],
            "missing": [load_dict(load) for load in self.missing],
            "blocks": list(self.blocks),
        }


def judge(
    baseline_runs: Sequence[BenchResult],
    candidate_runs: Sequence[BenchResult],
    min_effect: float = MIN_EFFECT,
    noise: float = NOISE,
    *,
    metric: str = "output_tok_per_s",
    unit: Unit = "repeat",
    replicates: int = REPLICATES,
) -> Judgement:
    """Whether the candidate may be promoted.

    pass: the loss is surely less than `min_effect`. fail: there surely is a loss, and it is `min_effect` or more, over
    all loads or at one alone; or the candidate's server died at a load that the baseline stood. Else inconclusive.
    Baseline runs from before and after the candidate (A/B/A) each count half, so that a steady drift cancels; when the
    two differ by themselves, the verdict must hold against each of them.

    Args:
        min_effect, noise: shares. unit: what varies as one; ``repeat`` asks about the server that serves now.

    Raises:
        RackwellError: there is no such metric (exit 2).
    """
    chosen = select(metric)[0]
    wanted = loads(baseline_runs, valid=True)
    common = [load for load in wanted if load in loads(candidate_runs, valid=True)]
    missing = [load for load in wanted if load not in common]
    rules = _Rules(chosen, min_effect, noise, unit, replicates)
    died = [load for load in missing if any(p.status == "crashed" for p in points(candidate_runs, load))]
    second = _signed(measurements(candidate_runs, chosen), chosen)
    groups = _around(baseline_runs, candidate_runs)
    first = [_signed(measurements(group, chosen), chosen) for group in groups]
    both = [load for load in common if all(any(m.load == load for m in side) for side in [*first, second])]
    if len(groups) == 2 and not both:
        groups, first = [baseline_runs], [[m for side in first for m in side]]
        both = [load for load in common if all(any(m.load == load for m in side) for side in [*first, second])]
    common = both
    if not common:
        if died:
            return rules.told("fail", None, _died(died), missing=missing)
        return rules.told("inconclusive", None, "there is no load that both measured validly", missing=missing)
    found = _over_all(first, second, common, rules)
    alone = [_alone(load, first, second, len(common), rules) for load in common]
    verdict, why = _verdict(found, alone, rules)
    drift = None
    if len(groups) == 2:
        apart = _over_all([first[0]], first[1], common, rules, ALONE)
        drift = apart.ratio
        if not apart.low <= 1 <= apart.high:
            each = {_verdict(_over_all([one], second, common, rules), alone, rules)[0] for one in first}
            if each != {verdict}:
                verdict = "inconclusive"
                why = f"the baseline itself changed by {drift - 1:+.1%} meanwhile, and the verdict hangs on that: {why}"
    if died:
        verdict, why = "fail", f"{_died(died)}; where both measured: {why}"
    elif missing and verdict == "pass":
        lost = ", ".join(_named(load) for load in missing)
        verdict, why = "inconclusive", f"no valid point at {lost}; where both measured: {why}"
    return rules.told(verdict, found, why, alone, missing, drift)


@dataclasses.dataclass(frozen=True, slots=True)
class _Rules:
    metric: Metric
    min_effect: float
    noise: float
    unit: Unit
    replicates: int

    def told(
        self,
        verdict: Verdict,
        found: Interval | None,
        why: str,
        alone: Sequence[LoadRatio] = (),
        missing: Sequence[Load] = (),
        drift: float | None = None,
    ) -> Judgement:
        return Judgement(
            verdict,
            found.ratio if found else None,
            found.low if found else None,
            found.high if found else None,
            why,
            self.metric.name,
            self.min_effect,
            self.noise,
            list(alone),
            list(missing),
            drift,
            found.blocks if found else (0, 0),
        )


def _verdict(found: Interval, alone: Sequence[LoadRatio], rules: _Rules) -> tuple[Verdict, str]:
    limit = 1 - rules.min_effect
    told = f"{found.ratio - 1:+.1%} ({found.low - 1:+.1%} to {found.high - 1:+.1%}, {CONFIDENCE:.0%} interval)"
    if found.high < 1 and found.ratio <= limit:
        return "fail", f"{told}: a loss, and not less than {rules.min_effect:.0%}"
    worst = min((load for load in alone if load.failed), key=lambda load: load.ratio, default=None)
    if worst:
        return "fail", f"{told} over all, but {worst.ratio - 1:+.1%} at {_named(worst.load)}"
    if found.low > limit:
        return "pass", f"{told}: no loss of {rules.min_effect:.0%}"
    needed = found.needed(rules.min_effect / 2)
    more = f"; about {needed} measurements a side would tell" if min(found.blocks) < needed else ""
    return "inconclusive", f"{told}: it may be a loss of {rules.min_effect:.0%} or none{more}"


def _over_all(
    one: Sequence[Sequence[Measurement]],
    two: Sequence[Measurement],
    common: Sequence[Load],
    rules: _Rules,
    confidence: float = CONFIDENCE,
) -> Interval:
    middle = centres([m for group in one for m in group], common)
    # noise of one measurement; that of a mean over loads is less, while what slows a whole run stays
    noise = rules.noise * rules.metric.noise / (len(common) ** 0.5 if rules.unit == "repeat" else 1)
    return _interval(
        [scores(group, middle, rules.unit) for group in one],
        [scores(two, middle, rules.unit)],
        noise,
        confidence,
        rules,
    )


def _alone(
    load: Load,
    one: Sequence[Sequence[Measurement]],
    two: Sequence[Measurement],
    number: int,
    rules: _Rules,
) -> LoadRatio:
    sides = [[blocks([m for m in group if m.load == load], rules.unit) for group in side] for side in (one, [two])]
    found = _interval(sides[0], sides[1], rules.noise * rules.metric.noise, 1 - (1 - ALONE) / number, rules)
    return LoadRatio(load, found.ratio, found.low, found.high, found.high < 1 and found.ratio <= 1 - rules.min_effect)


def _interval(
    one: Sequence[Sequence[Block]], two: Sequence[Sequence[Block]], noise: float, confidence: float, rules: _Rules
) -> Interval:
    return interval(one, two, noise=noise, confidence=confidence, replicates=rules.replicates)


def _signed(found: Sequence[Measurement], metric: Metric) -> list[Measurement]:
    """More is better."""
    if metric.better == "more":
        return list(found)
    return [dataclasses.replace(item, value=-item.value) for item in found]


def _around(baseline: Sequence[BenchResult], candidate: Sequence[BenchResult]) -> list[Sequence[BenchResult]]:
    """The baseline's runs from before and from after the candidate's, where there are both."""
    if not candidate:
        return [baseline]
    first = min(run.date_utc for run in candidate)
    before = [run for run in baseline if run.date_utc < first]
    after = [run for run in baseline if run.date_utc >= first]
    return [before, after] if before and after else [baseline]


def _died(died: Sequence[Load]) -> str:
    return f"the server died at {', '.join(map(_named, died))}"


def _named(load: Load) -> str:
    return f"{load[2]:,} streams ({load[0]:,} in, {load[1]:,} out)"
