# SPDX-License-Identifier: Apache-2.0
"""Repeats of one load taken together: their middle, and how far they lie apart. Only what counts is taken."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from rackwell.bench.result import BenchPoint, BenchResult

Of = Callable[[BenchPoint], float | None]


@dataclasses.dataclass(frozen=True)
class Load:
    """Every repeat of the same prompt and answer lengths and concurrency."""

    input_tokens: int
    output_tokens: int
    concurrency: int
    points: tuple[BenchPoint, ...]

    @property
    def key(self) -> tuple[int, int, int]:
        """As :attr:`BenchPoint.load`."""
        return self.input_tokens, self.output_tokens, self.concurrency

    @property
    def ident(self) -> str:
        """For links."""
        return f"{self.input_tokens}-{self.output_tokens}-{self.concurrency}"

    @cached_property
    def valid(self) -> list[BenchPoint]:
        """The repeats that count."""
        return [point for point in self.points if point.valid]

    def known(self, of: Of) -> list[float]:
        """What is known of the repeats that count."""
        return [value for value in map(of, self.valid) if value is not None]

    def middle(self, of: Of) -> float | None:
        """Median over the repeats that count; None when none of them knows it."""
        values = self.known(of)
        return statistics.median(values) if values else None

    def span(self, of: Of) -> tuple[float, float] | None:
        """Lowest and highest of the repeats that count; None where fewer than two know it."""
        values = self.known(of)
        return (min(values), max(values)) if len(values) > 1 else None

    @cached_property
    def chosen(self) -> BenchPoint | None:
        """The repeat that counts whose output rate is nearest to the median of them: the one shown in detail."""
        middle = self.middle(output)
        if middle is None:
            return self.valid[0] if self.valid else None
        return min(self.valid, key=lambda point: abs((output(point) or 0.0) - middle))


def output(point: BenchPoint) -> float | None:
    """Output tokens a second over the whole window."""
    return point.throughput.output_tok_per_s if point.throughput else None


def total(point: BenchPoint) -> float | None:
    """Prompt and output tokens a second; None where a foreign result does not tell of prompts."""
    rate = point.throughput
    return rate.total_tok_per_s if rate and rate.total_tok_per_s else None


def peak(point: BenchPoint) -> float | None:
    """The best second of output; None where it was not counted."""
    rate = point.throughput
    return rate.peak_output_tok_per_s or None if rate else None


def steady(point: BenchPoint) -> float | None:
    """Output tokens a second without ramp and tail."""
    return point.steady.output_tok_per_s if point.steady else None


def gpu_power(point: BenchPoint) -> float | None:
    """Mean watts of one GPU in the window."""
    seen = point.telemetry
    power = seen.mean_power_w if seen else None
    return power / len(seen.gpus) if seen and seen.gpus and power is not None else None


def gpu_limit(point: BenchPoint) -> float | None:
    """Mean of the limits that the GPUs report, in watts."""
    seen = point.telemetry
    limit = seen.power_limit_w if seen else None
    return limit / len(seen.gpus) if seen and seen.gpus and limit else None


def power_share(point: BenchPoint) -> float | None:
    """Mean power over the limits that the GPUs report, in percent."""
    power, limit = gpu_power(point), gpu_limit(point)
    return 100 * power / limit if power is not None and limit else None


def busy(point: BenchPoint) -> float | None:
    """Mean utilisation of the GPUs in percent."""
    return point.telemetry.mean_utilization_pct if point.telemetry else None


def joules(point: BenchPoint) -> float | None:
    """Energy of all GPUs for each output token."""
    return point.joules_per_output_token


def latency(name: str, quantile: str) -> Of:
    """Of one latency (such as ``ttft_ms``), one of its figures (such as ``p99``)."""

    def of(point: BenchPoint) -> float | None:
        found = getattr(point.latency, name)
        value: float | None = getattr(found, quantile) if found else None
        return value

    return of


def loads(points: Iterable[BenchPoint]) -> list[Load]:
    """Grouped, in the order of lengths and concurrency."""
    groups: dict[tuple[int, int, int], list[BenchPoint]] = {}
    for point in points:
        groups.setdefault(point.load, []).append(point)
    return [Load(*key, tuple(sorted(groups[key], key=lambda p: p.repeat))) for key in sorted(groups)]


def by_lengths(every: Sequence[Load]) -> dict[tuple[int, int], list[Load]]:
    """Loads by their prompt and answer lengths: a curve over concurrency each."""
    found: dict[tuple[int, int], list[Load]] = {}
    for load in every:
        found.setdefault((load.input_tokens, load.output_tokens), []).append(load)
    return found


def matching(every: Sequence[Load], previous: BenchResult | None) -> list[Load | None]:
    """The same load of an earlier run, where it counts there, for each load."""
    earlier = {load.key: load for load in loads(previous.points) if load.valid} if previous else {}
    return [earlier.get(load.key) for load in every]


def best(every: Sequence[Load]) -> Load | None:
    """The load with the highest output rate: the median of its repeats, not its luckiest one."""
    rated = [load for load in every if load.middle(output) is not None]
    return max(rated, key=lambda load: load.middle(output) or 0.0, default=None)


def lengths(key: tuple[int, int]) -> str:
    """Prompt and answer lengths in words."""
    return f"{key[0]:,} prompt + {key[1]:,} output tokens"
