# SPDX-License-Identifier: Apache-2.0
"""The benchmark sweep: ``bench/NAME.yml``."""

from __future__ import annotations

from typing import Annotated

import pydantic

from rackwell.site.validation import Declared, Real, Whole

Positive = Annotated[Whole, pydantic.Field(ge=1)]


class BenchProfile(Declared):
    """One sweep: the same load at rising numbers of concurrent requests."""

    concurrency: Annotated[list[Positive], pydantic.Field(min_length=1)] = pydantic.Field(
        description="requests in flight, one point each"
    )
    input_tokens: Positive
    output_tokens: Positive
    prompts_per_stream: Positive = pydantic.Field(default=4, description="a point sends concurrency times this")
    seed: Annotated[Whole, pydantic.Field(ge=0)] = 1
    warmup_requests: Annotated[Whole, pydantic.Field(ge=0)] = 2
    sample_hz: Annotated[Real, pydantic.Field(gt=0, le=50)] = pydantic.Field(
        default=5, description="GPU samples per second"
    )
    point_timeout: Positive = pydantic.Field(default=900, description="seconds that one point may take")

    @pydantic.field_validator("concurrency")
    @classmethod
    def _once_each(cls, values: list[int]) -> list[int]:
        if len(set(values)) != len(values):
            raise ValueError("each number of streams may stand there once")
        return values
