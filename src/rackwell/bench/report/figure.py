# SPDX-License-Identifier: Apache-2.0
"""A figure of the report: a drawing, what it shows, and the same numbers as a table."""

from __future__ import annotations

import dataclasses

from rackwell.page.scales import UNKNOWN, number


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A plot and its numbers.

    Attributes:
        ident: for links and names of files. title, caption: what it shows. svg: the drawing.
        head, rows: the table behind it. wide: takes the whole width of the page.
        legend: (class, label, value) of each line where labels do not fit.
    """

    ident: str
    title: str
    caption: str
    svg: str
    head: list[str]
    rows: list[list[str]]
    wide: bool = False
    legend: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)


def share(value: float | None, of: float | None) -> str:
    """A percentage, or a dash."""
    return UNKNOWN if value is None or not of else f"{100 * value / of:.1f} %"


def unit(value: float | None, name: str) -> str:
    """A number with its unit, or a dash."""
    return UNKNOWN if value is None else f"{number(value)} {name}"


def spanned(value: float | None, span: tuple[float, float] | None) -> str:
    """A median, and behind it the lowest and highest of the repeats where there are several."""
    if value is None or span is None:
        return number(value)
    return f"{number(value)} ({number(span[0])} to {number(span[1])})"
