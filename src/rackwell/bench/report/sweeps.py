# SPDX-License-Identifier: Apache-2.0
"""The figures over concurrency, of one pair of lengths: throughput, latencies, power and energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rackwell.bench.report import loads as of
from rackwell.bench.report import svg
from rackwell.bench.report.figure import Figure, share, spanned, unit
from rackwell.bench.report.loads import Load, Of
from rackwell.bench.result import BenchPoint
from rackwell.page import scales
from rackwell.page.scales import milliseconds, number
from rackwell.page.svg import Line, Value

_QUANTILES = ("p50", "p90", "p95", "p99")
_LATENCIES = (
    (
        "ttft",
        "Time to first token",
        "From sending a request to its first token, waiting in the server's queue included. Tinted: p50 to p99.",
    ),
    ("itl", "Time between tokens", "Gap between two chunks of an answer; a chunk may hold several tokens."),
    ("e2e", "Time of a whole answer", "From sending a request to its last token; grows with the answer's length."),
)


def figures(every: Sequence[Load], earlier: Sequence[Load | None], suffix: str = "") -> list[Figure]:
    """All that can be drawn of these loads, in the page's order; nothing when none of them counts."""
    pairs = [(load, was) for load, was in zip(every, earlier, strict=True) if load.valid]
    now, old = [load for load, _was in pairs], [was for _load, was in pairs]
    if not now:
        return []
    found = [throughput(now, old, suffix), power(now, suffix), energy(now, old, suffix)]
    found += [latency(name, title, caption, now, suffix) for name, title, caption in _LATENCIES]
    return [figure for figure in found if figure is not None]


def throughput(every: Sequence[Load], earlier: Sequence[Load | None], suffix: str = "") -> Figure | None:
    """Token rates over concurrency; None when there is none."""
    output = _line("output", every, of.output)
    if not any(value is not None for value in output.values):
        return None
    lines = [_line("total", every, of.total), _line("peak", every, of.peak), _line("steady", every, of.steady), output]
    was = Line("earlier", [load.middle(of.output) if load else None for load in earlier], "s-was")
    lines = [line for line in [was, *lines] if any(value is not None for value in line.values)]
    drawing = svg.sweep(
        f"throughput{suffix}-plot",
        "Throughput over concurrency",
        _told("Output tokens per second", every, output.values),
        [load.concurrency for load in every],
        lines,
        "tokens per second",
        number,
        values_of=output,
        values_below=True,
    )
    head = ["Streams", "Output tok/s", "Steady output tok/s", "Total tok/s", "Peak output tok/s", "Requests/s"]
    columns: list[Of] = [
        of.steady,
        of.total,
        of.peak,
        lambda p: p.throughput.request_per_s if p.throughput else None,
    ]
    rows = [
        [
            f"{load.concurrency:,}",
            spanned(load.middle(of.output), load.span(of.output)),
            *(number(load.middle(column)) for column in columns),
        ]
        for load in every
    ]
    if was in lines:
        head.append("Earlier output tok/s")
        rows = [[*row, number(value)] for row, value in zip(rows, was.values, strict=True)]
    caption = "Output: answers' tokens over the whole measured time, ramp and tail included."
    shown = {line.label for line in lines}
    told = {
        "steady": "Steady: the same without ramp and tail.",
        "total": "Total counts prompt tokens, too.",
        "peak": "Peak is the best single second of output.",
        "earlier": "Earlier: output of the run that this one is held against.",
    }
    return Figure(
        f"throughput{suffix}",
        "Throughput",
        " ".join([caption, *(words for name, words in told.items() if name in shown), _repeats(every)]).strip(),
        drawing,
        head,
        rows,
    )


def latency(name: str, title: str, caption: str, every: Sequence[Load], suffix: str = "") -> Figure | None:
    """Percentiles of one latency over concurrency; None when no point tells it."""
    field = f"{name}_ms"
    found = {q: [load.middle(of.latency(field, q)) for load in every] for q in _QUANTILES}
    medians = [value for value in found["p50"] if value is not None]
    if not any(value is not None for column in found.values() for value in column):
        return None
    # whole answers take seconds: their axis says so
    long = bool(medians) and min(medians) >= 1000
    per = 1000.0 if long else 1.0
    values = {q: [None if v is None else v / per for v in column] for q, column in found.items()}
    spans = [_scaled(load.span(of.latency(field, "p50")), 1 / per) for load in every]
    main = Line("p50", values["p50"], "s-p50", spans=spans)
    drawing = svg.sweep(
        f"{name}{suffix}-plot",
        f"{title} over concurrency",
        _told(f"Median in {'seconds' if long else 'milliseconds'}", every, values["p50"]),
        [load.concurrency for load in every],
        [*(Line(q, values[q], f"s-{q}") for q in ("p99", "p95", "p90")), main],
        "seconds" if long else "milliseconds",
        lambda value: milliseconds(value * per),
        log=True,
        band=(values["p50"], values["p99"]),
        values_of=main,
        values_below=True,
    )
    columns = ("mean", *_QUANTILES, "max")
    rows = [
        [f"{load.concurrency:,}", *(milliseconds(load.middle(of.latency(field, key))) for key in columns)]
        for load in every
    ]
    return Figure(f"{name}{suffix}", title, caption, drawing, ["Streams", *columns], rows)


