# SPDX-License-Identifier: Apache-2.0
"""Waiting for the machines, and the checks put together for a roll."""

from __future__ import annotations

import time
from pathlib import Path

import check
from check import Wrong
from place import CONFIRM, READY, Controller, Place

#: seconds until a host that nobody confirms must be at rest: the deadline, the return's start, and what it may wait
AT_REST = CONFIRM + READY + 60


def whole(place: Place) -> list[Wrong]:
    """What is wrong right now, also in the middle of a roll; what is wrong for a moment only does not count."""
    found: list[Wrong] = []
    for _ in range(4):
        found = [one for name, seen in place.see().items() for one in check.whole(name, seen)]
        if not found:
            break
        time.sleep(0.5)
    return found


def rest(place: Place, timeout: float = AT_REST) -> float:
    """Wait until no host is in the middle of anything; seconds that it took, or the timeout."""
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        if all(check.settled(seen) and check.serves(seen) for seen in place.see().values()):
            break
        time.sleep(1)
    return time.monotonic() - began


def slots(place: Place) -> dict[str, str]:
    """The release that each host serves."""
    return {name: str(seen["release"]["slot"]) for name, seen in place.see().items()}


def over(place: Place, controller: Controller, journal: Path | None, before: dict[str, str]) -> list[Wrong]:
    """Everything that must hold once a roll is over: its command has ended by itself.

    Args:
        journal: the roll's. before: what each host served before it.
    """
    code, found = controller.process.poll(), []
    orphans = controller.orphans()
    if orphans:
        found.append(Wrong("I7", "controller", f"processes left over: {orphans}"))
    if journal is None:
        return [*found, Wrong("I3", "controller", f"there is no journal: {controller.told[-400:]}")]
    run = journal.parent.name
    result = controller.answer.get("result") or {}
    said = {host["name"]: host["result"] for host in result.get("hosts", [])}
    seen = place.see(wheels=True)
    for name, facts in seen.items():
        found += check.at_rest(name, facts, run, place.rotation(name), said.get(name) == "broken")
        found += check.finishes(name, facts, run, str(said.get(name)))
    found += check.controller(journal, code, killed=False)
    if result:
        found += check.agrees(result, code, seen, before)
    else:
        found.append(Wrong("I6", "controller", f"it printed no result: {controller.told[-400:]}"))
    return found + check.secrets(place.state, place.secret)


def converge(place: Place, build: str) -> list[Wrong]:
    """I5: one more command, with no manual step, and every host serves the build."""
    command = ("roll", build, "--batch", "3", "--skip-gate", "bench", "--reason", "the harness converges")
    again = place.begin(*command, "--confirm-within", str(CONFIRM))
    code = again.wait()
    if code != 0:
        problems = [f"{one['code']}: {one['what']} {one['why']}" for one in again.answer.get("problems", [])]
        return [Wrong("I5", "controller", f"a second roll ended with {code}: {problems or again.told[-400:]}")]
    wrong = slots(place)
    if len(set(wrong.values())) != 1:
        return [Wrong("I5", "controller", f"after a second roll the hosts differ: {wrong}")]
    return []
