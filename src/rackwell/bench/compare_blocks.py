# SPDX-License-Identifier: Apache-2.0
"""From runs to the blocks that statistics draw: what counts, and what varies as one."""

from __future__ import annotations

import dataclasses
import math
import statistics as plain
from collections.abc import Sequence
from typing import Literal

from rackwell.bench.compare_metrics import Metric
from rackwell.bench.result import BenchPoint, BenchResult
from rackwell.bench.statistics import Block

Load = tuple[int, int, int]
Unit = Literal["run", "repeat"]
"""What varies as one. ``run``: is this thing faster than that one, whenever either is started? ``repeat``: is what
serves now slower than that? How one start differs from the next of the same thing is then no part of the question."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One valid point: logarithm of its value, and the variance of that as known from within the point."""

    run: str
    repeat: int
    load: Load
    value: float
    spread: float


def measurements(runs: Sequence[BenchResult], metric: Metric) -> list[Measurement]:
    """Of all valid points that have the metric."""
    found = []
    for run in runs:
        for point in run.points:
            value = metric.value(point) if point.valid else None
            if value is not None:
                spread = metric.spread(point)
                found.append(Measurement(run.run_id, point.repeat, point.load, math.log(value), spread))
    return found


def loads(runs: Sequence[BenchResult], *, valid: bool) -> list[Load]:
    """Loads that have a (valid) point, in order."""
    return sorted({point.load for run in runs for point in run.points if point.valid or not valid})


def points(runs: Sequence[BenchResult], load: Load) -> list[BenchPoint]:
    """Of one load, in all runs."""
    return [point for run in runs for point in run.points if point.load == load]


def blocks(found: Sequence[Measurement], unit: Unit) -> list[Block]:
    """Of one load: a block for each run, or for each repeat of each run."""
    groups: dict[tuple[str, int], list[Measurement]] = {}
    for item in found:
        groups.setdefault((item.run, item.repeat if unit == "repeat" else 0), []).append(item)
    return [_block(group) for group in groups.values()]


def _block(group: Sequence[Measurement]) -> Block:
    values = [item.value for item in group]
    inside = plain.fmean(item.spread for item in group)
    if len(group) > 1:
        inside = max(plain.variance(values), inside)
    return Block(plain.fmean(values), inside / len(group))


def scores(found: Sequence[Measurement], centres: dict[Load, float], unit: Unit) -> list[Block]:
    """Over all loads together: a block is the mean of what it has above the centre of each load.

    What slows all loads of a run at once (a warm day, another start) shows as spread of the blocks.
    """
    groups: dict[tuple[str, int], dict[Load, list[Measurement]]] = {}
    for item in found:
        if item.load in centres:
            by_load = groups.setdefault((item.run, item.repeat if unit == "repeat" else 0), {})
            by_load.setdefault(item.load, []).append(item)
    result = []
    for by_load in groups.values():
        parts = [(_block(group), centres[load]) for load, group in by_load.items()]
        value = plain.fmean(block.value - centre for block, centre in parts)
        result.append(Block(value, sum(block.spread for block, _ in parts) / len(parts) ** 2))
    return result


def centres(found: Sequence[Measurement], wanted: Sequence[Load]) -> dict[Load, float]:
    """Mean of each load."""
    return {load: plain.fmean(m.value for m in found if m.load == load) for load in wanted}
