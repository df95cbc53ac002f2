# SPDX-License-Identifier: Apache-2.0
"""Axes: from values to places, round ticks, and numbers as people read them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

#: A range wider than this is drawn on a logarithmic axis where that is allowed; else axes start at zero.
LOG_RATIO = 20.0
#: What stands where a number is not known: an en dash.
UNKNOWN = "\u2013"


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to places between ``start`` and ``end`` (SVG units)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: tuple[float, ...] = ()

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log2(max(v, 1e-12)) for v in (value, low, high))
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def nice_step(span: float, count: int) -> float:
    """A step of 1, 2, 2.5 or 5 times a power of ten that gives about ``count`` ticks over ``span``."""
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * 0.999), 10 * power)


def linear(highest: float, start: float, end: float, *, count: int = 5) -> Scale:
    """From zero to a round value at or above ``highest``."""
    if not math.isfinite(highest) or highest <= 0:
        highest = 1.0
    step = nice_step(highest, count)
    steps = math.ceil(highest / step - 1e-9)
    return Scale(0.0, steps * step, start, end, ticks=tuple(round(i * step, 10) for i in range(steps + 1)))


def logarithmic(values: Iterable[float], start: float, end: float) -> Scale:
    """Decades around positive values, with ticks at 1, 2 and 5 (or 1 only where there are many)."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    candidates = [step * 10.0**exponent for exponent in exponents for step in steps]
    below = max((c for c in candidates if c <= low * 1.001), default=low)
    above = min((c for c in candidates if c >= high * 0.999), default=high)
    ticks = tuple(c for c in candidates if below <= c <= above)
    return Scale(below, above, start, end, log=True, ticks=ticks)


def fitting(values: Sequence[float], start: float, end: float, *, log: bool) -> Scale:
    """Linear from zero; with ``log``, logarithmic where the values span too much to be read that way."""
    positive = [value for value in values if value > 0]
    if log and positive and max(positive) / min(positive) > LOG_RATIO:
        return logarithmic(positive, start, end)
    return linear(max(values, default=1.0) * 1.04, start, end)


def streams(values: Sequence[int], start: float, end: float) -> Scale:
    """Concurrency: powers of two are equally far apart; a tick at each measured value that has room for its label."""
    ordered = sorted(set(values)) or [1]
    log = ordered[0] > 0 and ordered[-1] / ordered[0] >= 4
    scale = Scale(float(ordered[0]), float(ordered[-1]), start, end, log=log)
    ticks: list[float] = []
    for value in ordered:
        if not ticks or scale(value) - scale(ticks[-1]) > 30:
            ticks.append(float(value))
    return dataclasses.replace(scale, ticks=tuple(ticks))


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits at least, thousands separated; an en dash for what is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) >= 100 else text


def count(streams: int) -> str:
    """``1 stream``, ``1,024 streams``."""
    return f"{streams:,} stream{'' if streams == 1 else 's'}"


def tick(value: float) -> str:
    """A tick's label: no more digits than it needs."""
    if value == 0:
        return "0"
    if abs(value) >= 1:
        return f"{value:,.10g}" if value != round(value) else f"{round(value):,}"
    return f"{value:.10g}"


def milliseconds(value: float | None) -> str:
    """A latency with its unit, in seconds from ten seconds on."""
    if value is None:
        return UNKNOWN
    return f"{number(value / 1e3)} s" if value >= 1e4 else f"{number(value)} ms"


def ratio(new: float | None, old: float | None) -> str:
    """New over old, such as ``4.25x``."""
    if new is None or not old:
        return UNKNOWN
    return f"{new / old:.2f}x"
