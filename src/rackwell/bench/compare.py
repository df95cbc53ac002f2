# SPDX-License-Identifier: Apache-2.0
"""Two runs against each other: per load a ratio with its interval, and a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from rackwell.bench.attribution import attribute
from rackwell.bench.compare_blocks import Load, Measurement, blocks, centres, loads, measurements, points, scores
from rackwell.bench.compare_metrics import NOISE, Metric, select
from rackwell.bench.compare_text import percent
from rackwell.bench.compare_types import Comparison, Overall, Rejected, Row, Verdict
from rackwell.bench.result import BenchResult
from rackwell.bench.statistics import Interval, interval

__all__ = ["Comparison", "Overall", "Rejected", "Row", "Verdict", "compare", "judge_interval"]

MIN_EFFECT = 0.03
"""The least difference that counts as one."""
CONFIDENCE = 0.95
MANY = 50
"""Runs a side beyond which nobody is told to measure more often, but longer."""


def compare(
    a: BenchResult | Sequence[BenchResult],
    b: BenchResult | Sequence[BenchResult],
    metric: str | Sequence[str] | None = None,
    *,
    min_effect: float = MIN_EFFECT,
    noise: float = NOISE,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """`b` against `a`; each a run, or several runs of the same thing.

    Args:
        metric: a name of :data:`rackwell.bench.compare_metrics.METRICS`, the beginning of some, or several; all that
            a side has when None.
        min_effect: the least difference that counts, as a share. noise: declared standard deviation of a rate from
            run to run; it rules where there is one run a side.

    Raises:
        RackwellError: there is no such metric (exit 2).
    """
    one, two = _runs(a), _runs(b)
    metrics = select(metric)
    rules = _Rules(min_effect, noise, confidence)
    every = [set(loads(side, valid=False)) for side in (one, two)]
    rows: list[Row] = []
    measured = {m.name: (measurements(one, m), measurements(two, m)) for m in metrics}
    for load in sorted(every[0] & every[1]):
        idle = [name for name, side in (("baseline", one), ("candidate", two)) if load not in loads(side, valid=True)]
        if idle:
            why = f"no point of the {' or the '.join(idle)} counts at this load"
            rows.append(_incomparable(load, metrics[0], why))
            continue
        for m in metrics:
            row = _row(load, m, measured[m.name], one, two, rules)
            if row.verdict != "not-comparable" or row.why != _NEITHER or metric is not None:
                rows.append(row)
    return Comparison(
        baseline=[run.run_id for run in one],
        candidate=[run.run_id for run in two],
        rows=rows,
        rejected=[*_rejected("baseline", one), *_rejected("candidate", two)],
        only_baseline=sorted(every[0] - every[1]),
        only_candidate=sorted(every[1] - every[0]),
        attribution=attribute(one[0], two[0]),
        notes=list(_notes(one, two, noise)),
        min_effect=min_effect,
        noise=noise,
        confidence=confidence,
        overall=_overall(metrics[0], measured[metrics[0].name], rows, rules),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Rules:
    min_effect: float
    noise: float
    confidence: float


_NEITHER = "neither side has it"


def _runs(side: BenchResult | Sequence[BenchResult]) -> list[BenchResult]:
    runs = [side] if isinstance(side, BenchResult) else list(side)
    if not runs:
        raise ValueError("a side without a run")
    return runs


def _row(
    load: Load,
    metric: Metric,
    measured: tuple[Sequence[Measurement], Sequence[Measurement]],
    one: Sequence[BenchResult],
    two: Sequence[BenchResult],
    rules: _Rules,
) -> Row:
    sides = [[item for item in side if item.load == load] for side in measured]
    if not sides[0] and not sides[1]:
        return _incomparable(load, metric, _NEITHER)
    for name, side in zip(("the baseline", "the candidate"), sides, strict=True):
        if not side:
            return _incomparable(load, metric, f"{name} {metric.missing}")
    why = _chunks(load, metric, one, two)
    if why:
        return _incomparable(load, metric, why)
    grouped = [blocks(side, "run") for side in sides]
    found = interval([grouped[0]], [grouped[1]], noise=rules.noise * metric.noise, confidence=rules.confidence)
    verdict, why = judge_interval(metric, found, rules.min_effect, rules.confidence)
    values = [math.exp(sum(block.value for block in side) / len(side)) for side in grouped]
    return Row(
        load,
        metric.name,
        metric.title,
        metric.unit,
        values[0],
        values[1],
        found.ratio,
        found.low,
        found.high,
        verdict,
        why,
        (len(sides[0]), len(sides[1])),
    )


def judge_interval(metric: Metric, found: Interval, min_effect: float, confidence: float) -> tuple[Verdict, str]:
    """The verdict on a ratio, and what it rests on."""
    told = f"{found.ratio:.3g}x, {percent(confidence)} interval {found.low:.3g}x to {found.high:.3g}x"
    least = 1 + min_effect
    more, less = found.low > 1 and found.ratio >= least, found.high < 1 and found.ratio <= 1 / least
    if more or less:
        if not metric.speed:
            return ("higher" if more else "lower"), told
        return ("faster" if more == (metric.better == "more") else "slower"), told
    if found.low > 1 / least and found.high < least:
        return "same", f"{told}: inside the least effect of {percent(min_effect)}"
    needed = found.needed(min_effect)
    enough = ""
    if min(found.blocks) < needed:
        enough = (
            f"about {needed} runs a side would tell" if needed <= MANY else "its points differ too much: measure longer"
        )
    whole = "no difference" if found.low <= 1 <= found.high else f"less than the least effect of {percent(min_effect)}"
    reason = f"it may be {whole}; {enough}".removesuffix("; ")
    return "inconclusive", f"{told}: {reason}"


def _chunks(load: Load, metric: Metric, one: Sequence[BenchResult], two: Sequence[BenchResult]) -> str:
    """Why gaps between chunks cannot be compared: a chunk holds more tokens on one side than on the other."""
    if not metric.name.startswith("itl"):
        return ""
    held = []
    for side in (one, two):
        known = [
            p.tokens.output_received / p.tokens.output_chunks
            for p in points(side, load)
            if p.valid and p.tokens and p.tokens.output_chunks
        ]
        held.append(sum(known) / len(known) if known else None)
    if held[0] and held[1] and not 0.95 <= held[0] / held[1] <= 1.05:
        return f"a chunk holds {held[0]:.2f} tokens in one and {held[1]:.2f} in the other: compare tpot"
    return ""


def _overall(
    metric: Metric,
    measured: tuple[Sequence[Measurement], Sequence[Measurement]],
    rows: Sequence[Row],
    rules: _Rules,
) -> Overall | None:
    """Over all comparable loads, each counting the same."""
    wanted = [row.load for row in rows if row.metric == metric.name and row.ratio is not None]
    if not wanted:
        return None
    middle = centres(measured[0], wanted)
    sides = [scores(side, middle, "run") for side in measured]
    found = interval([sides[0]], [sides[1]], noise=rules.noise * metric.noise, confidence=rules.confidence)
    verdict, why = judge_interval(metric, found, rules.min_effect, rules.confidence)
    return Overall(metric.name, metric.title, found.ratio, found.low, found.high, verdict, why, len(wanted))


def _incomparable(load: Load, metric: Metric, why: str) -> Row:
    return Row(load, metric.name, metric.title, metric.unit, None, None, None, None, None, "not-comparable", why)


def _rejected(side: str, runs: Sequence[BenchResult]) -> Iterator[Rejected]:
    for run in runs:
        for point in run.points:
            if not point.valid:
                reasons = [f"{reason.what} [{reason.code}]" for reason in point.reasons] or [point.status]
                yield Rejected(side, run.run_id, point.load, point.repeat, reasons)


def _notes(one: Sequence[BenchResult], two: Sequence[BenchResult], noise: float) -> Iterator[str]:
    if len(one) == len(two) == 1:
        yield (
            f"one run a side: how much a run differs from the next of the same thing is not known here; taken as "
            f"{percent(noise)} (an assumption, --noise)"
        )
    elif len(one) == 1 or len(two) == 1:
        yield "one side is a single run: its spread is taken to be that of the other"
    for name, side in (("baseline", one), ("candidate", two)):
        for other in side[1:]:
            mixed = attribute(side[0], other)
            if mixed.changes:
                yield f"the runs of the {name} are not of the same thing: {mixed.text}"
        imported = sorted({run.origin.tool for run in side if run.origin})
        if imported:
            yield f"the {name} was measured by {', '.join(imported)}: its validity was not checked by rackwell"
        if any(not run.complete for run in side):
            yield f"a sweep of the {name} is not complete"
    clients = [{run.client.name for run in side} for side in (one, two)]
    if clients[0] != clients[1]:
        yield "the load generators differ: latencies may be defined differently"
