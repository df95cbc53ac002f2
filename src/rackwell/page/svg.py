# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG text. Colours and fonts are classes of the page's style sheet, so that dark, light and print follow it.

A plot carries its values (``data-x``, ``data-y``, ``data-label``) for the page's script, which draws the cursor;
without the script every marker still has its ``<title>``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from html import escape

from rackwell.page import scales
from rackwell.page.scales import Scale

Value = float | None
Format = Callable[[float], str]

_LINE = 15.0
"""Height that a label needs, SVG units."""
_ROOM = 48.0
"""Width that a tick's label needs where it is drawn large, SVG units."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One series. ``css``: class that gives its colour; ``label`` stands at its end unless ``quiet``.

    Attributes:
        spans: lowest and highest of several measurements at each place, drawn as a bar behind the mark.
        told: whether the cursor tells its values; they are part of the document then.
    """

    label: str
    values: Sequence[Value]
    css: str
    quiet: bool = False
    marks: bool = True
    spans: Sequence[tuple[float, float] | None] = ()
    told: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """Outer size and margins of a plot, SVG units."""

    width: float
    height: float
    left: float = 56.0
    right: float = 104.0
    top: float = 30.0
    bottom: float = 44.0

    @property
    def x0(self) -> float:
        """Left edge of the plotting area."""
        return self.left

    @property
    def x1(self) -> float:
        """Right edge of the plotting area."""
        return self.width - self.right

    @property
    def y0(self) -> float:
        """Bottom of the plotting area, where low values are."""
        return self.height - self.bottom

    @property
    def y1(self) -> float:
        """Top of the plotting area."""
        return self.top


def n(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    """A piece of text, escaped."""
    kind = f' class="{css}"' if css else ""
    return f'<text x="{n(x)}" y="{n(y)}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def runs(xs: Sequence[float], ys: Sequence[Value]) -> list[list[tuple[float, float]]]:
    """Stretches of points without a gap: an unknown value interrupts a line."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if y is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return [run for run in found if run]


def path(points: Sequence[tuple[float, float]]) -> str:
    """The ``d`` of a polyline, each point relative to the one before, which is short."""
    places = [(round(10 * x), round(10 * y)) for x, y in points]
    steps = [(x - a, y - b) for (a, b), (x, y) in itertools.pairwise(places)]
    moves = " ".join(f"{n(x / 10)} {n(y / 10)}" for x, y in steps)
    return f"M{n(places[0][0] / 10)} {n(places[0][1] / 10)}" + (f"l{moves}" if moves else "")


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move label heights apart so that none is closer to the next than ``gap``, within [low, high]; order is kept."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [0.0] * len(places)
    last = low - gap
    for i in order:
        last = moved[i] = max(places[i], last + gap)
    overflow = last - high
    if overflow > 0:
        limit = high
        for i in reversed(order):
            moved[i] = min(moved[i], limit)
            limit = moved[i] - gap
    return moved


def y_axis(frame: Frame, scale: Scale, title: str, form: Format = scales.tick) -> str:
    """Grid lines, their values, and the quantity with its unit above them."""
    parts = []
    for value in scale.ticks:
        y = scale(value)
        css = "axis" if value == scale.low else "grid"
        parts.append(f'<line class="{css}" x1="{n(frame.x0)}" x2="{n(frame.x1)}" y1="{n(y)}" y2="{n(y)}"/>')
        parts.append(text(frame.x0 - 8, y + 4, form(value), "tick", "end"))
    words = f"{title}, logarithmic" if scale.log else title
    parts.append(text(0, frame.y1 - 15, words, "axis-title"))
    return "".join(parts)


def x_axis(frame: Frame, scale: Scale, title: str, form: Format = scales.tick) -> str:
    """Tick labels below the plotting area, and what they count. Those with little room yield on small screens."""
    parts = []
    free = float("-inf")
    for value in scale.ticks:
        place = scale(value)
        parts.append(text(place, frame.y0 + 18, form(value), "tick" if place >= free else "tick cramped", "middle"))
        free = place + _ROOM if place >= free else free
    parts.append(text((frame.x0 + frame.x1) / 2, frame.height - 6, title, "axis-title", "middle"))
    return "".join(parts)


def document(frame: Frame, ident: str, title: str, description: str, body: str, data: str = "") -> str:
    """The ``<svg>`` with its accessible name and description."""
    return (
        f'<svg id="{ident}" class="plot" viewBox="0 0 {n(frame.width)} {n(frame.height)}" role="img" '
        f'aria-labelledby="{ident}-title {ident}-desc" preserveAspectRatio="xMidYMid meet"{data}>'
        f'<title id="{ident}-title">{escape(title)}</title><desc id="{ident}-desc">{escape(description)}</desc>'
        f"{body}</svg>"
    )


def interactive(frame: Frame, xs: Sequence[float], names: Sequence[str]) -> str:
    """Attributes from which the page's script finds the value under the pointer."""
    places = " ".join(n(x) for x in xs)
    labels = escape("|".join(names), quote=True)
    return f' tabindex="0" data-x="{places}" data-name="{labels}" data-top="{n(frame.y1)}" data-bottom="{n(frame.y0)}"'


def series(line: Line, xs: Sequence[float], y: Scale, form: Format, names: Sequence[str]) -> str:
    """A line with its markers; each marker says its value."""
    ys = [None if value is None else y(value) for value in line.values]
    words = escape("|".join("" if v is None else form(v) for v in line.values), quote=True) if line.told else ""
    values = f' data-y="{words}"' if line.told else ""
    parts = [f'<g class="series {line.css}" data-label="{escape(line.label, quote=True)}"{values}>']
    for x, span in zip(xs, line.spans, strict=False):
        if span is not None and span[0] < span[1]:
            ends = f'y1="{n(y(span[0]))}" y2="{n(y(span[1]))}"'
            parts.append(f'<line class="span" x1="{n(x)}" x2="{n(x)}" {ends}/>')
    parts += [f'<path d="{path(run)}"/>' for run in runs(xs, ys) if len(run) > 1]
    if line.marks:
        for i, place in enumerate(ys):
            if place is not None:
                told = f"{line.label}, {names[i]}: {form(line.values[i] or 0.0)}"
                if i < len(line.spans) and (span := line.spans[i]) is not None:
                    told += f", repeats from {form(span[0])} to {form(span[1])}"
                parts.append(f'<circle cx="{n(xs[i])}" cy="{n(place)}" r="3.5"><title>{escape(told)}</title></circle>')
    parts.append("</g>")
    return "".join(parts)


def end_labels(lines: Sequence[Line], frame: Frame, y: Scale) -> str:
    """Names of the lines at their right ends, moved apart where they would touch."""
    named = []
    for line in lines:
        known = [value for value in line.values if value is not None]
        if known and not line.quiet:
            named.append((line, y(known[-1])))
    places = spread([place for _line, place in named], _LINE, frame.y1, frame.y0)
    return "".join(
        text(frame.x1 + 10, place + 4, line.label, f"label {line.css}")
        for (line, _old), place in zip(named, places, strict=True)
    )
