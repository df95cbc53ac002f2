# SPDX-License-Identifier: Apache-2.0
"""The figures of the report: which numbers, drawn how, and the same numbers as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rackwell.bench.report import svg
from rackwell.bench.result import BenchPoint, BenchResult, Distribution, GpuTelemetry, Series
from rackwell.page import scales
from rackwell.page.scales import milliseconds, number
from rackwell.page.svg import Line

#: Timelines of the page hold no more points than this for each GPU; a screen shows no more.
TIMELINE_POINTS = 240
#: Fields of a GPU that are series.
SERIES = tuple(name for name, field in GpuTelemetry.model_fields.items() if field.annotation is Series)


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A plot (or several under one caption) and its numbers.

    Attributes:
        ident: for links. title, caption: what it shows. svgs: SVG texts. head, rows: the table behind it.
        wide: takes the whole width of the page. legend: (class, label, value) of each line where labels do not fit.
    """

    ident: str
    title: str
    caption: str
    svgs: list[str]
    head: list[str]
    rows: list[list[str]]
    wide: bool = False
    legend: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)


def matching(points: Sequence[BenchPoint], previous: BenchResult | None) -> list[BenchPoint | None]:
    """The valid point of the earlier run with the same load, for each point."""
    earlier = {
        (p.concurrency, p.input_tokens, p.output_tokens): p for p in (previous.points if previous else []) if p.valid
    }
    return [earlier.get((p.concurrency, p.input_tokens, p.output_tokens)) for p in points]


def throughput(points: Sequence[BenchPoint], previous: Sequence[BenchPoint | None]) -> Figure:
    """Token rates over concurrency."""

    def rates(source: Sequence[BenchPoint | None], key: str) -> list[float | None]:
        return [getattr(p.throughput, key) if p and p.throughput else None for p in source]

    output, total, peak = (rates(points, f"{key}_tok_per_s") for key in ("output", "total", "peak_output"))
    was = rates(previous, "output_tok_per_s")
    main = Line("output", output, "s-output")
    lines = [Line("total", total, "s-total"), Line("peak", peak, "s-peak"), main]
    if any(value is not None for value in was):
        lines.insert(0, Line("earlier", was, "s-was"))
    drawing = svg.sweep(
        "throughput-plot",
        "Throughput over concurrency",
        _told("Output tokens per second", points, output),
        [p.concurrency for p in points],
        lines,
        "tokens per second",
        number,
        values_of=main,
    )
    head = ["Streams", "Output tok/s", "Total tok/s", "Peak output tok/s", "Requests/s"]
    rows = [
        [
            f"{p.concurrency:,}",
            *(number(v) for v in (output[i], total[i], peak[i])),
            number(p.throughput.request_per_s if p.throughput else None),
        ]
        for i, p in enumerate(points)
    ]
    if any(value is not None for value in was):
        head.append("Earlier output tok/s")
        rows = [[*row, number(was[i])] for i, row in enumerate(rows)]
    return Figure(
        "throughput",
        "Throughput",
        "Tokens over the whole measured time, ramp and tail included. Total counts prompt and output tokens; "
        "peak is the best single second of output.",
        [drawing],
        head,
        rows,
    )


def latency(
    ident: str, title: str, caption: str, points: Sequence[BenchPoint], of: Callable[[BenchPoint], Distribution | None]
) -> Figure:
    """Percentiles of one latency over concurrency."""
    found = [of(point) for point in points]
    names = ("p50", "p90", "p95", "p99")
    values = {name: [getattr(d, name) if d else None for d in found] for name in names}
    main = Line("p50", values["p50"], "s-p50")
    drawing = svg.sweep(
        f"{ident}-plot",
        f"{title} over concurrency",
        _told("Median in milliseconds", points, values["p50"]),
        [p.concurrency for p in points],
        [*(Line(name, values[name], f"s-{name}") for name in ("p99", "p95", "p90")), main],
        "milliseconds",
        milliseconds,
        log=True,
        band=(values["p50"], values["p99"]),
        values_of=main,
        values_below=True,
    )
    head = ["Streams", "mean", *names, "max"]
    rows = [
        [f"{p.concurrency:,}", *(milliseconds(getattr(d, key) if d else None) for key in ("mean", *names, "max"))]
        for p, d in zip(points, found, strict=True)
    ]
    return Figure(ident, title, caption, [drawing], head, rows)


def energy(points: Sequence[BenchPoint], previous: Sequence[BenchPoint | None]) -> Figure | None:
    """Joules for each output token; None when no point has energy."""
    values = [p.joules_per_output_token for p in points]
    if all(value is None for value in values):
        return None
    olds = [p.joules_per_output_token if p else None for p in previous]
    drawing = svg.bars(
        "energy-plot",
        "Energy for each output token",
        _told("Joules for each output token", points, values),
        [p.concurrency for p in points],
        values,
        "joules per output token",
        previous=olds,
    )
    head = ["Streams", "J per output token", "Energy", "Mean power", "Limit", "Share of limit", "Utilisation"]
    rows = []
    for point, value in zip(points, values, strict=True):
        seen = point.telemetry
        power, limit = (seen.mean_power_w, seen.power_limit_w) if seen else (None, None)
        rows.append(
            [
                f"{point.concurrency:,}",
                number(value),
                _unit(seen.energy_j / 1e3 if seen and seen.energy_j is not None else None, "kJ"),
                _unit(power, "W"),
                _unit(limit, "W"),
                share(power, limit),
                _unit(seen.mean_utilization_pct if seen else None, "%"),
            ]
        )
    caption = (
        "Energy of all GPU boards inside the measured window over the output tokens received; "
        "the rest of the machine is not counted."
    )
    if any(old is not None for old in olds):
        caption += " The line across a bar is the earlier run."
    return Figure("energy", "Energy", caption, [drawing], head, rows)


