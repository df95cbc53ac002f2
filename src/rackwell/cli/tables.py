# SPDX-License-Identifier: Apache-2.0
"""Small tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rackwell.bench.result import BenchResult

_COLOURS = {
    "pass": "green",
    "ok": "green",
    "fail": "red",
    "held": "red",
    "unreachable": "red",
    "unknown": "yellow",
    "degraded": "bold yellow",
    "not measured": "dim",
}


def table(out: Any, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table; verdicts are coloured on a terminal."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for title in head:
        grid.add_column(title, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell, style=_COLOURS.get(cell.partition(":")[0], "")) for cell in row))
    plain(out, grid)


def bench(out: Any, result: BenchResult) -> None:
    """The headline figures of a benchmark."""
    from rackwell.bench.table import table as points

    plain(out, points(result))


def plain(out: Any, grid: Any) -> None:
    """Print a table or a text; into a pipe or a file without the blanks that fill its lines up."""
    if out.is_terminal:
        out.print(grid)
        return
    with out.capture() as captured:
        out.print(grid)
    out.print("\n".join(line.rstrip() for line in captured.get().splitlines()))
