# SPDX-License-Identifier: Apache-2.0
"""The faults. Each case begins on a healthy fleet that serves one build, and rolls the other one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import kills
from place import CONFIRM, Place
from report import Report

QUICK = ("--skip-gate", "bench", "--reason", "the harness kills it")
#: loses of less than a fifth cannot be told from noise by one short point
GATE = ("--min-effect", "0.3")


@dataclasses.dataclass
class Case:
    """What a case works with. ``target`` is the build that is not served yet; ``stop_at``: begin nothing after it."""

    place: Place
    report: Report
    name: str
    target: str
    stop_at: float

    def command(self, *options: str) -> list[str]:
        """A roll of the target over all hosts."""
        return ["roll", self.target, "--batch", "1,2", "--confirm-within", str(CONFIRM), *options]


CASES: dict[str, Callable[[Case], None]] = {}


def case(name: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Give a case its name."""

    def add(function: Callable[[Case], None]) -> Callable[[Case], None]:
        CASES[name] = function
        return function

    return add


@case("kill-promoted")
def _(it: Case) -> None:
    """SIGKILL at every boundary of a roll over three hosts that is promoted."""
    kills.chain(it.place, it.report, "kill", it.command(*QUICK), {0}, it.stop_at, None)


@case("kill-bench")
def _(it: Case) -> None:
    """SIGKILL at every boundary of one host's roll with its measurements."""
    first = it.place.names[0]
    command = ["roll", it.target, "--limit", first, "--confirm-within", str(CONFIRM), *GATE]
    kills.chain(it.place, it.report, "kill-bench", command, {0}, it.stop_at, None)


@case("kill-returned")
def _(it: Case) -> None:
    """SIGKILL at every boundary of a roll that the second batch fails: all return."""
    it.place.behave(it.target, it.place.names[1:2], faults={"output": "garbage"})
    kills.chain(it.place, it.report, "kill-return", it.command(*QUICK), {3}, it.stop_at, None)


@case("kill-rollback")
def _(it: Case) -> None:
    """SIGKILL at every boundary of the way back from a roll that was promoted everywhere."""
    done = it.place.begin(*it.command(*QUICK))
    if done.wait() == 0:
        journal = done.journal()
        kills.chain(it.place, it.report, "kill-rollback", ["rollback"], {3, 0}, it.stop_at, journal)


@case("dead-man")
def _(it: Case) -> None:
    """SIGKILL, and nobody comes back: in the switch, when it is open, before it is promoted; a host each."""
    what = [("begin", "switch"), ("end", "switch"), ("begin", "promote")]
    moments = dict(zip(it.place.names, what, strict=False))
    kills.dead_man(it.place, it.report, it.target, moments, QUICK)
