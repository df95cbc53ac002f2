# SPDX-License-Identifier: Apache-2.0
"""SIGKILL to the controller at every record that it writes.

A record is on the disk before the step that it begins, and after the one that it ends, so the records are the step
boundaries: those of a roll are taken from its own journal as it goes, none is left out. The controller is killed at the
first record whose like (host, kind, step, outcome) has not been killed at yet; `resume` goes on, and is killed the same
way, until none is new.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import watch
from check import Wrong
from place import CONFIRM, Controller, Place
from report import Report

Key = tuple[str, ...]


def key(record: dict[str, Any]) -> Key:
    """What a record is of."""
    return tuple(str(record.get(name, "")) for name in ("host", "kind", "step", "outcome"))


def _name(one: Key) -> str:
    host, kind, step, outcome = one
    return " ".join(part for part in (kind, step, outcome, f"on {host}" if host else "") if part)


def chain(
    place: Place, report: Report, kind: str, begin: Sequence[str], codes: set[int], stop_at: float, journal: Path | None
) -> None:
    """Kill, check, resume, until every boundary was killed at once.

    Args:
        begin: the first command. codes: how it may end. journal: of a roll that exists already.
    """
    before, covered = watch.slots(place), set[Key]()
    # a roll that is over is gone on with by `resume` only once it is written down that it is to be taken back
    asked = begin[0] != "rollback"
    controller = place.begin(*begin)
    controllers: list[Controller] = [controller]
    while True:
        began = time.monotonic()
        record = controller.until(lambda one: key(one) not in covered, journal)
        if record is None or time.monotonic() > stop_at:
            break
        # the process alone, whose children go on with what they were told; or all, as when the machine loses power
        group = len(covered) % 2 == 1
        controller.kill(group)
        covered.add(key(record))
        journal = journal or controller.journal()
        assert journal is not None
        wrong = watch.whole(place)
        report.add(kind, f"{_name(key(record))} ({'group' if group else 'process'})", wrong, began)
        asked = asked or record["kind"] == "stop"
        if record["kind"] == "finish" and asked:
            break
        controller = place.begin(*(("resume", journal.parent.name) if asked else begin))
        controllers.append(controller)
    began = time.monotonic()
    if controller.process.poll() is None:
        controller.wait()
    code = controller.process.returncode
    wrong = _orphans(controllers)
    watch.rest(place)
    if code >= 0:
        wrong += watch.over(place, controller, journal, before)
        if code not in codes:
            wrong.append(Wrong("I6", "controller", f"exit {code}, not {sorted(codes)}: {controller.told[-300:]}"))
    report.add(kind, f"after {len(covered)} kills: exit {code}", wrong, began)


def _orphans(controllers: Sequence[Controller]) -> list[Wrong]:
    """What killed controllers left running must end by itself."""
    end = time.monotonic() + 120
    while time.monotonic() < end and any(one.orphans() for one in controllers):
        time.sleep(0.5)
    left = [pid for one in controllers for pid in one.orphans()]
    for one in controllers:
        one.clean()
    return [Wrong("I7", "controller", f"processes that do not end: {left}")] if left else []


def dead_man(
    place: Place, report: Report, build: str, moments: dict[str, tuple[str, str]], gate: Sequence[str]
) -> None:
    """Kill at a moment, a host each, and let nobody come back: every host returns by itself.

    Args:
        moments: container -> kind and step of the record. gate: options of the roll.
    """
    began, before = time.monotonic(), watch.slots(place)
    rolls = {}
    for name in moments:
        known = set(place.rolls())
        rolls[name] = place.begin("roll", build, "--limit", name, "--confirm-within", str(CONFIRM), *gate)
        while not (new := set(place.rolls()) - known) and rolls[name].process.poll() is None:
            time.sleep(0.01)
        rolls[name].known = new.pop() if new else None

    def kill(name: str) -> None:
        wanted = (name, *moments[name])
        record = rolls[name].until(lambda one: key(one)[:3] == wanted, rolls[name].known, whole=True)
        if record is not None:
            rolls[name].kill(group=True)

    # all at once: while one is waited for, the others go on
    with ThreadPoolExecutor(len(moments)) as pool:
        list(pool.map(kill, moments))
    took = watch.rest(place)
    after = place.see(wheels=True)
    for name, moment in moments.items():
        seen, wrong = after[name], []
        code = rolls[name].process.poll()
        if code != -9:
            wrong.append(Wrong("-", name, f"it was not killed: {code}, {rolls[name].told[-300:]}"))
        # the request to promote is on its way by then, in a process of its own: it may have come or not
        may = {before[name], place.digest(build)} if moment == ("begin", "promote") else {before[name]}
        if seen["release"]["slot"] not in may:
            wrong.append(Wrong("I1", name, f"it runs {seen['release']['slot'][:12]}, before {before[name][:12]}"))
        if took >= watch.AT_REST:
            wrong.append(Wrong("I2", name, f"it did not come to rest within {took:.0f} s: {seen['change']}"))
        # nobody undrained it, and nobody unlocked it: that is what `resume` is for
        report.add("dead-man", f"{' '.join(moment)} on {name}", wrong, began, f"at rest after {took:.0f} s")
    for name, roll in rolls.items():
        began = time.monotonic()
        again = place.begin("resume", roll.known.parent.name) if roll.known else None
        code = again.wait() if again else None
        wrong = watch.over(place, again, roll.known, before) if again else []
        if code not in (0, 3):
            wrong.append(Wrong("I5", name, f"resume ended with {code}: {again.told[-300:] if again else ''}"))
        wrong = [one for one in wrong if one.where in (name, "controller", "controller journal")]
        report.add("dead-man", f"resume of {name}'s: exit {code}", wrong, began)
        before = watch.slots(place)
