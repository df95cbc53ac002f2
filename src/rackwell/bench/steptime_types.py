# SPDX-License-Identifier: Apache-2.0
"""What a budget of a decode step consists of."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Known = Literal["measured", "data sheet", "reported", "computed", "assumed", "unknown"]
"""``reported``: measured by somebody else, on the same kind of GPU."""
Load = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A number, how it is known, and from where."""

    value: float | None
    unit: str
    known: Known
    source: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A share of the step. ``name``: ``weights``, ``kv``, ``allreduce`` or ``rest``; ``ms`` None when not known.

    ``known`` is that of the least sure figure in it. The rest may be negative: then an assumption does not hold.
    """

    name: str
    title: str
    ms: float | None
    share: float | None
    known: Known
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class StepBudget:
    """One decode step of one load.

    Attributes:
        load: input tokens, output tokens, concurrency. batch: streams that decode together.
        step_ms: measured. floor_ms: the least that memory, and the allreduces as far as their latency is known, need
            one after another. floor_share: floor over step.
        parts: in order; they add up to the step. Without a known latency the rest holds the allreduces.
        allreduces: number a step. allreduce_bytes: of each. allreduce_us: latency at that size.
        allreduce_limit_us: what each would have to take if they explained all that memory does not.
        experts_touched: distinct experts of a layer that a step needs.
        statements: sentences for people: what bounds the step, what a change would bring.
        assumptions: what the figures rest on, each with its source.
    """

    load: Load
    batch: float
    step_ms: Figure
    floor_ms: float
    floor_share: float
    parts: list[Part]
    allreduces: int
    allreduce_bytes: float
    allreduce_us: Figure
    allreduce_limit_us: float | None
    experts_touched: float
    statements: list[str]
    assumptions: list[str]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **dataclasses.asdict(self),
            "load": dict(zip(("input_tokens", "output_tokens", "concurrency"), self.load, strict=True)),
        }
