# SPDX-License-Identifier: Apache-2.0
"""Where the time of a decode step goes: what memory and allreduces need at least, against what was measured.

The floor is what one GPU must read from its memory at the full bandwidth, and the allreduces one after another.
Arithmetic, starting kernels, sampling and waiting for the CPU are not in it: they are the rest.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from rackwell.bench.result import BenchPoint, BenchResult
from rackwell.bench.steptime_facts import Facts, facts_of, step_of
from rackwell.bench.steptime_model import experts_touched, kv_bytes, weight_bytes
from rackwell.bench.steptime_text import assumptions, part_texts, statements, text
from rackwell.bench.steptime_types import Figure, Known, Load, Part, StepBudget

__all__ = ["Figure", "Known", "Part", "StepBudget", "explain", "explain_or_why", "text"]

ACTIVATION = 2
"""Bytes of a value that ranks exchange: bf16."""


def explain(result: BenchResult, sites: Sequence[Path] = ()) -> list[StepBudget] | None:
    """A budget for each load with a valid point, in order; None when it cannot be reckoned.

    Args:
        sites: directories whose ``models/`` and ``gpus/`` are looked into before the catalogue.
    """
    return explain_or_why(result, sites)[0]


def explain_or_why(result: BenchResult, sites: Sequence[Path] = ()) -> tuple[list[StepBudget] | None, str]:
    """The budgets, or None and why there are none."""
    facts, why = facts_of(result, sites)
    if facts is None:
        return None, why
    loads: dict[Load, list[BenchPoint]] = {}
    for point in result.points:
        if point.valid:
            loads.setdefault(point.load, []).append(point)
    found = [budget for load in sorted(loads) if (budget := _budget(load, loads[load], facts)) is not None]
    return (found, "") if found else (None, "no valid point tells how long a step took")


def _budget(load: Load, points: Sequence[BenchPoint], facts: Facts) -> StepBudget | None:
    steps = [one for point in points if (one := step_of(point, facts)) is not None]
    if not steps:
        return None
    batch = statistics.median(one.batch for one in steps)
    step = dataclasses.replace(steps[0].time, value=statistics.median(one.time.value or 0.0 for one in steps))
    step_ms = step.value or 0.0
    context = load[0] + load[1] / 2
    shape, ranks = facts.shape, facts.ranks
    bandwidth = (facts.bandwidth.value or 0.0) * 1e9
    weights_ms = weight_bytes(shape, batch, ranks) / bandwidth * 1e3
    kv_ms = kv_bytes(shape, batch, context, ranks, facts.kv_bytes, dense=facts.dense) / bandwidth * 1e3
    number = 2 * shape.layers if ranks > 1 else 0
    size = batch * shape.hidden * ACTIVATION
    latency = facts.allreduce(size) if number else Figure(None, "us", "unknown")
    reduce_ms = number * latency.value / 1e3 if latency.value is not None else None
    floor = weights_ms + kv_ms + (reduce_ms or 0.0)
    rest = step_ms - floor
    values = {"weights": weights_ms, "kv": kv_ms, "allreduce": reduce_ms, "rest": rest}
    limit = (step_ms - weights_ms - kv_ms) * 1e3 / number if number else None
    budget = StepBudget(
        load=load,
        batch=batch,
        step_ms=step,
        floor_ms=floor,
        floor_share=floor / step_ms,
        parts=[],
        allreduces=number,
        allreduce_bytes=size,
        allreduce_us=latency,
        allreduce_limit_us=limit if limit is None else max(limit, 0.0),
        experts_touched=experts_touched(shape, batch),
        statements=[],
        assumptions=[],
    )
    known: dict[str, Known] = {"allreduce": latency.known, "rest": "computed"}
    parts = [
        Part(
            name,
            title,
            values[name],
            None if (value := values[name]) is None else value / step_ms,
            known.get(name, "computed"),
            said,
        )
        for name, title, said in part_texts(budget, facts, context)
        if name != "allreduce" or number
    ]
    budget = dataclasses.replace(budget, parts=parts)
    return dataclasses.replace(
        budget, statements=statements(budget, facts, points), assumptions=assumptions(budget, facts, context)
    )
