# SPDX-License-Identifier: Apache-2.0
"""What each GPU sends to each other one, as a square of cells; and what an allreduce takes over its size."""

from __future__ import annotations

import dataclasses
import statistics
from html import escape

from rackwell.bench.report.figure import Figure, unit
from rackwell.bench.report.svg import HEIGHT, WIDTH
from rackwell.bench.result import Topology
from rackwell.page import scales
from rackwell.page.scales import UNKNOWN, Scale, number
from rackwell.page.svg import Frame, Line, document, interactive, n, series, text, x_axis, y_axis

_SHADES = 6
_SIDE = 40.0
#: A pair this far below the median of all is framed.
_WEAK = 0.7


def heat(topology: Topology | None) -> Figure | None:
    """The matrix of kernel copies; None when there are no pairs."""
    matrix = topology.p2p_gb_per_s if topology else []
    known = [value for row in matrix for value in row if value is not None]
    if not topology or not known:
        return None
    count = len(matrix)
    low, high, middle = min(known), max(known), statistics.median(known)
    frame = Frame(max(54 + _SIDE * count + 10, 270.0), 66 + _SIDE * count + 26, left=54, top=58)
    parts = [text(frame.left, 16, "receives", "axis-title"), text(0, 46, "sends", "axis-title")]
    for i in range(count):
        parts.append(text(frame.left + (i + 0.5) * _SIDE, 46, str(i), "tick", "middle"))
        parts.append(text(frame.left - 10, frame.top + (i + 0.5) * _SIDE + 4, f"GPU {i}", "tick", "end"))
    for a, row in enumerate(matrix):
        for b, value in enumerate(row):
            parts.append(_cell(a, b, value, (low, high, middle), frame))
    parts.append(_scale(low, high, frame, count))
    told = f"{number(low)} to {number(high)} gigabytes per second, median {number(middle)}; {len(known)} pairs."
    drawing = document(frame, "p2p-plot", "Bandwidth of each pair of GPUs", told, "".join(parts))
    caption = (
        f"GB/s that a kernel copies from one GPU to another (row sends, column receives): "
        f"{number(low)} to {number(high)}, median {number(middle)}. GB is 10^9 bytes. "
        f"A frame marks what is below {_WEAK:.0%} of the median."
    )
    head = ["From", *(f"to GPU {i}" for i in range(count))]
    rows = [
        [f"GPU {a}", *("" if a == b else number(value) for b, value in enumerate(row))] for a, row in enumerate(matrix)
    ]
    return Figure("p2p", "Bandwidth of each pair", caption, drawing, head, rows)


def _cell(a: int, b: int, value: float | None, around: tuple[float, float, float], frame: Frame) -> str:
    x, y = frame.left + b * _SIDE, frame.top + a * _SIDE
    if a == b:
        return ""
    low, high, middle = around
    size = f'x="{n(x + 1)}" y="{n(y + 1)}" width="{n(_SIDE - 2)}" height="{n(_SIDE - 2)}" rx="3"'
    if value is None:
        return f'<rect class="cell unknown" {size}/>' + text(
            x + _SIDE / 2, y + _SIDE / 2 + 4, UNKNOWN, "tick", "middle"
        )
    place = 1.0 if high <= low * 1.05 else (value - low) / (high - low)
    shade = min(_SHADES - 1, int(place * _SHADES))
    told = escape(f"GPU {a} to GPU {b}: {number(value)} GB/s")
    words = f"{value:.1f}" if value < 100 else f"{value:.0f}"
    framed = f'<rect class="worst" {size}/>' if value < _WEAK * middle else ""
    return f'<rect class="cell h{shade}" {size}><title>{told}</title></rect>{framed}' + text(
        x + _SIDE / 2, y + _SIDE / 2 + 4.5, words, "heat", "middle"
    )


def _scale(low: float, high: float, frame: Frame, count: int) -> str:
    """Which shade is how much."""
    y = frame.top + _SIDE * count + 10
    if high <= low * 1.05:
        return text(frame.left, y + 11, "all the same within 5 %", "axis-title")
    words = number(low)
    start = frame.left + 8 * len(words) + 8
    boxes = [
        f'<rect class="cell h{i}" x="{n(start + 18 * i)}" y="{n(y)}" width="18" height="12"/>' for i in range(_SHADES)
    ]
    end = start + 18 * _SHADES + 8
    return (
        text(start - 8, y + 11, words, "tick", "end")
        + "".join(boxes)
        + text(end, y + 11, f"{number(high)} GB/s", "tick")
    )


def allreduce(topology: Topology | None) -> Figure | None:
    """Time of one allreduce over its size; None for fewer than two sizes."""
    times = sorted((topology.allreduce_us if topology else {}).items())
    if len(times) < 2:
        return None
    frame = Frame(WIDTH, HEIGHT, right=40)
    x = Scale(float(times[0][0]), float(times[-1][0]), frame.x0, frame.x1, log=True)
    ticks: list[float] = []
    for size, _us in reversed(times):
        if not ticks or x(ticks[-1]) - x(size) > 60:
            ticks.append(float(size))
    x = dataclasses.replace(x, ticks=tuple(ticks[::-1]))
    values: list[float | None] = [us for _size, us in times]
    y = scales.fitting([us for _size, us in times], frame.y0, frame.y1, log=True)
    xs = [x(size) for size, _us in times]
    names = [bytes_(size) for size, _us in times]
    line = Line("allreduce", values, "s-output", quiet=True)
    body = y_axis(frame, y, "microseconds") + x_axis(frame, x, "size of the message", bytes_)
    body += series(line, xs, y, lambda v: f"{number(v)} us", names)
    for place, (size, us) in zip(xs, times, strict=True):
        if size in ticks:
            body += text(place, y(us) - 11, number(us), "value s-output", "middle")
    told = ", ".join(f"{number(us)} microseconds at {name}" for name, (_size, us) in zip(names, times, strict=True))
    drawing = document(
        frame, "allreduce-plot", "Time of an allreduce over its size", told + ".", body, interactive(frame, xs, names)
    )
    rows = [[name, unit(us, "us")] for name, (_size, us) in zip(names, times, strict=True)]
    caption = "One allreduce over all GPUs, as `verify` measured it. Decoding sends small ones: latency counts there."
    return Figure("allreduce", "Allreduce", caption, drawing, ["Message", "Time"], rows)


def bytes_(count: float) -> str:
    """Bytes as people write powers of two."""
    for name in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {name}"
        count /= 1024
    return f"{count:.0f} GiB"
