# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG text. Colours and fonts are classes of the page's style sheet, so that dark, light and print follow it.

A plot carries its values (``data-x``, ``data-y``, ``data-label``) for the page's script, which draws the cursor;
without the script every marker still has its ``<title>``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from html import escape

from rackwell.bench.report import scales
from rackwell.bench.report.scales import Scale

Value = float | None
Format = Callable[[float], str]

_LINE = 15.0
"""Height that a label needs, SVG units."""
_ROOM = 48.0
"""Width that a tick's label needs where it is drawn large, SVG units."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One series. ``css``: class that gives its colour; ``label`` stands at its end unless ``quiet``."""

    label: str
    values: Sequence[Value]
    css: str
    quiet: bool = False
    marks: bool = True


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
    """The ``d`` of a polyline."""
    return "M" + "L".join(f"{n(x)} {n(y)}" for x, y in points)


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
    words = escape("|".join("" if v is None else form(v) for v in line.values), quote=True)
    parts = [f'<g class="series {line.css}" data-label="{escape(line.label, quote=True)}" data-y="{words}">']
    parts += [f'<path d="{path(run)}"/>' for run in runs(xs, ys) if len(run) > 1]
    if line.marks:
        for i, place in enumerate(ys):
            if place is not None:
                told = f"{line.label}, {names[i]}: {form(line.values[i] or 0.0)}"
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


def sweep(
    ident: str,
    title: str,
    description: str,
    concurrency: Sequence[int],
    lines: Sequence[Line],
    unit: str,
    form: Format,
    *,
    log: bool = False,
    band: tuple[Sequence[Value], Sequence[Value]] | None = None,
    values_of: Line | None = None,
    values_below: bool = False,
) -> str:
    """Quantities over concurrency.

    Args:
        concurrency: measured values. lines: their values in the same order. unit: of the y axis, with the quantity.
        form: of a value, for tooltips. log: logarithmic where the values span much.
        band: two series between which the area is tinted. values_of: the line whose values are written at its points,
            below them when ``values_below``.
    """
    frame = Frame(560, 320)
    known = [value for line in lines for value in line.values if value is not None]
    y = scales.fitting(known, frame.y0, frame.y1, log=log)
    x = scales.streams(list(concurrency), frame.x0 + 22, frame.x1 - 22)
    xs = [x(value) for value in concurrency]
    names = [scales.count(value) for value in concurrency]
    parts = [y_axis(frame, y, unit), x_axis(frame, x, "concurrent streams")]
    if band is not None:
        parts.append(area(xs, band, y))
    parts += [series(line, xs, y, form, names) for line in lines]
    if values_of is not None:
        parts += point_values(values_of, xs, y, frame, below=values_below)
    parts.append(end_labels(lines, frame, y))
    return document(frame, ident, title, description, "".join(parts), interactive(frame, xs, names))


def point_values(line: Line, xs: Sequence[float], y: Scale, frame: Frame, *, below: bool) -> list[str]:
    """Values of a line written at its points, from the last one on, where there is room."""
    parts = []
    free = float("inf")
    for place, value in reversed(list(zip(xs, line.values, strict=True))):
        if value is None or place > free:
            continue
        # no room below the lowest values: the axis is there
        beside = y(value) + 20 if below and y(value) + 20 < frame.y0 - 2 else y(value) - 11
        words = scales.number(value)
        parts.append(text(place, beside, words, f"value {line.css}", "middle"))
        free = place - 9.5 * len(words) - 6
    return parts


def area(xs: Sequence[float], band: tuple[Sequence[Value], Sequence[Value]], y: Scale) -> str:
    """The tinted area between two series, where both are known."""
    both = [(x, y(a), y(b)) for x, a, b in zip(xs, *band, strict=True) if a is not None and b is not None]
    if len(both) < 2:
        return ""
    outline = [(x, a) for x, a, _b in both] + [(x, b) for x, _a, b in reversed(both)]
    return f'<path class="band" d="{path(outline)}Z"/>'


def bars(
    ident: str,
    title: str,
    description: str,
    concurrency: Sequence[int],
    values: Sequence[Value],
    unit: str,
    *,
    previous: Sequence[Value] | None = None,
) -> str:
    """One bar for each concurrency, with its value above; a mark where the earlier run was."""
    frame = Frame(560, 320, right=24)
    olds = list(previous or [None] * len(values))
    y = scales.linear(max([v for v in [*values, *olds] if v is not None], default=1.0) * 1.08, frame.y0, frame.y1)
    slot = (frame.x1 - frame.x0) / max(len(values), 1)
    width = min(64.0, slot * 0.56)
    parts = [y_axis(frame, y, unit)]
    for i, (streams, value, old) in enumerate(zip(concurrency, values, olds, strict=True)):
        middle = frame.x0 + (i + 0.5) * slot
        parts.append(text(middle, frame.y0 + 18, f"{streams:,}", "tick", "middle"))
        if value is None:
            parts.append(text(middle, frame.y0 - 8, "not known", "tick", "middle"))
            continue
        told = f"{scales.count(streams)}: {scales.number(value)} {unit}"
        parts.append(
            f'<rect class="bar" x="{n(middle - width / 2)}" y="{n(y(value))}" width="{n(width)}" '
            f'height="{n(frame.y0 - y(value))}" rx="2"><title>{escape(told)}</title></rect>'
        )
        tall = frame.y0 - y(value) > 30
        words = scales.number(value)
        parts.append(text(middle, y(value) + (20 if tall else -8), words, "inside" if tall else "value", "middle"))
        if old is not None:
            half = width / 2 + 8
            parts.append(
                f'<line class="was" x1="{n(middle - half)}" x2="{n(middle + half)}" y1="{n(y(old))}" y2="{n(y(old))}">'
                f"<title>{escape(f'earlier run: {scales.number(old)} {unit}')}</title></line>"
            )
    parts.append(text((frame.x0 + frame.x1) / 2, frame.height - 6, "concurrent streams", "axis-title", "middle"))
    return document(frame, ident, title, description, "".join(parts))


def timeline(
    ident: str,
    title: str,
    description: str,
    times: Sequence[float],
    lines: Sequence[Line],
    unit: str,
    highest: float,
    *,
    duration: float,
    limit: tuple[float, str] | None = None,
    height: float = 220.0,
    x_title: str = "",
) -> str:
    """Quantities of each GPU over the window; ``limit`` is drawn across with its name."""
    frame = Frame(1160, height, right=96, bottom=44 if x_title else 26)
    y = scales.linear(highest, frame.y0, frame.y1, count=4)
    step = scales.nice_step(duration, 10)
    x = Scale(0.0, duration, frame.x0, frame.x1, ticks=tuple(i * step for i in range(int(duration / step) + 1)))
    xs = [x(value) for value in times]
    names = [f"{value:.1f} s" for value in times]
    parts = [y_axis(frame, y, unit), x_axis(frame, x, x_title, lambda v: f"{scales.tick(v)} s")]
    parts += [series(line, xs, y, scales.number, names) for line in lines]
    if limit is not None:
        place = y(limit[0])
        parts.append(f'<line class="limit" x1="{n(frame.x0)}" x2="{n(frame.x1)}" y1="{n(place)}" y2="{n(place)}"/>')
        parts.append(text(frame.x1 + 10, place + 4, limit[1], "label s-limit"))
    return document(frame, ident, title, description, "".join(parts), interactive(frame, xs, names))
