# SPDX-License-Identifier: Apache-2.0
"""One point over time: tokens, requests, cache, power and utilisation above each other on one axis of time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from html import escape

from rackwell.bench.report.figure import Figure, share, unit
from rackwell.bench.result import BenchPoint, GpuTelemetry
from rackwell.page import scales
from rackwell.page.scales import UNKNOWN, Scale, number
from rackwell.page.svg import Frame, Line, document, end_labels, n, series, text, x_axis, y_axis

#: Lines of a page's timelines hold no more places than this together, so that a page of many points stays small.
BUDGET = 1000
_MOST, _FEWEST = 180, 40
#: With more GPUs than this their lines are not named at their ends.
_NAMED = 8
_WIDTH = 900.0
_LEFT, _RIGHT = 56.0, 92.0
_HEAD = 32.0
"""Above each panel, where its title stands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """One quantity over time, or several of one unit."""

    title: str
    times: list[float]
    lines: list[Line]
    highest: float
    height: float = 104.0
    limit: tuple[float, str] | None = None
    form: Callable[[float], str] = number
    ticks: int = 3


def resolution(points: int) -> int:
    """Places of each line, where a page shows the timelines of so many points."""
    return max(_FEWEST, min(_MOST, BUDGET // max(points, 1)))


def timeline(point: BenchPoint, ident: str, most: int = _MOST) -> Figure | None:
    """The figure; None when nothing of the point was recorded over time."""
    panels = _panels(point, most)
    if not panels:
        return None
    duration = _duration(point, panels)
    where = scales.count(point.concurrency)
    steady = point.steady
    window = (steady.start_s, steady.end_s) if steady and steady.start_s is not None and steady.end_s else None
    drawing = _draw(f"time-{ident}-plot", f"{where} over time", _told(point), panels, duration, window)
    seen = point.telemetry
    gpus = seen.gpus if seen else []
    caption = f"{number(duration)} s of measured time"
    if seen and seen.samples:
        caption += f", {seen.samples:,} samples of the GPUs at {number(seen.hz, 2)} Hz"
    if window:
        caption += "; tinted: the steady part, without ramp and tail"
    missing = _missing(point)
    caption += f". Not recorded: {', '.join(missing)}." if missing else "."
    return Figure(
        f"time-{ident}",
        "Over time",
        caption,
        drawing,
        ["Second", "Output tok/s", "In flight", "Running", "Queued", "KV cache", "Power of all", "Mean use"],
        _rows(point, duration),
        wide=True,
        legend=[(f"g{i % 8}", f"GPU {g.index}", unit(g.power_w.mean, "W")) for i, g in enumerate(gpus)]
        if len(gpus) > 1
        else [],
    )


def _panels(point: BenchPoint, most: int) -> list[Panel]:
    line, seen = point.timeline, point.telemetry
    found = []
    if line and line.t:
        times, every = thin(line.t, most)
        rate = Line("output", pick(line.output_tok_per_s, every), "s-output", marks=False, quiet=True)
        found.append(Panel("output, tok/s", times, [rate], _top(rate)))
        asked = [
            Line("in flight", pick(line.in_flight, every), "s-flight", marks=False),
            Line("running", pick(line.server_running, every), "g0", marks=False),
            Line("queued", pick(line.server_queued, every), "g1", marks=False),
        ]
        found.append(Panel("requests", times, asked, max(map(_top, asked)), form=_whole))
        kv = Line("KV cache", pick(line.kv_usage_pct, every), "g2", marks=False, quiet=True)
        found.append(Panel("KV cache in use, %", times, [kv], 100, 74, ticks=2))
    if seen and seen.t and seen.gpus:
        times, every = thin(seen.t, most)
        limits = sorted({gpu.power_limit_w for gpu in seen.gpus if gpu.power_limit_w})
        drawn = _lines(seen.gpus, every, lambda g: g.power_w.series)
        highest = max([*map(_top, drawn), *limits])
        named = (limits[-1], f"limit {number(limits[-1])}") if limits else None
        height = 168.0 if len(seen.gpus) > 1 else 104.0
        found.append(Panel("power of each GPU, W", times, drawn, highest, height, named))
        use = _lines(seen.gpus, every, lambda g: g.utilization_pct.series, quiet=True)
        found.append(Panel("utilisation of each GPU, %", times, use, 100, ticks=2))
    kept = []
    for panel in found:
        lines = [each for each in panel.lines if any(value is not None for value in each.values)]
        # a single moment is a mark, since it makes no line
        lines = [dataclasses.replace(each, marks=len(panel.times) == 1) for each in lines]
        if lines:
            kept.append(dataclasses.replace(panel, lines=lines))
    return kept


def _lines(
    gpus: Sequence[GpuTelemetry], every: int, of: Callable[[GpuTelemetry], Sequence[float | None]], quiet: bool = False
) -> list[Line]:
    """A line for each GPU, and their mean, which the cursor tells."""
    values = [pick(of(gpu), every) for gpu in gpus]
    single = len(gpus) == 1
    quiet = quiet or single or len(gpus) > _NAMED
    lines = [
        Line(f"GPU {gpu.index}", column, f"g g{i % 8}", quiet=quiet, marks=False, told=single)
        for i, (gpu, column) in enumerate(zip(gpus, values, strict=True))
    ]
    if not single:
        mean = [_mean(column) for column in zip(*values, strict=False)]
        lines.append(Line("mean", mean, "unseen-line", quiet=True, marks=False))
    return lines


def _draw(
    ident: str, title: str, told: str, panels: list[Panel], duration: float, steady: tuple[float, float] | None
) -> str:
    height = sum(panel.height + _HEAD for panel in panels) + 48
    outer = Frame(_WIDTH, height, _LEFT, _RIGHT, _HEAD, 48)
    step = scales.nice_step(duration, 9)
    x = Scale(0.0, duration, outer.x0, outer.x1, ticks=tuple(i * step for i in range(int(duration / step + 1e-6) + 1)))
    parts = []
    top = 0.0
    for panel in panels:
        top += _HEAD
        frame = Frame(_WIDTH, top + panel.height, _LEFT, _RIGHT, top, 0)
        y = scales.linear(panel.highest, frame.y0, frame.y1, count=panel.ticks)
        if steady is not None:
            left, right = x(max(0.0, steady[0])), x(min(duration, steady[1]))
            size = f'width="{n(right - left)}" height="{n(panel.height)}"'
            parts.append(f'<rect class="steady" x="{n(left)}" y="{n(top)}" {size}/>')
        parts.append(y_axis(frame, y, ""))
        parts.append(text(0, top - 12, panel.title, "panel-title"))
        xs = [x(value) for value in panel.times]
        places = " ".join(map(n, xs))
        moments = [f"{value:.1f} s" for value in panel.times]
        drawn = "".join(series(line, xs, y, panel.form, moments) for line in panel.lines if line.css != "unseen-line")
        hidden = "".join(_hidden(line, panel) for line in panel.lines if line.css == "unseen-line")
        names = "|".join(moments)
        kind = escape(panel.title.partition(",")[0], quote=True)
        parts.append(f'<g data-x="{places}" data-names="{names}" data-what="{kind}">{drawn}{hidden}</g>')
        if panel.limit is not None:
            place = y(panel.limit[0])
            ends = f'x1="{n(frame.x0)}" x2="{n(frame.x1)}" y1="{n(place)}" y2="{n(place)}"'
            parts.append(f'<line class="limit" {ends}/>')
            parts.append(text(frame.x1 + 10, place + 4, panel.limit[1], "label s-limit"))
        parts.append(end_labels([line for line in panel.lines if line.css != "unseen-line"], frame, y))
        top += panel.height
    base = Frame(_WIDTH, height, _LEFT, _RIGHT, 0, 46)
    parts.append(x_axis(base, x, "seconds from the start of the measured time"))
    finest = max((panel.times for panel in panels), key=len)
    cursor = " ".join(n(x(value)) for value in finest)
    data = f' tabindex="0" data-x="{cursor}" data-top="{n(_HEAD)}" data-bottom="{n(top)}"'
    return document(Frame(_WIDTH, height), ident, title, told, "".join(parts), data)


def _hidden(line: Line, panel: Panel) -> str:
    """A line that is not drawn, but that the cursor tells."""
    words = "|".join("" if value is None else panel.form(value) for value in line.values)
    return f'<g class="series s-ink" data-label="{escape(line.label)}" data-y="{words}"></g>'


def _duration(point: BenchPoint, panels: list[Panel]) -> float:
    seen, rate = point.telemetry, point.throughput
    if seen and seen.window and seen.window.duration_s > 0:
        return seen.window.duration_s
    if rate and rate.duration_s > 0:
        return rate.duration_s
    return max(panel.times[-1] for panel in panels) or 1.0


def _told(point: BenchPoint) -> str:
    seen, rate = point.telemetry, point.throughput
    words = [f"Output {number(rate.output_tok_per_s)} tokens per second" if rate else ""]
    if seen:
        words.append(
            f"all GPUs {unit(seen.mean_power_w, 'watts')}, {share(seen.mean_power_w, seen.power_limit_w)} of limit"
        )
        words.append(f"busy {number(seen.mean_utilization_pct)} percent")
    return ", ".join(word for word in words if word) + "."


def _missing(point: BenchPoint) -> list[str]:
    line, seen = point.timeline, point.telemetry
    found = []
    if not line or not line.t:
        found.append("tokens and requests")
    else:
        if not any(value is not None for value in line.server_running):
            found.append("the server's own count of requests")
        if not any(value is not None for value in line.kv_usage_pct):
            found.append("KV cache")
    if not seen or not seen.gpus or not seen.t:
        found.append("GPUs")
    return found


def _rows(point: BenchPoint, duration: float) -> list[list[str]]:
    """The same in a dozen slices, for those who do not see the drawing."""
    line, seen = point.timeline, point.telemetry
    step = scales.nice_step(duration, 10)
    rows = []
    for i in range(max(1, int(duration / step + 0.5))):
        low, high = i * step, (i + 1) * step

        def at(
            times: Sequence[float], values: Sequence[float | None], low: float = low, high: float = high
        ) -> float | None:
            return _mean([v for t, v in zip(times, values, strict=False) if low <= t < high])

        cells = [
            at(line.t, values) if line else None
            for values in (
                (line.output_tok_per_s, line.in_flight, line.server_running, line.server_queued, line.kv_usage_pct)
                if line
                else ((), (), (), (), ())
            )
        ]
        powers = [at(seen.t, gpu.power_w.series) for gpu in seen.gpus] if seen else []
        uses = [at(seen.t, gpu.utilization_pct.series) for gpu in seen.gpus] if seen else []
        known = [power for power in powers if power is not None]
        rows.append(
            [
                f"{scales.tick(round(low, 6))} to {scales.tick(round(high, 6))}",
                *(number(cell) for cell in cells[:4]),
                unit(cells[4], "%"),
                unit(sum(known), "W") if known and len(known) == len(powers) else UNKNOWN,
                unit(_mean(uses), "%"),
            ]
        )
    return rows


def thin(times: Sequence[float], most: int) -> tuple[list[float], int]:
    """Middles of groups of samples, no more than `most`, and the size of a group."""
    every = max(1, -(-len(times) // most))
    groups = [times[i : i + every] for i in range(0, len(times), every)]
    return [sum(group) / len(group) for group in groups], every


def pick(values: Sequence[float | None], every: int) -> list[float | None]:
    """Means of the same groups."""
    return [_mean(values[i : i + every]) for i in range(0, len(values), every)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _top(line: Line) -> float:
    return max((value for value in line.values if value is not None), default=0.0) * 1.05


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 10 else f"{value:.1f}"