def power(every: Sequence[Load], suffix: str = "") -> Figure | None:
    """Watts of a GPU against its limit; None when no power was read."""
    mean = _line("mean", every, of.gpu_power, "s-power")
    if not any(value is not None for value in mean.values):
        return None
    low = [load.middle(lambda p: _extreme(p, min)) for load in every]
    high = [load.middle(lambda p: _extreme(p, max)) for load in every]
    limits = [value for load in every for value in load.known(of.gpu_limit)]
    limit = max(limits, default=None)
    drawing = svg.sweep(
        f"power{suffix}-plot",
        "Power of a GPU over concurrency",
        _told("Mean watts of a GPU", every, mean.values),
        [load.concurrency for load in every],
        [mean],
        "watts for each GPU",
        lambda value: f"{number(value)} W",
        band=(low, high),
        values_of=mean,
        limit=(limit, f"limit {number(limit)}") if limit else None,
    )
    rows = [
        [
            f"{load.concurrency:,}",
            unit(load.middle(of.gpu_power), "W"),
            unit(low[i], "W"),
            unit(high[i], "W"),
            unit(load.middle(of.gpu_limit), "W"),
            share(load.middle(of.power_share), 100),
            unit(load.middle(of.busy), "%"),
        ]
        for i, load in enumerate(every)
    ]
    caption = (
        "Mean in the measured window, over all GPUs; tinted: from the GPU that draws least to the one that draws most"
    )
    caption += ", and the limit that the GPUs report." if limit else ". No GPU told its limit."
    head = ["Streams", "Mean", "Lowest GPU", "Highest GPU", "Limit", "Of limit", "Busy"]
    return Figure(f"power{suffix}", "Power", caption, drawing, head, rows)


def energy(every: Sequence[Load], earlier: Sequence[Load | None], suffix: str = "") -> Figure | None:
    """Joules for each output token; None when no point has energy."""
    values = [load.middle(of.joules) for load in every]
    if all(value is None for value in values):
        return None
    olds = [load.middle(of.joules) if load else None for load in earlier]
    drawing = svg.bars(
        f"energy{suffix}-plot",
        "Energy for each output token",
        _told("Joules for each output token", every, values),
        [load.concurrency for load in every],
        values,
        "joules per output token",
        previous=olds,
        spans=[load.span(of.joules) for load in every],
    )
    rows = [
        [
            f"{load.concurrency:,}",
            spanned(value, load.span(of.joules)),
            unit(_kilo(load.middle(lambda p: p.telemetry.energy_j if p.telemetry else None)), "kJ"),
            number(load.middle(lambda p: p.tokens.output_received if p.tokens else None), 12),
        ]
        for load, value in zip(every, values, strict=True)
    ]
    head = ["Streams", "J per output token", "Energy of all GPUs", "Output tokens"]
    caption = "Energy of all GPU boards in the window over the output tokens; the rest of the machine is not counted."
    if any(old is not None for old in olds):
        caption += " The line across a bar is the earlier run."
        head.append("Earlier J per token")
        rows = [[*row, number(old)] for row, old in zip(rows, olds, strict=True)]
    return Figure(f"energy{suffix}", "Energy", caption, drawing, head, rows)


def overview(groups: dict[tuple[int, int], list[Load]]) -> Figure | None:
    """Output rates of every pair of lengths in one plot; None for a single one."""
    if len(groups) < 2:
        return None
    streams = sorted({load.concurrency for every in groups.values() for load in every if load.valid})
    lines = []
    for i, (key, every) in enumerate(groups.items()):
        at = {load.concurrency: load for load in every}
        values = [at[c].middle(of.output) if c in at else None for c in streams]
        spans = [at[c].span(of.output) if c in at else None for c in streams]
        if any(value is not None for value in values):
            lines.append(Line(f"{short(key[0])} + {short(key[1])}", values, f"g{i % 8}", spans=spans))
    if not lines:
        return None
    drawing = svg.sweep(
        "lengths-plot",
        "Output throughput by lengths",
        f"Output tokens per second of {len(lines)} pairs of prompt and answer lengths.",
        streams,
        lines,
        "output tokens per second",
        number,
    )
    head = ["Streams", *(line.label for line in lines)]
    rows = [[f"{c:,}", *(number(line.values[i]) for line in lines)] for i, c in enumerate(streams)]
    caption = "Each line is one pair of prompt and answer tokens (k is 1,024)."
    return Figure("lengths", "Output by lengths", caption, drawing, head, rows)


def short(tokens: int) -> str:
    """A length for a label: ``8k`` for 8,192."""
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def _line(label: str, every: Sequence[Load], which: Of, css: str = "") -> Line:
    return Line(
        label, [load.middle(which) for load in every], css or f"s-{label}", spans=[load.span(which) for load in every]
    )


def _extreme(point: BenchPoint, pick: Callable[[list[float]], float]) -> float | None:
    """Mean power of the GPU that draws least, or most."""
    means = [gpu.power_w.mean for gpu in (point.telemetry.gpus if point.telemetry else [])]
    known = [mean for mean in means if mean is not None]
    return pick(known) if known else None


def _scaled(span: tuple[float, float] | None, factor: float) -> tuple[float, float] | None:
    return None if span is None else (span[0] * factor, span[1] * factor)


def _kilo(value: float | None) -> float | None:
    return None if value is None else value / 1000


def _repeats(every: Sequence[Load]) -> str:
    most = max((len(load.valid) for load in every), default=1)
    return f"Medians of up to {most} repeats; the upright lines show their spread." if most > 1 else ""


def _told(what: str, every: Sequence[Load], values: Sequence[Value]) -> str:
    """The plot in words, for those who do not see it."""
    said = [
        f"{number(v)} at {scales.count(p.concurrency)}" for p, v in zip(every, values, strict=True) if v is not None
    ]
    return f"{what}: {', '.join(said) or 'not known'}."
