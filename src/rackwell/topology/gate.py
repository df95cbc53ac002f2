# SPDX-License-Identifier: Apache-2.0
"""``rackwell.gate/1``: the verdict of the gate that runs at each boot of a container, before its server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from rackwell.errors import Problem
from rackwell.topology.model import Part, Verdict
from rackwell.topology.report import GpuReport


class Gate(Part):
    """The verdict of one boot.

    Attributes:
        line: one line that says code, what, and what to do.
        state: what the verdict is worth now, where a module looked: passed, held, running, interrupted, other-boot,
            damaged or absent. The file in the container has none.
    """

    schema_: Literal["rackwell.gate/1"] = pydantic.Field(default="rackwell.gate/1", alias="schema")
    verdict: Verdict
    held: bool
    boot_id: str | None = None
    started: str = ""
    seconds: float | None = None
    mode: str = ""
    code: str = ""
    line: str = ""
    state: str = ""
    report: GpuReport | None = None

    @property
    def counts(self) -> bool:
        """Whether the verdict is of this boot, and whole."""
        return self.state in {"", "passed", "held"}

    @property
    def cell(self) -> str:
        """The verdict in a cell of a table."""
        if not self.counts:
            return self.state
        return f"held: {self.code or self.verdict}" if self.held else self.verdict

    def problem(self, container: str, again: str) -> Problem | None:
        """What to tell of a gate that holds its server back; None when it does not."""
        if not self.held:
            return None
        return Problem(
            "gate-held", f"the boot gate holds the server of {container} back: {self.code}", container, self.line, again
        )


def read(value: Any) -> Gate | None:
    """A gate as a module or a play gave it: the object, or its text; None when there is none that can be read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping):
        return None
    try:
        return Gate.model_validate(value)
    except pydantic.ValidationError:
        return None
