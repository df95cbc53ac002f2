# SPDX-License-Identifier: Apache-2.0
"""Which points of a sweep are still to be measured, with which prompts, and how long that will take."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

from rackwell.bench.result import BenchPoint
from rackwell.site.benchfile import BenchProfile, Load

Key = tuple[int, int, int, int]
"""Tokens of prompt and answer, streams, number of the repeat."""

NOT_BEGUN = frozenset(
    {
        "bench-client",
        "bench-directory",
        "bench-not-staged",
        "bench-option",
        "bench-run-id",
        "bench-running",
        "bench-tokenizer",
        "bench-unit",
        "bench-user",
        "bench-warmup",
        "server-not-reachable",
    }
)
"""Reasons of points whose load never began: a run with such points is not complete, and they are measured again."""
_SPARE = 1.15
"""Prompts beyond what `min_seconds` needs by the rate of the try before: no two tries are equally fast."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A point that is to be measured."""

    load: Load
    repeat: int
    num_prompts: int
    seed: int

    @property
    def key(self) -> Key:
        """What tells it from the other points of its sweep."""
        return self.load.input_tokens, self.load.output_tokens, self.load.concurrency, self.repeat

    def as_dict(self) -> dict[str, int]:
        """As the role takes it."""
        return {
            **dataclasses.asdict(self.load),
            "repeat": self.repeat,
            "num_prompts": self.num_prompts,
            "seed": self.seed,
        }


def key_of(point: BenchPoint) -> Key:
    """The key of a point that was measured."""
    return *point.load, point.repeat


def begun(point: BenchPoint) -> bool:
    """Whether the point says something of the server: one that could not even begin does not."""
    return not (point.status == "failed" and any(reason.code in NOT_BEGUN for reason in point.reasons))


def seed(base: int, salt: str, load: Load, repeat: int, num_prompts: int) -> int:
    """The seed of a point's prompts, as the collection's filter ``bench_points`` makes it: no two are alike."""
    parts = (base, salt, *dataclasses.astuple(load), repeat, num_prompts)
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def plan(sweep: BenchProfile, salt: str, done: Iterable[BenchPoint]) -> list[Planned]:
    """What is missing, in the order in which it is measured: every load, then all of them again.

    A point that was over before `min_seconds` is measured once more with more prompts, and all repeats of its load
    with as many.

    Args:
        salt: of the run. done: the points that the run has.
    """
    have = {key_of(point): point for point in done if begun(point)}
    prompts = {load: _prompts(sweep, load, have) for load in sweep.loads()}
    missing = []
    for repeat in range(1, sweep.repeats + 1):
        for load in sweep.loads():
            point = have.get((*dataclasses.astuple(load), repeat))
            if point is None or (point.num_prompts < prompts[load] and _too_short(sweep, point)):
                number = prompts[load]
                missing.append(Planned(load, repeat, number, seed(sweep.seed, salt, load, repeat, number)))
    return missing


def batch(sweep: BenchProfile, missing: Sequence[Planned]) -> list[Planned]:
    """What of it to measure next: as long as lengths are to be found out, one repeat at a time."""
    if not sweep.min_seconds or not missing:
        return list(missing)
    first = min(planned.repeat for planned in missing)
    return [planned for planned in missing if planned.repeat == first]


def _prompts(sweep: BenchProfile, load: Load, have: Mapping[Key, BenchPoint]) -> int:
    """How many requests a point of this load sends: more than the file says where it was over too soon."""
    least = load.concurrency * sweep.prompts_per_stream
    tries = [point for key, point in have.items() if key[:3] == dataclasses.astuple(load)]
    most = max((point.num_prompts for point in tries), default=least)
    if most > least:
        return most
    short = [point for point in tries if _too_short(sweep, point)]
    if not short:
        return least
    seconds = min(point.throughput.duration_s for point in short if point.throughput is not None)
    streams = math.ceil(sweep.prompts_per_stream * _SPARE * sweep.min_seconds / max(seconds, 1e-3))
    return load.concurrency * streams


def _too_short(sweep: BenchProfile, point: BenchPoint) -> bool:
    rate = point.throughput
    return bool(sweep.min_seconds) and rate is not None and 0 < rate.duration_s < sweep.min_seconds


class Clock:
    """How long points took, and from that how long the others will."""

    def __init__(self) -> None:
        self._took: dict[Load, tuple[int, float]] = {}

    def took(self, load: Load, num_prompts: int, seconds: float) -> None:
        """A point of `load` took `seconds`, warm-up included."""
        self._took[load] = (num_prompts, seconds)

    def left(self, todo: Iterable[Planned]) -> float | None:
        """Seconds that `todo` will take; None while no point is done."""
        return sum(self._one(planned) for planned in todo) if self._took else None

    def _one(self, planned: Planned) -> float:
        """By the load that is nearest: waves of requests take as long as the longest answers do."""

        def distance(load: Load) -> float:
            streams = abs(math.log2(load.concurrency / planned.load.concurrency))
            return streams + 2 * abs(math.log2(load.output_tokens / planned.load.output_tokens))

        near = min(self._took, key=distance)
        prompts, seconds = self._took[near]
        waves = (planned.num_prompts / planned.load.concurrency) / (prompts / near.concurrency)
        return seconds * waves * planned.load.output_tokens / near.output_tokens


def told(seconds: float | None) -> str:
    """A time for people: ``about 12 min left``."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s left"
    minutes = seconds / 60
    return f"about {minutes:.0f} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"
