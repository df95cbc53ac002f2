# SPDX-License-Identifier: Apache-2.0
"""How sure a ratio of two noisy measurements is: a blocked bootstrap that knows little data when it sees it.

A *block* is what varies as one: a run, or a repeat within a run. Blocks are drawn, never the requests of different
runs mixed. With few blocks their spread says little, so a declared noise counts as :data:`PRIOR` further deviations;
where the spread seen is larger than the declared noise, the spread seen counts alone. All values are logarithms: a
ratio and its inverse are then equally far from 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import statistics
from collections.abc import Iterable, Sequence

PRIOR = 8
"""As how many seen deviations the declared noise counts."""
REPLICATES = 2000
SEED = 20261130
_GRID = [statistics.NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One value of one block.

    Attributes:
        value: natural logarithm. spread: variance of it as known from within the block (requests, seconds); 0: unknown.
    """

    value: float
    spread: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Candidate over baseline: point estimate and the bounds of its interval. ``sd``: of one block, in shares."""

    ratio: float
    low: float
    high: float
    sd: float
    blocks: tuple[int, int]

    def needed(self, effect: float) -> int:
        """Blocks a side after which an interval is about `effect` wide to each side."""
        return max(2, math.ceil(2 * (2.0 * self.sd / math.log1p(effect)) ** 2))


Side = Sequence[Sequence[Block]]
"""Groups of blocks. A side is one group; where it was measured before and after the other side, it is two: each
counts the same, so that a drift in between cancels, and spread is taken within the groups."""


def interval(
    a: Side,
    b: Side,
    *,
    noise: float,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = SEED,
) -> Interval:
    """The ratio of `b` to `a` and its two-sided interval.

    Args:
        noise: declared standard deviation of one block, as a share (0.03 for 3 %).
        replicates: of the bootstrap; with the same seed the same result.

    Raises:
        ValueError: a side has no block.
    """
    a, b = [group for group in a if group], [group for group in b if group]
    if not a or not b:
        raise ValueError("a side without a measurement")
    estimate = _mean(b) - _mean(a)
    pool, variance, freedom = _deviations([*a, *b], noise)
    sizes = tuple(map(len, a)), tuple(map(len, b))
    drawn = _draws(pool, freedom, *sizes, replicates, seed) if freedom > PRIOR else _declared(*sizes, replicates, seed)
    tail, root = (1 - confidence) / 2, math.sqrt(variance)
    low, high = quantile(drawn, tail) * root, quantile(drawn, 1 - tail) * root
    return Interval(
        math.exp(estimate),
        math.exp(estimate - high),
        math.exp(estimate - low),
        math.sqrt(variance),
        (sum(map(len, a)), sum(map(len, b))),
    )


def _mean(side: Side) -> float:
    return statistics.fmean(statistics.fmean(block.value for block in group) for group in side)


def _deviations(groups: Side, noise: float) -> tuple[list[tuple[float, float]], float, float]:
    """The pool of deviations as (value, weight), the variance that they are scaled to, and its degrees of freedom."""
    blocks = [block for group in groups for block in group]
    prior = noise * noise + statistics.fmean(block.spread for block in blocks)
    seen: list[float] = []
    freedom = 0
    for group in groups:
        if len(group) > 1:
            middle = statistics.fmean(block.value for block in group)
            # a mean that is taken from the same values is too near to them
            widen = math.sqrt(len(group) / (len(group) - 1))
            seen += [(block.value - middle) * widen for block in group]
            freedom += len(group) - 1
    observed = statistics.fmean(d * d for d in seen) if seen else 0.0
    variance = (PRIOR * prior + freedom * observed) / (PRIOR + freedom)
    if freedom >= 2:
        variance = max(variance, observed)
    # in units of their own standard deviation
    root, pool = math.sqrt(prior), [(0.0, 1.0)]
    if prior > 0 or observed > 0:
        pool = [(root * z, PRIOR / len(_GRID)) for z in _GRID] + [(d, freedom / len(seen)) for d in seen]
        raw = math.sqrt(sum(weight * d * d for d, weight in pool) / sum(weight for _, weight in pool))
        pool = [(d / raw, weight) for d, weight in pool]
    return pool, variance, PRIOR + freedom


@functools.lru_cache(maxsize=64)
def _declared(sizes_a: tuple[int, ...], sizes_b: tuple[int, ...], replicates: int, seed: int) -> Sequence[float]:
    """Draws where nothing but the declared noise is known: the same for every metric."""
    return _draws([(z, 1.0) for z in _GRID], PRIOR, sizes_a, sizes_b, replicates, seed)


def _draws(
    pool: list[tuple[float, float]],
    freedom: float,
    sizes_a: tuple[int, ...],
    sizes_b: tuple[int, ...],
    replicates: int,
    seed: int,
) -> list[float]:
    """Deviations of the estimate, sorted: what it may be off by, in standard deviations of a block."""
    table = _table(pool)
    rng = random.Random(seed)  # noqa: S311 - the same figures each time
    found = [0.0] * replicates
    for sign, sizes in ((-1.0, sizes_a), (1.0, sizes_b)):
        for size in sizes:
            drawn = map(table.__getitem__, rng.randbytes(size * replicates))
            share = sign / (size * len(sizes))
            sums = map(sum, zip(*[drawn] * size, strict=True))
            found = [value + share * total for value, total in zip(found, sums, strict=True)]
    return sorted(value * factor for value, factor in zip(found, _unsure(freedom, replicates, seed), strict=True))


def _table(pool: list[tuple[float, float]]) -> list[float]:
    """256 equally likely values of the pool, of mean square 1: a byte draws one."""
    ordered = sorted(pool)
    step = sum(weight for _, weight in ordered) / 256
    table: list[float] = []
    reached, place = ordered[0][1], 0
    for i in range(256):
        while reached < (i + 0.5) * step and place < len(ordered) - 1:
            place += 1
            reached += ordered[place][1]
        table.append(ordered[place][0])
    raw = math.sqrt(statistics.fmean(d * d for d in table))
    return [d / raw for d in table] if raw > 0 else table


@functools.lru_cache(maxsize=64)
def _unsure(freedom: float, replicates: int, seed: int) -> tuple[float, ...]:
    """Factors for a variance that is itself estimated, as in Student's distribution."""
    rng = random.Random(seed + 1)  # noqa: S311
    half, scale = freedom / 2, 2 / freedom
    return tuple(1 / math.sqrt(rng.gammavariate(half, scale)) for _ in range(replicates))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread_of_quantile(samples: Sequence[float], share: float, independent: float | None = None) -> float:
    """Variance of the logarithm of a quantile of requests.

    Their ranks are binomial: the quantile lies between its neighbours one standard deviation of the rank away.

    Args:
        samples: of the requests, possibly thinned. independent: number of requests behind them; the samples' own when
            None. Gaps within one request are no further requests.
    """
    count = independent or len(samples)
    if len(samples) < 5 or count < 2:
        return 0.0
    ordered = sorted(samples)
    apart = math.sqrt(share * (1 - share) / count)
    low, high = quantile(ordered, max(share - apart, 0.0)), quantile(ordered, min(share + apart, 1.0))
    if low <= 0:
        return 0.0
    # at the end of the scale one neighbour is missing
    width = min(share + apart, 1.0) - max(share - apart, 0.0)
    return (math.log(high / low) * apart / width) ** 2


def spread_of_mean(samples: Sequence[float], independent: float | None = None) -> float:
    """Variance of the logarithm of a mean of requests."""
    if len(samples) < 5:
        return 0.0
    middle = statistics.fmean(samples)
    return statistics.variance(samples) / (independent or len(samples)) / (middle * middle) if middle > 0 else 0.0


def spread_of_rate(per_second: Iterable[float | None], batches: int = 10) -> float:
    """Variance of the logarithm of a mean rate, from the means of consecutive batches of its seconds."""
    known = [value for value in per_second if value is not None]
    size = len(known) // batches
    if size < 1:
        return 0.0
    means = [statistics.fmean(known[i * size : (i + 1) * size]) for i in range(batches)]
    middle = statistics.fmean(means)
    return statistics.variance(means) / batches / (middle * middle) if middle > 0 else 0.0
