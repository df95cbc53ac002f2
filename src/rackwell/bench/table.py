# SPDX-License-Identifier: Apache-2.0
"""A benchmark run as a table for the terminal, narrow enough to paste into a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackwell.bench.report.figures import share
from rackwell.bench.report.scales import UNKNOWN, milliseconds, number

if TYPE_CHECKING:
    from rich.table import Table

    from rackwell.bench.result import BenchPoint, BenchResult

HEAD = (
    "streams",
    "output tok/s",
    "total tok/s",
    "TTFT p50",
    "p99",
    "ITL p50",
    "p99",
    "W per GPU",
    "of limit",
    "J/token",
)


def row(point: BenchPoint) -> list[str]:
    """The cells of one point, in the order of :data:`HEAD`; what is not known is a dash."""
    rate, seen, late = point.throughput, point.telemetry, point.latency
    power = seen.mean_power_w if seen else None
    limit = seen.power_limit_w if seen else None
    return [
        f"{point.concurrency:,}",
        number(rate.output_tok_per_s if rate else None),
        number(rate.total_tok_per_s if rate else None),
        milliseconds(late.ttft_ms.p50 if late.ttft_ms else None),
        milliseconds(late.ttft_ms.p99 if late.ttft_ms else None),
        milliseconds(late.itl_ms.p50 if late.itl_ms else None),
        milliseconds(late.itl_ms.p99 if late.itl_ms else None),
        number(power / len(seen.gpus)) if seen and power is not None else UNKNOWN,
        share(power, limit),
        number(point.joules_per_output_token),
    ]


def table(result: BenchResult) -> Table:
    """The points of a run; below it, why a point does not count."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", caption_justify="left", caption_style="")
    for title in HEAD:
        grid.add_column(title, justify="right", no_wrap=True)
    for point in result.points:
        grid.add_row(*row(point), style="" if point.valid else "dim")
    rejected = [point for point in result.points if not point.valid]
    notes = Text()
    for point in rejected:
        what = "; ".join(reason.what for reason in point.reasons) or point.status
        notes.append(f"{point.concurrency:,} streams do not count: {what}\n", style="red")
    if rejected:
        grid.caption = notes
    return grid
