# SPDX-License-Identifier: Apache-2.0
"""A benchmark run as a table for the terminal, narrow enough for 80 columns and to be pasted into a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackwell.bench.report.figure import share
from rackwell.page.scales import UNKNOWN, number

if TYPE_CHECKING:
    from rich.table import Table

    from rackwell.bench.result import BenchPoint, BenchResult

HEAD = (
    "streams",
    "output\ntok/s",
    "total\ntok/s",
    "TTFT ms\np50",
    "\np99",
    "ITL ms\np50",
    "\np99",
    "W per\nGPU",
    "of\nlimit",
    "J per\ntoken",
)


def row(point: BenchPoint) -> list[str]:
    """The cells of one point, in the order of :data:`HEAD`; what is not known is a dash."""
    rate, seen = point.throughput, point.telemetry
    ttft, itl = point.latency.ttft_ms, point.latency.itl_ms
    power = seen.mean_power_w if seen else None
    return [
        f"{point.concurrency:,}",
        number(rate.output_tok_per_s if rate else None),
        number(rate.total_tok_per_s if rate else None),
        number(ttft.p50 if ttft else None),
        number(ttft.p99 if ttft else None),
        number(itl.p50 if itl else None),
        number(itl.p99 if itl else None),
        number(power / len(seen.gpus)) if seen and power is not None else UNKNOWN,
        share(power, seen.power_limit_w if seen else None),
        number(point.joules_per_output_token),
    ]


def table(result: BenchResult) -> Table:
    """The points of a run; below them, why a point does not count."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", caption_style="")
    grid.caption_justify = "left"
    for title in HEAD:
        grid.add_column(title, justify="right", no_wrap=True)
    for point in result.points:
        grid.add_row(*row(point), style="" if point.valid else "dim")
    rejected = [point for point in result.points if not point.valid]
    if rejected:
        notes = Text()
        for point in rejected:
            what = "; ".join(reason.what for reason in point.reasons) or point.status
            notes.append(f"{point.concurrency:,} streams do not count: {what}\n", style="red")
        grid.caption = notes
    return grid
