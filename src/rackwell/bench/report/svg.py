# SPDX-License-Identifier: Apache-2.0
"""The plots of a benchmark: over concurrency, as bars, and over time."""

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
