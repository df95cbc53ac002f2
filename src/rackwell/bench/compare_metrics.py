# SPDX-License-Identifier: Apache-2.0
"""What runs are compared by: each metric's value at a point, which way is better, how noisy it is taken to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from rackwell.bench import statistics
from rackwell.bench.result import BenchPoint
from rackwell.errors import ExitCode, Problem, RackwellError

NOISE = 0.03
"""Declared standard deviation of a rate from run to run. An assumption: nothing that ships knows another machine."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A quantity of a point.

    Attributes:
        better: which way is better; None for power, where neither is.
        noise: its declared noise in multiples of a rate's.
        value: None when the point does not have it. spread: variance of its logarithm within the point.
        missing: what to say when a side does not have it.
    """

    name: str
    title: str
    unit: str
    better: Literal["more", "less", None]
    noise: float
    value: Callable[[BenchPoint], float | None]
    spread: Callable[[BenchPoint], float]
    speed: bool = True
    missing: str = "was not measured"


def select(wanted: str | Sequence[str] | None) -> list[Metric]:
    """Metrics by name, or by the beginning of it (``ttft``); all of them when None.

    Raises:
        RackwellError: there is no such metric (exit 2).
    """
    if wanted is None:
        return list(METRICS.values())
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    found: dict[str, Metric] = {}
    for name in names:
        fitting = [METRICS[name]] if name in METRICS else [m for m in METRICS.values() if m.name.startswith(name)]
        if not fitting or not name:
            raise RackwellError(
                Problem(
                    "metric-unknown", f"there is no metric {name!r}", "--metric", "", "one of: " + ", ".join(METRICS)
                ),
                ExitCode.INVALID,
            )
        found.update((metric.name, metric) for metric in fitting)
    return list(found.values())


def _rate(name: str, title: str, key: str, unit: str = "tok/s") -> Metric:
    return Metric(
        name,
        title,
        unit,
        "more",
        1.0,
        lambda p: _positive(getattr(p.throughput, key)) if p.throughput else None,
        _spread_of_rate,
    )


def _steady(name: str, title: str, key: str) -> Metric:
    return Metric(
        name,
        title,
        "tok/s",
        "more",
        1.0,
        lambda p: _positive(getattr(p.steady, key)) if p.steady else None,
        _spread_of_rate,
        missing="has no steady part",
    )


def _latency(kind: str, title: str, statistic: str, noise: float) -> Metric:
    key = f"{kind}_ms"

    def value(point: BenchPoint) -> float | None:
        found = getattr(point.latency, key)
        return _positive(getattr(found, statistic)) if found else None

    def spread(point: BenchPoint) -> float:
        samples = [v for v in point.latency_samples.get(key, []) if v > 0]
        requests = point.requests.completed if point.requests else None
        if statistic == "mean":
            return statistics.spread_of_mean(samples, requests)
        return statistics.spread_of_quantile(samples, int(statistic[1:]) / 100, requests)

    return Metric(f"{kind}_{statistic}_ms", f"{title} {statistic}", "ms", "less", noise, value, spread)


def _spread_of_rate(point: BenchPoint) -> float:
    """Of output tokens over the seconds in which the streams were busy."""
    line = point.timeline
    if line is None or not line.output_tok_per_s:
        return 0.0
    begin, end = 0.0, float("inf")
    if point.steady and point.steady.start_s is not None and point.steady.end_s is not None:
        begin, end = point.steady.start_s, point.steady.end_s
    return statistics.spread_of_rate(
        v for t, v in zip(line.t, line.output_tok_per_s, strict=False) if begin <= t <= end
    )


def _power(point: BenchPoint) -> float | None:
    seen = point.telemetry
    if seen is None or not seen.gpus or seen.mean_power_w is None:
        return None
    return _positive(seen.mean_power_w / len(seen.gpus))


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0 < value < float("inf") else None


def _none(_point: BenchPoint) -> float:
    return 0.0


def _all() -> Iterable[Metric]:
    yield _rate("output_tok_per_s", "output", "output_tok_per_s")
    yield _rate("total_tok_per_s", "total", "total_tok_per_s")
    yield _steady("steady_output_tok_per_s", "steady output", "output_tok_per_s")
    yield _steady("steady_total_tok_per_s", "steady total", "total_tok_per_s")
    for kind, title, first in (("ttft", "TTFT", 2.0), ("itl", "ITL", 1.0), ("tpot", "TPOT", 1.0), ("e2e", "E2E", 1.0)):
        # tails are made of few requests, and a first token waits for whatever prefill is under way
        for statistic, noise in (("mean", 1.0), ("p50", 1.0), ("p90", 1.5), ("p95", 2.0), ("p99", 3.0)):
            yield _latency(kind, title, statistic, first * noise)
    yield Metric(
        "power_w_per_gpu",
        "power per GPU",
        "W",
        None,
        1.0,
        _power,
        _none,
        speed=False,
        missing="has no power measured inside the window",
    )
    yield Metric(
        "joules_per_token",
        "energy per token",
        "J",
        "less",
        1.0,
        lambda p: _positive(p.joules_per_output_token),
        _none,
        speed=False,
        missing="has no energy measured inside the window",
    )


METRICS: dict[str, Metric] = {metric.name: metric for metric in _all()}
"""All of them, by name."""

SHORT = (
    "output_tok_per_s",
    "total_tok_per_s",
    "steady_output_tok_per_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "power_w_per_gpu",
    "joules_per_token",
)
"""Those that a table shows when none is asked for."""
