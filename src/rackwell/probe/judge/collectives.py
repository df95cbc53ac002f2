# SPDX-License-Identifier: Apache-2.0
"""The allreduce: does it return, is its sum right, is it as fast as the pairs allow?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.probe.expectation import ALLREDUCE_BYTES, ALLREDUCE_SHARE, TYPICAL
from rackwell.probe.findings import FLOOR, RULE, Finding, make
from rackwell.probe.judge.context import Context


def allreduce(context: Context) -> Iterator[Finding]:
    found = context.collectives
    state = found.get("state")
    where = f"{context.host}, {found.get('ranks') or '?'} ranks, NCCL {found.get('nccl_version') or 'unknown'}"
    if state == "hung":
        yield make("allreduce-hang", f"the allreduce {found.get('why') or 'did not return'}", where)
    elif state == "failed":
        yield make("allreduce-failed", f"the allreduce: {found.get('why') or found.get('detail')}", where)
    wrong = wrong_points(found)
    if wrong:
        point = wrong[0]
        numbers: dict[str, Any] = {
            "measured": float(point["wrong"]),
            "expected": 0.0,
            "unit": "elements",
            "basis": RULE,
        }
        what = f"the allreduce of {size(point['bytes'])} has {point['wrong']} wrong elements"
        yield make("allreduce-wrong", what, where, **numbers)
    yield from _slow(context, where)


def wrong_points(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Points whose sums are wrong, also those in place and of the other type."""
    points = [*(found.get("points") or ()), *([found["bfloat16"]] if found.get("bfloat16") else [])]
    flat = [{"bytes": p["bytes"], **part} for p in points for part in (p, p.get("inplace") or {}) if part]
    return [point for point in flat if point.get("wrong")]


def best(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The point with the most bus bandwidth, of those that are large enough for it."""
    large = [point for point in found.get("points") or () if point["bytes"] >= ALLREDUCE_BYTES and point.get("busbw")]
    return max(large, key=lambda point: float(point["busbw"])) if large else None


def floor(context: Context) -> float | None:
    """GB/s of bus bandwidth; None where nothing is known of the pairs."""
    rates = list(context.bottlenecks.capacity.values())
    if not rates:
        theories = [rate for pair in context.topology.pairs() if (rate := context.floors.theory(pair))]
        rates = [TYPICAL * rate for rate in theories]
    return ALLREDUCE_SHARE * min(rates) if rates else None


def _slow(context: Context, where: str) -> Iterator[Finding]:
    point, limit = best(context.collectives), floor(context)
    if not point or not limit:
        return
    again = best(context.repetition.get("collectives") or {})
    figure = max(float(point["busbw"]), float(again["busbw"]) if again else 0.0)
    if figure < limit:
        what = f"bus bandwidth of the allreduce is {figure:.1f} GB/s at {size(point['bytes'])}, floor {limit:.1f}"
        numbers: dict[str, Any] = {"measured": figure, "expected": round(limit, 2), "unit": "GB/s", "basis": FLOOR}
        yield make("allreduce-slow", what, where, **numbers)


def size(count: int) -> str:
    """``8 KiB``, ``256 MiB``."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
