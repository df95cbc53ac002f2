# SPDX-License-Identifier: Apache-2.0
"""What differs between two runs, and whether a difference in speed can be laid to one part."""

from __future__ import annotations

import dataclasses
from typing import Any

from rackwell.bench.result import BenchResult


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One part that differs. ``part``: such as ``flag``, ``patch``, ``driver``; ``name``: which of them."""

    part: str
    name: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """Such as ``--x 4 -> 8``."""
        return f"{self.name} {self.before} -> {self.after}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, with the text that people see."""
        return {**dataclasses.asdict(self), "text": self.text}


@dataclasses.dataclass(frozen=True, slots=True)
class Attribution:
    """What may be the cause. ``verdict``: ``cause`` (one part), ``refused`` (several, or unknown ones), ``none``."""

    verdict: str
    text: str
    changes: list[Change]
    unknown: list[str]
    suggestion: str = ""

    @property
    def cause(self) -> Change | None:
        """The only part that differs."""
        return self.changes[0] if self.verdict == "cause" else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "verdict": self.verdict,
            "text": self.text,
            "cause": self.cause.as_dict() if self.cause else None,
            "changes": [change.as_dict() for change in self.changes],
            "unknown": self.unknown,
            "suggestion": self.suggestion,
        }


def attribute(a: BenchResult, b: BenchResult) -> Attribution:
    """What differs from `a` to `b`."""
    raise NotImplementedError
