# SPDX-License-Identifier: Apache-2.0
"""Where the time of a decode step goes: what memory and allreduces need at least, against what was measured."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rackwell.bench.result import BenchResult

Known = Literal["measured", "data sheet", "computed", "assumed", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A number, how it is known, and from where."""

    value: float | None
    unit: str
    known: Known
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A share of the step. ``name``: ``weights``, ``kv``, ``allreduce`` or ``rest``; ``ms`` None when not known."""

    name: str
    title: str
    ms: float | None
    share: float | None
    known: Known
    text: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class StepBudget:
    """One decode step of one load.

    Attributes:
        load: input tokens, output tokens, concurrency. batch: streams that decode together.
        step_ms: measured. floor_ms: the least that memory and (known) allreduces need one after another.
        floor_share: floor over step. parts: in order; they add up to the step where all are known.
        allreduces: number a step. allreduce_bytes: of each. allreduce_us: measured latency at that size.
        allreduce_limit_us: what each would have to take if it explained all that memory does not.
        statements: sentences for people: what bounds the step, what a change would bring.
        assumptions: what the figures rest on, each with its source.
    """

    load: tuple[int, int, int]
    batch: float
    step_ms: Figure
    floor_ms: float
    floor_share: float
    parts: list[Part]
    allreduces: int
    allreduce_bytes: float
    allreduce_us: Figure
    allreduce_limit_us: float | None
    statements: list[str]
    assumptions: list[str]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **dataclasses.asdict(self),
            "load": dict(zip(("input_tokens", "output_tokens", "concurrency"), self.load, strict=True)),
        }


def explain(result: BenchResult) -> list[StepBudget] | None:
    """A budget for each load; None when the model, the GPU or the step time is not known."""
    raise NotImplementedError


def text(budgets: list[StepBudget]) -> str:
    """For a terminal or a ticket."""
    raise NotImplementedError
