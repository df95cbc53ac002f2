# SPDX-License-Identifier: Apache-2.0
"""What the lint says."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rackwell.errors import Problem

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        code: ``RW###``.
        places: every ``file:line`` that it is about, `where` first; a comment at any of them can ignore it.
        ignored: the reason of the comment that ignores it; empty when none does.
    """

    code: str
    severity: Severity
    what: str
    where: str
    why: str
    fix: str
    places: tuple[str, ...] = ()
    ignored: str = ""

    @property
    def problem(self) -> Problem:
        """It in the one shape of everything that is wrong."""
        return Problem(self.code, self.what, self.where, self.why, self.fix)

    def as_dict(self) -> dict[str, str]:
        """It as it stands in ``--json`` output."""
        return {"severity": self.severity, **self.problem.as_dict(), "ignored": self.ignored}
