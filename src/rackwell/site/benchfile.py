# SPDX-License-Identifier: Apache-2.0
"""The benchmark sweep: ``bench/NAME.yml``."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Annotated, Any, Literal

import pydantic

from rackwell.site.validation import Declared, Real, Whole

Positive = Annotated[Whole, pydantic.Field(ge=1)]
Client = Literal["bench-client", "server", "aiperf"]
CONCURRENCY = [1, 16, 64, 256, 512, 1024]
"""What a sweep measures that does not say."""
MOST_POINTS = 2000


def _listed(value: Any) -> Any:
    """A single number is a list of one."""
    return value if isinstance(value, list) else [value]


def _once_each(values: list[int]) -> list[int]:
    if len(set(values)) != len(values):
        raise ValueError("each number may stand there once")
    return values


Numbers = Annotated[
    list[Positive],
    pydantic.Field(min_length=1),
    pydantic.AfterValidator(_once_each),
    pydantic.BeforeValidator(_listed, json_schema_input_type=Positive | list[Positive]),
]
"""One number, or several of which each is measured."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Load:
    """What a point puts on the server: tokens of each prompt and of each answer, requests in flight."""

    input_tokens: int
    output_tokens: int
    concurrency: int

    def __str__(self) -> str:
        streams = f"{self.concurrency:,} stream{'s' if self.concurrency > 1 else ''}"
        return f"{self.input_tokens:,}/{self.output_tokens:,} tokens, {streams}"


class BenchProfile(Declared):
    """One sweep: every combination of lengths, at rising numbers of concurrent requests."""

    concurrency: Numbers = pydantic.Field(
        default=CONCURRENCY, description="requests in flight, measured in this order; one number or a list"
    )
    input_tokens: Numbers = pydantic.Field(description="of each prompt, random; one number or a list")
    output_tokens: Numbers = pydantic.Field(
        description="of each answer, the server is told to ignore end-of-sequence; one number or a list"
    )
    repeats: Annotated[Whole, pydantic.Field(ge=1, le=100)] = pydantic.Field(
        default=1,
        validate_default=True,
        description="how often the whole sweep is measured; five or more give a comparison its intervals",
    )
    prompts_per_stream: Positive = pydantic.Field(default=4, description="a point sends concurrency times this")
    min_seconds: Annotated[Real, pydantic.Field(ge=0, le=86400)] = pydantic.Field(
        default=0, description="a point that is over sooner is measured once more, with as many prompts as this takes"
    )
    client: Client = pydantic.Field(
        default="bench-client",
        description="whose load generator: of the build bench-client, of the release that serves, or aiperf",
    )
    seed: Annotated[Whole, pydantic.Field(ge=0)] = pydantic.Field(
        default=1, description="base of the points' seeds; no two points, repeats or runs share prompts all the same"
    )
    warmup_requests: Annotated[Whole, pydantic.Field(ge=0)] = pydantic.Field(
        default=2, description="requests before the clock starts"
    )
    warmup_seconds: Annotated[Real, pydantic.Field(ge=0, le=3600)] = pydantic.Field(
        default=0, description="the warm-up goes on for so long at the point's own concurrency"
    )
    sample_hz: Annotated[Real, pydantic.Field(gt=0, le=50)] = pydantic.Field(
        default=5, description="GPU samples per second"
    )
    tolerate: list[Literal["bench-client-bound", "bench-throttled", "bench-gpus-shared"]] = pydantic.Field(
        default=[], description="signs of a bad measurement that are known on this machine: remarks, and points count"
    )
    point_timeout: Positive = pydantic.Field(
        default=900, validate_default=True, description="seconds that one point may take"
    )

    @pydantic.field_validator("repeats")
    @classmethod
    def _so_many(cls, value: int, info: pydantic.ValidationInfo) -> int:
        lists = [info.data.get(name, []) for name in ("concurrency", "input_tokens", "output_tokens")]
        count = math.prod([value, *map(len, lists)])
        if count > MOST_POINTS:
            raise ValueError(f"makes {count} points, and a sweep has {MOST_POINTS} at most")
        return value

    @pydantic.field_validator("point_timeout")
    @classmethod
    def _longer(cls, value: int, info: pydantic.ValidationInfo) -> int:
        if value <= info.data.get("min_seconds", 0):
            raise ValueError("must be more than min_seconds")
        return value

    def loads(self) -> list[Load]:
        """Every load once, in the order in which they are measured."""
        lengths = itertools.product(self.input_tokens, self.output_tokens)
        return [Load(*pair, streams) for pair in lengths for streams in self.concurrency]

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return max(self.input_tokens) + max(self.output_tokens)
