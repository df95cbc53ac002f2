# SPDX-License-Identifier: Apache-2.0
"""The one shape in which rackwell says that something is wrong, and the exit codes that go with it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any


class ExitCode(enum.IntEnum):
    """Exit codes of every command; they are part of the interface and never change their meaning."""

    DONE = 0
    FAILED = 1  # the state is safe and told
    INVALID = 2  # usage or declaration; nothing was touched
    ROLLED_BACK = 3  # a gate failed, and the return to what ran before was verified
    HELD = 4  # inconclusive, or a person has to decide
    LOCKED = 5  # another run holds the lock
    UNREACHABLE = 6
    INTERRUPTED = 130


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        code: stable kebab-case name, for programs.
        what: one line that says what is wrong.
        where: ``file:line`` of the declaration when there is one, else host, container or path.
        why: what was found against what was expected.
        fix: the command or the edit that mends it.
    """

    code: str
    what: str
    where: str = ""
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """The problem as it stands in ``--json`` output."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Problem:
        """Read what a module or a program on a host reported; absent parts are empty."""
        return cls(**{f.name: str(data.get(f.name) or "") for f in dataclasses.fields(cls)})


class RackwellError(Exception):
    """Ends a command: carries every problem found and the exit code."""

    def __init__(self, problems: Problem | Sequence[Problem], exit_code: ExitCode = ExitCode.FAILED) -> None:
        self.problems: list[Problem] = [problems] if isinstance(problems, Problem) else list(problems)
        self.exit_code = exit_code
        super().__init__("; ".join(f"{p.what} ({p.where})" if p.where else p.what for p in self.problems))