def window(point: BenchPoint) -> Figure | None:
    """Power and utilisation of each GPU over the window of one point; None when there is no telemetry."""
    seen = point.telemetry
    if seen is None or not seen.gpus or not seen.t:
        return None
    duration = seen.window.duration_s if seen.window else seen.t[-1]
    times, every = _thin(seen.t)

    def lines(of: Callable[[GpuTelemetry], Sequence[float | None]]) -> list[Line]:
        return [
            Line(f"GPU {g.index}", _pick(of(g), every), f"g g{i % 8}", quiet=True, marks=False)
            for i, g in enumerate(seen.gpus)
        ]

    limits = sorted({g.power_limit_w for g in seen.gpus if g.power_limit_w})
    most = max([g.power_w.max or 0.0 for g in seen.gpus], default=0.0)
    where = scales.count(point.concurrency)
    power = svg.timeline(
        f"power-{point.concurrency}-plot",
        f"Power of each GPU at {where}",
        f"Mean over all GPUs {number(_average(seen.gpus, lambda g: g.power_w.mean))} W in {number(duration)} s.",
        times,
        lines(lambda g: g.power_w.series),
        "watts for each GPU",
        max([most * 1.05, *limits]),
        duration=duration,
        limit=(limits[0], f"limit {number(limits[0])} W") if limits else None,
        height=250,
    )
    use = svg.timeline(
        f"use-{point.concurrency}-plot",
        f"Utilisation of each GPU at {where}",
        f"Mean over all GPUs {number(seen.mean_utilization_pct)} percent.",
        times,
        lines(lambda g: g.utilization_pct.series),
        "utilisation in percent",
        100,
        duration=duration,
        height=170,
        x_title="time in the measured window",
    )
    return Figure(
        f"window-{point.concurrency}",
        where,
        f"{seen.samples:,} samples at {number(seen.hz, 2)} Hz in {number(duration)} s; "
        "the limit is the one the GPUs report.",
        [power, use],
        ["GPU", "Bus", "Mean", "Highest", "Limit", "Share", "Utilisation", "Memory", "Hottest", "Energy"],
        [_gpu_row(gpu) for gpu in seen.gpus],
        wide=True,
        legend=[(f"g{i % 8}", str(g.index), f"{number(g.power_w.mean)} W") for i, g in enumerate(seen.gpus)],
    )


def share(value: float | None, of: float | None) -> str:
    """A percentage, or a dash."""
    return scales.UNKNOWN if value is None or not of else f"{100 * value / of:.1f} %"


def _gpu_row(gpu: GpuTelemetry) -> list[str]:
    return [
        str(gpu.index),
        gpu.bus_id or scales.UNKNOWN,
        _unit(gpu.power_w.mean, "W"),
        _unit(gpu.power_w.max, "W"),
        _unit(gpu.power_limit_w, "W"),
        share(gpu.power_w.mean, gpu.power_limit_w),
        _unit(gpu.utilization_pct.mean, "%"),
        _unit(gpu.memory_used_mib.max / 1024 if gpu.memory_used_mib.max is not None else None, "GiB"),
        _unit(gpu.temperature_c.max, "°C"),
        _unit(gpu.energy_j / 1e3 if gpu.energy_j is not None else None, "kJ"),
    ]


def _unit(value: float | None, unit: str) -> str:
    return scales.UNKNOWN if value is None else f"{number(value)} {unit}"


def _average(gpus: Sequence[GpuTelemetry], of: Callable[[GpuTelemetry], float | None]) -> float | None:
    known = [value for value in map(of, gpus) if value is not None]
    return sum(known) / len(known) if known else None


def _told(what: str, points: Sequence[BenchPoint], values: Sequence[float | None]) -> str:
    """The plot in words, for those who do not see it."""
    said = [
        f"{number(v)} at {scales.count(p.concurrency)}" for p, v in zip(points, values, strict=True) if v is not None
    ]
    return f"{what}: {', '.join(said) or 'not known'}."


def thinned(result: BenchResult) -> BenchResult:
    """The result with its series as coarse as they are drawn; the stored one keeps them finer."""

    def coarse(series: Series, every: int) -> Series:
        return series.model_copy(
            update={"series": [None if v is None else round(v, 1) for v in _pick(series.series, every)]}
        )

    points = []
    for point in result.points:
        seen = point.telemetry
        if seen is not None:
            times, every = _thin(seen.t)
            gpus = [
                gpu.model_copy(update={key: coarse(getattr(gpu, key), every) for key in SERIES}) for gpu in seen.gpus
            ]
            seen = seen.model_copy(update={"t": [round(t, 2) for t in times], "gpus": gpus})
        points.append(point.model_copy(update={"telemetry": seen}))
    return result.model_copy(update={"points": points})


def _thin(times: Sequence[float]) -> tuple[list[float], int]:
    """Middles of groups of samples, and the size of a group."""
    every = max(1, -(-len(times) // TIMELINE_POINTS))
    groups = [times[i : i + every] for i in range(0, len(times), every)]
    return [sum(group) / len(group) for group in groups], every


def _pick(values: Sequence[float | None], every: int) -> list[float | None]:
    """Means of the same groups."""
    found: list[float | None] = []
    for i in range(0, len(values), every):
        known = [value for value in values[i : i + every] if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found
