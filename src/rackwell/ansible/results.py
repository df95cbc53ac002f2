# SPDX-License-Identifier: Apache-2.0
"""What came of a play: counts per host, what the modules reported, what went wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rackwell.errors import ExitCode, Problem


@dataclasses.dataclass
class HostCounts:
    """Tasks of one host by outcome."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0

    def as_dict(self) -> dict[str, int]:
        """For ``--json``."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Reported:
    """A ``rackwell_result`` of a module."""

    host: str
    role: str
    task: str
    changed: bool
    payload: dict[str, Any]

    @property
    def schema(self) -> str:
        """What the payload is: ``rackwell.<thing>/1``."""
        return str(self.payload.get("schema", ""))


@dataclasses.dataclass(frozen=True)
class Change:
    """A task that changed something, or would in check mode.

    Attributes:
        diff: unified diff when the module gave one and it was asked for; else empty.
    """

    host: str
    role: str
    task: str
    diff: str = ""

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A task that failed, or a host that could not be reached.

    Attributes:
        journal: what the start of a server that failed wrote, for its diagnosis.
    """

    host: str
    role: str
    task: str
    problems: tuple[Problem, ...]
    unreachable: bool = False
    rolled_back: bool = False
    rollback_verified: bool = False
    held: bool = False
    locked: bool = False
    invalid: bool = False
    journal: tuple[str, ...] = ()


@dataclasses.dataclass
class PlayResult:
    """One run of a playbook.

    Attributes:
        hosts: host -> counts.
        failures: what ended a host's play. tolerated: failures that the play itself rescued.
        running: (host, step) that were in progress when the run was interrupted.
        seconds: wall-clock time.
    """

    playbook: str
    log: Path
    hosts: dict[str, HostCounts] = dataclasses.field(default_factory=dict)
    results: list[Reported] = dataclasses.field(default_factory=list)
    changes: list[Change] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    tolerated: list[Failure] = dataclasses.field(default_factory=list)
    running: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    last: tuple[str, str] | None = None
    interrupted: bool = False
    rc: int = 0
    seconds: float = 0.0

    @property
    def problems(self) -> list[Problem]:
        """Every problem of every failure, once each."""
        return list(dict.fromkeys(problem for failure in self.failures for problem in failure.problems))

    @property
    def changed(self) -> int:
        """Changed tasks of all hosts."""
        return sum(counts.changed for counts in self.hosts.values())

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that this result stands for; the gravest of several."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        failed = [failure for failure in self.failures if not failure.unreachable]
        if failed:
            return _of_failures(failed)
        if self.failures:
            return ExitCode.UNREACHABLE
        return ExitCode.DONE if self.rc == 0 else ExitCode.FAILED

    def payloads(self, schema: str, host: str | None = None) -> list[dict[str, Any]]:
        """Payloads by schema name without its version (``rackwell.cuda``), in order."""
        return [
            reported.payload
            for reported in self.results
            if reported.schema.partition("/")[0] == schema and host in {None, reported.host}
        ]


def _of_failures(failed: list[Failure]) -> ExitCode:
    if all(failure.invalid for failure in failed):
        return ExitCode.INVALID
    if all(failure.rolled_back and failure.rollback_verified for failure in failed):
        return ExitCode.ROLLED_BACK
    if all(failure.held for failure in failed):
        return ExitCode.HELD
    if all(failure.locked for failure in failed):
        return ExitCode.LOCKED
    return ExitCode.FAILED
