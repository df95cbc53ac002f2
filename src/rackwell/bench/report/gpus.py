# SPDX-License-Identifier: Apache-2.0
"""The GPUs beside each other: power, utilisation, memory, clocks, temperature and throttling of one point."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape

from rackwell.bench.report.figure import share, unit
from rackwell.bench.result import BenchPoint, GpuTelemetry
from rackwell.page import scales
from rackwell.page.scales import UNKNOWN, number
from rackwell.page.svg import Frame, document, n, text

#: Reasons of NVML for lower clocks that are no trouble: nothing to do, and the limit that somebody set.
HARMLESS = {"gpu-idle", "applications-clocks", "display-clocks"}
_ROW, _BAR = 22.0, 13.0
_HEAD = "GPU|Bus|Power|Highest|Limit|Of limit|Busy|Memory|SM clock|Hottest|PCIe tx / rx|Energy|Held back by"


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of each GPU. values: means. marks: highest reading. full: what the bar's track stands for."""

    ident: str
    title: str
    name: str
    values: list[float | None]
    marks: list[float | None]
    full: list[float | None]
    css: str
    limit: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Gpus:
    """The small plots, and the table behind all of them."""

    plots: list[str]
    titles: list[str]
    head: list[str]
    rows: list[list[str]]


def gpus(point: BenchPoint, ident: str) -> Gpus | None:
    """Bars for each quantity that was read; None without telemetry."""
    seen = point.telemetry
    if seen is None or not seen.gpus:
        return None
    found = [measure for measure in _measures(seen.gpus) if any(value is not None for value in measure.values)]
    names = [f"GPU {gpu.index}" for gpu in seen.gpus]
    return Gpus(
        [draw(measure, names, ident) for measure in found],
        [measure.title for measure in found],
        _HEAD.split("|"),
        [_row(gpu) for gpu in seen.gpus],
    )


def _measures(every: Sequence[GpuTelemetry]) -> list[Measure]:
    limits = [gpu.power_limit_w for gpu in every]
    memory = [gpu.memory_total_mib / 1024 if gpu.memory_total_mib else None for gpu in every]
    hundred: list[float | None] = [100.0] * len(every)

    def gib(value: float | None) -> float | None:
        return None if value is None else value / 1024

    return [
        Measure(
            "power",
            "Power",
            "W",
            [g.power_w.mean for g in every],
            [g.power_w.max for g in every],
            limits,
            "s-power",
            "limit",
        ),
        Measure(
            "use",
            "Utilisation",
            "%",
            [g.utilization_pct.mean for g in every],
            [g.utilization_pct.max for g in every],
            hundred,
            "g0",
        ),
        Measure(
            "memory",
            "Memory in use",
            "GiB",
            [gib(g.memory_used_mib.mean) for g in every],
            [gib(g.memory_used_mib.max) for g in every],
            memory,
            "g2",
            "all",
        ),
        Measure(
            "clock",
            "SM clock",
            "MHz",
            [g.sm_clock_mhz.mean for g in every],
            [g.sm_clock_mhz.max for g in every],
            [None] * len(every),
            "g5",
        ),
        Measure(
            "temperature",
            "Temperature",
            "°C",
            [g.temperature_c.mean for g in every],
            [g.temperature_c.max for g in every],
            [None] * len(every),
            "g1",
        ),
        Measure(
            "throttle",
            "Held back",
            "% of samples",
            # without a reason anywhere none was read: even an idle moment is one
            [held(g) if any(other.throttle for other in every) else None for g in every],
            [None] * len(every),
            hundred,
            "s-bad",
        ),
    ]


def held(gpu: GpuTelemetry) -> float | None:
    """Percent of the samples in which something held the clocks down. Reasons that never came are not in the result."""
    worst = [value for name, value in gpu.throttle.items() if _plain(name) not in HARMLESS]
    return 100 * max(worst, default=0.0)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def draw(measure: Measure, names: Sequence[str], ident: str) -> str:
    """One bar for each GPU, its value behind it; a line at the highest reading, a track up to what there is."""
    frame = Frame(360, 28 + _ROW * len(names), left=50, right=58, top=28, bottom=0)
    known = [v for column in (measure.values, measure.marks, measure.full) for v in column if v is not None]
    highest = max(known, default=1.0) or 1.0
    x = scales.Scale(0.0, highest, frame.x0, frame.x1)
    parts = [text(0, 14, f"{measure.title}, {measure.name}", "panel-title")]
    if measure.limit and (every := [v for v in measure.full if v is not None]):
        parts.append(text(frame.x1, 14, f"{measure.limit} {number(max(every))}", "axis-title", "end"))
    for i, (name, value, full, mark) in enumerate(zip(names, measure.values, measure.full, measure.marks, strict=True)):
        y = frame.top + i * _ROW
        parts.append(text(0, y + 11, name, "tick"))
        if full is not None:
            parts.append(_bar("track", frame.x0, y, x(full) - frame.x0))
        if value is None:
            parts.append(text(frame.x1 + 8, y + 11, UNKNOWN, "tick"))
            continue
        told = f"{name}: mean {number(value)} {measure.name}"
        told += f", highest {number(mark)}" if mark is not None else ""
        if value:
            parts.append(_bar(f"bar {measure.css}", frame.x0, y, max(x(value) - frame.x0, 0.75), told))
        if mark is not None:
            parts.append(
                f'<line class="whisker" x1="{n(x(mark))}" x2="{n(x(mark))}" y1="{n(y - 1)}" y2="{n(y + _BAR + 1)}"/>'
            )
        parts.append(text(frame.x1 + 8, y + 11, number(value), f"label {measure.css}"))
    told = ", ".join(f"{name} {number(value)}" for name, value in zip(names, measure.values, strict=True))
    title = f"{measure.title} of each GPU in {measure.name}"
    return document(frame, f"gpu-{measure.ident}-{ident}-plot", title, told + ".", "".join(parts))


def _bar(css: str, x: float, y: float, width: float, told: str = "") -> str:
    title = f"<title>{escape(told)}</title>" if told else ""
    return f'<rect class="{css}" x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(_BAR)}" rx="2">{title}</rect>'


def _row(gpu: GpuTelemetry) -> list[str]:
    memory, total = gpu.memory_used_mib.max, gpu.memory_total_mib
    rates = (gpu.pcie_tx_mb_per_s.mean, gpu.pcie_rx_mb_per_s.mean)
    return [
        str(gpu.index),
        gpu.bus_id or UNKNOWN,
        unit(gpu.power_w.mean, "W"),
        unit(gpu.power_w.max, "W"),
        unit(gpu.power_limit_w, "W"),
        share(gpu.power_w.mean, gpu.power_limit_w),
        unit(gpu.utilization_pct.mean, "%"),
        UNKNOWN if memory is None else f"{number(memory / 1024)}{f' of {number(total / 1024)}' if total else ''} GiB",
        unit(gpu.sm_clock_mhz.mean, "MHz"),
        unit(gpu.temperature_c.max, "°C"),
        UNKNOWN if rates == (None, None) else f"{number(_giga(rates[0]))} / {number(_giga(rates[1]))} GB/s",
        unit(gpu.energy_j / 1e3 if gpu.energy_j is not None else None, "kJ"),
        _reasons(gpu),
    ]


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _reasons(gpu: GpuTelemetry) -> str:
    if not gpu.throttle:
        return UNKNOWN
    real = {_plain(name): value for name, value in gpu.throttle.items() if value and _plain(name) not in HARMLESS}
    return ", ".join(f"{name.replace('-', ' ')} {100 * value:.0f} %" for name, value in real.items()) or "nothing"
