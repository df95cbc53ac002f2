# SPDX-License-Identifier: Apache-2.0
"""Plots over concurrency: lines and bars."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rackwell.page import scales
from rackwell.page.scales import Scale
from rackwell.page.svg import (
    Format,
    Frame,
    Line,
    Value,
    document,
    end_labels,
    interactive,
    n,
    path,
    series,
    text,
    x_axis,
    y_axis,
)

Span = tuple[float, float] | None

WIDTH, HEIGHT = 520.0, 300.0


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
    limit: tuple[float, str] | None = None,
) -> str:
    """Quantities over concurrency.

    Args:
        concurrency: measured values. lines: their values in the same order. unit: of the y axis, with the quantity.
        form: of a value, for tooltips. log: logarithmic where the values span much.
        band: two series between which the area is tinted. values_of: the line whose values are written at its points,
            below them when ``values_below``. limit: a value drawn across, with its name.
    """
    frame = Frame(WIDTH, HEIGHT, right=84)
    known = [value for line in lines for value in line.values if value is not None]
    known += [value for line in lines for span in line.spans if span is not None for value in span]
    if limit is not None and not log:
        y = scales.linear(max([*known, limit[0]]), frame.y0, frame.y1)
    else:
        y = scales.fitting(known, frame.y0, frame.y1, log=log)
    x = scales.streams(list(concurrency), frame.x0 + 22, frame.x1 - 22)
    xs = [x(value) for value in concurrency]
    names = [scales.count(value) for value in concurrency]
    parts = [y_axis(frame, y, unit, _plain(y)), x_axis(frame, x, "concurrent streams")]
    if band is not None:
        parts.append(area(xs, band, y))
    if limit is not None:
        place = y(limit[0])
        parts.append(f'<line class="limit" x1="{n(frame.x0)}" x2="{n(frame.x1)}" y1="{n(place)}" y2="{n(place)}"/>')
        parts.append(text(frame.x1 + 10, place + 4, limit[1], "label s-limit"))
    parts += [series(line, xs, y, form, names) for line in lines]
    if values_of is not None:
        parts += point_values(values_of, xs, y, frame, below=values_below)
    parts.append(end_labels(lines, frame, y))
    return document(frame, ident, title, description, "".join(parts), interactive(frame, xs, names))


def _plain(y: Scale) -> Format:
    """Ticks in thousands where their digits would not fit beside the axis."""
    return (lambda v: f"{v / 1000:,.10g}k" if v >= 1000 else scales.tick(v)) if y.high >= 100_000 else scales.tick


def point_values(line: Line, xs: Sequence[float], y: Scale, frame: Frame, *, below: bool) -> list[str]:
    """Values of a line written at its points, from the last one on, where there is room."""
    parts = []
    free = float("inf")
    for place, value in reversed(list(zip(xs, line.values, strict=True))):
        if value is None:
            continue
        words = scales.number(value)
        half = 4.2 * len(words)
        if place + half > free:
            continue
        # on a small screen, where text is larger, it yields to its neighbour
        small = " cramped" if place + 1.4 * half > free else ""
        # no room below the lowest values: the axis is there
        beside = y(value) + 20 if below and y(value) + 20 < frame.y0 - 2 else y(value) - 11
        parts.append(text(place, beside, words, f"value {line.css}{small}", "middle"))
        free = place - half - 6
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
    spans: Sequence[Span] = (),
) -> str:
    """One bar for each concurrency, with its value; a mark where the earlier run was, a whisker over its repeats."""
    frame = Frame(WIDTH, HEIGHT, right=24)
    olds = list(previous or [None] * len(values))
    tops = [v for v in [*values, *olds, *(span[1] for span in spans if span)] if v is not None]
    y = scales.linear(max(tops, default=1.0) * 1.08, frame.y0, frame.y1)
    slot = (frame.x1 - frame.x0) / max(len(values), 1)
    width = min(60.0, slot * 0.56)
    parts = [y_axis(frame, y, unit)]
    for i, (streams, value, old) in enumerate(zip(concurrency, values, olds, strict=True)):
        middle = frame.x0 + (i + 0.5) * slot
        parts.append(text(middle, frame.y0 + 18, f"{streams:,}", "tick", "middle"))
        if value is None:
            parts.append(text(middle, frame.y0 - 8, scales.UNKNOWN, "tick", "middle"))
            continue
        told = f"{scales.count(streams)}: {scales.number(value)} {unit}"
        parts.append(
            f'<rect class="bar" x="{n(middle - width / 2)}" y="{n(y(value))}" width="{n(width)}" '
            f'height="{n(frame.y0 - y(value))}" rx="2"><title>{escape(told)}</title></rect>'
        )
        span = spans[i] if i < len(spans) else None
        if span is not None:
            parts.append(_whisker(middle, y(span[0]), y(span[1])))
        if old is not None:
            half = width / 2 + 8
            parts.append(
                f'<line class="was" x1="{n(middle - half)}" x2="{n(middle + half)}" y1="{n(y(old))}" y2="{n(y(old))}">'
                f"<title>{escape(f'earlier run: {scales.number(old)} {unit}')}</title></line>"
            )
        parts.append(_bar_value(value, middle, y, frame, y(old) if old is not None else None, span))
    parts.append(text((frame.x0 + frame.x1) / 2, frame.height - 6, "concurrent streams", "axis-title", "middle"))
    return document(frame, ident, title, description, "".join(parts))


def _bar_value(value: float, middle: float, y: Scale, frame: Frame, mark: float | None, span: Span) -> str:
    """The number of a bar: inside of it where it fits and neither mark nor whisker is in the way, else above."""
    top = y(value)
    inside = top + 20
    if span is None and frame.y0 - top > 30 and (mark is None or not inside - 14 < mark < inside + 5):
        return text(middle, inside, scales.number(value), "inside", "middle")
    above = (top if span is None else y(span[1])) - 8
    if mark is not None and above - 13 < mark < above + 4:
        above = mark - 6
    return text(middle, above, scales.number(value), "value s-energy", "middle")


def _whisker(x: float, low: float, high: float) -> str:
    return f'<path class="whisker" d="M{n(x)} {n(low)}V{n(high)}M{n(x - 5)} {n(low)}h10M{n(x - 5)} {n(high)}h10"/>'
