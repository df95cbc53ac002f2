# SPDX-License-Identifier: Apache-2.0
"""Small tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rackwell.bench.result import BenchResult

_COLOURS = {"pass": "green", "ok": "green", "fail": "red", "unreachable": "red", "unknown": "yellow"}


def table(out: Any, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table; verdicts are coloured on a terminal."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for title in head:
        grid.add_column(title, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    out.print(grid)


def bench(out: Any, result: BenchResult) -> None:
    """The headline figures of a benchmark."""
    rows = []
    for point in result.points:
        rate, seen = point.throughput, point.telemetry
        rows.append(
            [
                str(point.concurrency),
                _number(rate.output_tok_per_s if rate else None),
                _number(rate.total_tok_per_s if rate else None),
                _number(point.latency.ttft_ms.p50 if point.latency.ttft_ms else None),
                _number(seen.mean_power_w if seen else None),
                _number(seen.mean_utilization_pct if seen else None),
                "yes" if point.valid else "NO: " + "; ".join(reason.what for reason in point.reasons),
            ]
        )
    head = ["streams", "output tok/s", "total tok/s", "TTFT p50 ms", "W per GPU", "GPU %", "counts"]
    table(out, head, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
