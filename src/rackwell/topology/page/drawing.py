# SPDX-License-Identifier: Apache-2.0
"""The page's one plot: what an allreduce reaches over its size."""

from __future__ import annotations

import dataclasses
import math

from rackwell.page import scales, svg
from rackwell.page.scales import Scale
from rackwell.page.svg import Frame, Line
from rackwell.topology.measured import Collectives

_LABEL = 52.0
"""Width that a label needs, SVG units."""


def size(count: float) -> str:
    """Bytes as people write powers of two."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if count >= 10 or count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def apart(values: list[float], scale: Scale) -> list[float]:
    """Those of `values`, from the greatest down, whose labels do not touch."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or scale(kept[-1]) - scale(value) > _LABEL:
            kept.append(value)
    return kept[::-1]


def allreduce(measured: Collectives | None) -> str:
    """Bus bandwidth over the size of the message, as SVG; empty when fewer than two sizes were measured."""
    points = sorted((p for p in measured.points if p.busbw is not None), key=lambda p: p.bytes) if measured else []
    if len(points) < 2:
        return ""
    frame = Frame(560, 300, right=40)
    low, high = float(points[0].bytes), float(points[-1].bytes)
    x = Scale(low, high, frame.x0, frame.x1, log=True)
    x = dataclasses.replace(x, ticks=tuple(apart([float(point.bytes) for point in points], x)))
    values = [point.busbw for point in points]
    y = scales.linear(max(value or 0.0 for value in values) * 1.05, frame.y0, frame.y1)
    places = [x(point.bytes) for point in points]
    line = Line("bus bandwidth", values, "s-busbw")
    body = svg.y_axis(frame, y, "bus bandwidth, GB/s")
    body += svg.x_axis(frame, x, "bytes of each rank", size)
    body += svg.series(line, places, y, scales.number, [size(point.bytes) for point in points])
    named = apart([float(point.bytes) for point in points], x)
    for place, point in zip(places, points, strict=True):
        value = point.busbw
        if value is not None and math.isfinite(value) and point.bytes in named:
            body += svg.text(place, y(value) - 10, scales.number(value), "value s-busbw", "middle")
    told = ", ".join(f"{scales.number(p.busbw)} GB/s at {size(p.bytes)}" for p in points)
    return svg.document(frame, "allreduce-plot", "Allreduce over its size", told + ".", body)
