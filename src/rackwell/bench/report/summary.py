# SPDX-License-Identifier: Apache-2.0
"""The run at a glance: tiles of its best load, a line for each load, and every figure of every point."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rackwell.bench.report import loads as of
from rackwell.bench.report.figure import share, unit
from rackwell.bench.report.loads import Load, Of
from rackwell.bench.result import BenchPoint
from rackwell.page.scales import UNKNOWN, milliseconds, number, ratio


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the summary. state: why there are no numbers. spread: of the output rate over the repeats."""

    streams: str
    counted: bool
    state: str
    answered: str
    output: str
    versus: str
    cells: list[str]
    spread: str


def summary(
    groups: Mapping[tuple[int, int], Sequence[Load]], matched: Mapping[tuple[int, int, int], Load | None]
) -> list[tuple[str, list[Row]]]:
    """A line for each load, under the title of its lengths."""
    return [
        (of.lengths(key) if len(groups) > 1 else "", [row(load, matched.get(load.key)) for load in group])
        for key, group in groups.items()
    ]


def row(load: Load, was: Load | None) -> Row:
    """The medians of the repeats that count."""
    output, old = load.middle(of.output), was.middle(of.output) if was else None
    span = load.span(of.output)
    return Row(
        f"{load.concurrency:,}",
        bool(load.valid),
        _state(load),
        _answered(load),
        number(output),
        ratio(output, old),
        [
            number(load.middle(of.steady)),
            number(load.middle(of.total)),
            *(
                milliseconds(load.middle(of.latency(name, quantile)))
                for name in ("ttft_ms", "itl_ms")
                for quantile in ("p50", "p99")
            ),
            unit(load.middle(of.gpu_power), "W"),
            share(load.middle(of.power_share), 100),
            unit(load.middle(of.busy), "%"),
            number(load.middle(of.joules)),
        ],
        f"{number(span[0])} to {number(span[1])}" if span else "",
    )


def _state(load: Load) -> str:
    lost = [point for point in load.points if not point.valid]
    if not lost:
        return ""
    if load.valid:
        return f"{len(load.valid)} of {len(load.points)} repeats count"
    return "does not count" if lost[0].status == "measured" else lost[0].status


def _answered(load: Load) -> str:
    asked = [point.requests for point in load.valid if point.requests]
    if not asked or not sum(each.requested for each in asked):
        return UNKNOWN
    return f"{sum(each.completed for each in asked):,} / {sum(each.requested for each in asked):,}"


def tiles(best: Load, was: Load | None) -> list[dict[str, str]]:
    """The run at a glance: its best load, against the earlier run at the same one."""
    span = best.span(of.output)
    note = _versus(best, was, of.output) or (f"{number(span[0])} to {number(span[1])} in repeats" if span else "")
    found = [
        _tile("Output", number(best.middle(of.output)), "tok/s", note),
        _tile("Prompt and output", number(best.middle(of.total)), "tok/s", _versus(best, was, of.total)),
        _latency_tile("First token", best, "ttft_ms"),
        _latency_tile("Between tokens", best, "itl_ms"),
    ]
    power, limit = best.middle(of.gpu_power), best.middle(of.gpu_limit)
    if power is not None:
        told = f"{share(power, limit)} of the {number(limit)} W limit" if limit else "the limit was not read"
        found.append(_tile("Power of each GPU", number(power), "W", told))
    joules = best.middle(of.joules)
    if joules is not None:
        older = was.middle(of.joules) if was else None
        note = f"{ratio(joules, older)} of the earlier run" if older else "GPU boards only"
        found.append(_tile("Energy of a token", number(joules), "J", note))
    return [tile for tile in found if tile["value"] != UNKNOWN]


def _latency_tile(label: str, best: Load, name: str) -> dict[str, str]:
    value, _space, unit_ = milliseconds(best.middle(of.latency(name, "p50"))).partition(" ")
    p99 = best.middle(of.latency(name, "p99"))
    return _tile(label, value, unit_, f"median; p99 {milliseconds(p99)}" if p99 is not None else "")


def _tile(label: str, value: str, unit_: str, note: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "unit": unit_, "note": note}


def _versus(best: Load, was: Load | None, which: Of) -> str:
    new, old = best.middle(which), was.middle(which) if was else None
    return f"{ratio(new, old)} the earlier run" if new is not None and old else ""


def every_figure(points: Sequence[BenchPoint]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table that leaves nothing out, one line a point."""
    quantiles = ("mean", "p50", "p90", "p95", "p99")
    names = (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2e_ms"))
    head = ["Streams", "Prompt", "Answer", "Repeat", "Status", "Duration s", "Requests/s", "Output tok/s"]
    head += [
        "Steady tok/s",
        "Total tok/s",
        "Peak tok/s",
        *(f"{name} {q} ms" for name, _key in names for q in quantiles),
    ]
    head += ["W per GPU", "Limit W", "Busy %", "Energy kJ", "J per token"]
    rows = []
    for point in points:
        rate, seen = point.throughput, point.telemetry
        energy = seen.energy_j / 1000 if seen and seen.energy_j is not None else None
        cells: list[float | None] = [
            rate.duration_s if rate else None,
            rate.request_per_s if rate else None,
            of.output(point),
            of.steady(point),
            of.total(point),
            of.peak(point),
            *(of.latency(key, q)(point) for _name, key in names for q in quantiles),
            of.gpu_power(point),
            of.gpu_limit(point),
            of.busy(point),
            energy,
            of.joules(point),
        ]
        status = "valid" if point.valid else "does not count" if point.status == "measured" else point.status
        lead = [f"{point.concurrency:,}", f"{point.input_tokens:,}", f"{point.output_tokens:,}", str(point.repeat)]
        rows.append([*lead, status, *(number(cell) for cell in cells)])
    kept = [i for i in range(len(head)) if i < 5 or any(line[i] != UNKNOWN for line in rows)]
    return [head[i] for i in kept], [[line[i] for i in kept] for line in rows]
