# SPDX-License-Identifier: Apache-2.0
"""A benchmark run as one HTML page that needs no network, now or later."""

from __future__ import annotations

from typing import Any

from rackwell import page
from rackwell.bench.report import figures
from rackwell.bench.report.figures import Figure, matching
from rackwell.bench.result import BenchPoint, BenchResult
from rackwell.page import scales
from rackwell.page.scales import milliseconds, number, ratio

__all__ = ["render"]


def render(result: BenchResult, previous: BenchResult | None = None) -> str:
    """The page.

    Args:
        result: the run. previous: an earlier run of the same load to hold it against, usually of another release.
    """
    filters = {"ms": milliseconds, "streams": scales.count}
    return page.render(__name__, _view(result, previous), filters, figures.thinned(result).as_json())


def _view(result: BenchResult, previous: BenchResult | None) -> dict[str, Any]:
    """What the template shows, in its order."""
    usable = [point for point in result.points if point.valid]
    earlier = matching(usable, previous)
    best = result.best
    was = earlier[usable.index(best)] if best else None
    return {
        "result": result,
        "points": result.points,
        "rejected": [point for point in result.points if not point.valid],
        "best": best,
        "when": page.when(result.date_utc),
        "tiles": _tiles(best, was) if best else [],
        "rows": [
            _row(point, dict(zip([p.concurrency for p in usable], earlier, strict=True))) for point in result.points
        ],
        "figures": _figures(usable, earlier),
        "windows": [figure for figure in map(figures.window, usable) if figure],
        "shown": f"window-{best.concurrency}" if best else "",
        "previous": previous if any(earlier) else None,
        "previous_when": page.when(previous.date_utc) if previous else "",
        "load": _load(result.points),
        "remarks": _remarks(result.points),
        "command": " ".join(result.points[0].command) if result.points else "",
    }


def _figures(points: list[BenchPoint], earlier: list[BenchPoint | None]) -> list[Figure]:
    if not points:
        return []
    found: list[Figure | None] = [
        figures.throughput(points, earlier),
        figures.energy(points, earlier),
        figures.latency(
            "ttft",
            "Time to first token",
            "From sending a request to its first token, waiting in the server's queue included. Tinted: p50 to p99.",
            points,
            lambda p: p.latency.ttft_ms,
        ),
        figures.latency(
            "itl",
            "Time between tokens",
            "Gap between two chunks of an answer; a chunk may hold several tokens. Tinted: p50 to p99.",
            points,
            lambda p: p.latency.itl_ms,
        ),
    ]
    return [figure for figure in found if figure]


def _tiles(best: BenchPoint, was: BenchPoint | None) -> list[dict[str, str]]:
    """The run at a glance: its best point, against the earlier run at the same load."""
    rate, old = best.throughput, was.throughput if was else None
    seen = best.telemetry
    ttft, itl = best.latency.ttft_ms, best.latency.itl_ms
    tiles = [
        _tile(
            "Output", number(rate.output_tok_per_s if rate else None), "tok/s", _versus(rate, old, "output_tok_per_s")
        ),
        _tile(
            "Prompt and output",
            number(rate.total_tok_per_s if rate else None),
            "tok/s",
            _versus(rate, old, "total_tok_per_s"),
        ),
        _tile(
            "First token",
            *_split(milliseconds(ttft.p50 if ttft else None)),
            f"p99 {milliseconds(ttft.p99)}" if ttft else "",
        ),
        _tile(
            "Between tokens",
            *_split(milliseconds(itl.p50 if itl else None)),
            f"p99 {milliseconds(itl.p99)}" if itl else "",
        ),
    ]
    if seen and seen.mean_power_w is not None:
        count = len(seen.gpus)
        tiles.append(
            _tile(
                "Power for each GPU",
                number(seen.mean_power_w / count),
                "W",
                f"{figures.share(seen.mean_power_w, seen.power_limit_w)} of the limit",
            )
        )
    if best.joules_per_output_token is not None:
        older = was.joules_per_output_token if was else None
        note = f"{ratio(best.joules_per_output_token, older)} of the earlier run" if older else "GPU boards only"
        tiles.append(_tile("Energy for a token", number(best.joules_per_output_token), "J", note))
    return tiles


def _tile(label: str, value: str, unit: str, note: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "unit": unit, "note": note}


def _split(text: str) -> tuple[str, str]:
    value, _space, unit = text.partition(" ")
    return value, unit


def _versus(new: Any, old: Any, key: str) -> str:
    return f"{ratio(getattr(new, key), getattr(old, key))} the earlier run" if new and old else ""


def _row(point: BenchPoint, earlier: dict[int, BenchPoint | None]) -> dict[str, Any]:
    """A line of the summary table."""
    was = earlier.get(point.concurrency)
    rate, seen, old = point.throughput, point.telemetry, was.throughput if was else None
    power, limit = (seen.mean_power_w, seen.power_limit_w) if seen else (None, None)
    return {
        "point": point,
        "requests": f"{point.requests.completed:,} / {point.requests.requested:,}"
        if point.requests
        else scales.UNKNOWN,
        "output": number(rate.output_tok_per_s if rate else None),
        "total": number(rate.total_tok_per_s if rate else None),
        "versus": ratio(rate.output_tok_per_s, old.output_tok_per_s) if rate and old else scales.UNKNOWN,
        "ttft": point.latency.ttft_ms,
        "itl": point.latency.itl_ms,
        "power": f"{number(power)} W" if power is not None else scales.UNKNOWN,
        "share": figures.share(power, limit),
        "use": f"{number(seen.mean_utilization_pct)} %"
        if seen and seen.mean_utilization_pct is not None
        else scales.UNKNOWN,
        "joules": number(point.joules_per_output_token),
    }


def _load(points: list[BenchPoint]) -> str:
    """The load in words, when it is the same at every point but for the streams."""
    kinds = {(p.input_tokens, p.output_tokens) for p in points}
    if len(kinds) != 1:
        return "differing loads"
    prompt, answer = kinds.pop()
    return f"{prompt:,} prompt and {answer:,} output tokens a request"


def _remarks(points: list[BenchPoint]) -> list[tuple[str, list[int]]]:
    """Each remark once, with the points it is about."""
    found: dict[str, list[int]] = {}
    for point in points:
        for remark in point.remarks:
            found.setdefault(remark, []).append(point.concurrency)
    return list(found.items())
