# SPDX-License-Identifier: Apache-2.0
"""The state of a roll: what its journal says, read from the first record to the last.

Nothing else is remembered: a run that died is taken up again by reading the same records.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from rackwell.rollout.plan import Plan
from rackwell.rollout.steps import MUTATING, Change, Ended, Outcome, Step

#: how often a host that does not answer is looked for before the run goes on without it
MAX_LOOKS = 5
#: how many steps of a host may be lost before it is taken back, or given up
MAX_LOSSES = 4


class Result(enum.StrEnum):
    """What became of a host."""

    PROMOTED = "promoted"
    #: it runs again what it ran before, verified
    RETURNED = "returned"
    #: it served the release already, just as it is declared: it was not touched
    PRESENT = "present"
    #: this roll never switched it
    UNTOUCHED = "untouched"
    #: neither release was seen to serve; it stays out of rotation
    BROKEN = "broken"
    #: it does not answer; an unconfirmed change is taken back by the host itself
    LOST = "lost"


@dataclasses.dataclass
class Host:
    """One host in this roll.

    Attributes:
        staged: None until it was tried. unsure: the host has to be asked before anything else.
        open: it runs the new release unconfirmed. verdict: of the bench gate, or of whoever answered for it.
        result: None while it is under way, or was not come to. trouble: something failed here; fix: what mends it,
            where that is known.
        reverting: it was promoted and is to return, since another failed.
        relock: an earlier lock of this run may still be there, of which the epoch is lost.
        losses: steps of which nobody knows the end.
        stranded: it serves, and could not be brought back into rotation.
        parted: it may be out of rotation: a drain was begun, and no undrain was seen to end since. What a process that
            died had begun may come to it later than anything that was asked of it since.
    """

    name: str
    staged: bool | None = None
    locked: bool = False
    epoch: int = 0
    checked: bool = False
    drained: bool = False
    open: bool = False
    verdict: Outcome | None = None
    result: Result | None = None
    trouble: Outcome | None = None
    why: str = ""
    fix: str = ""
    unsure: bool = False
    looks: int = 0
    running: Step | None = None
    switched: bool = False
    reverting: bool = False
    relock: bool = False
    losses: int = 0
    stranded: bool = False
    parted: bool = False

    @property
    def begun(self) -> bool:
        """Whether this roll did something to it, or is about to."""
        return (
            self.locked
            or self.relock
            or self.open
            or self.parted
            or self.checked
            or self.unsure
            or self.result is not None
        )

    @property
    def held(self) -> bool:
        """Whether a person has to decide."""
        return self.open and self.verdict is Outcome.INCONCLUSIVE


@dataclasses.dataclass
class State:
    """The roll. ``stopping``: why no further host is begun. ``aborting``: open changes are taken back, too."""

    plan: Plan
    hosts: dict[str, Host]
    stopping: str = ""
    aborting: bool = False
    finished: int | None = None

    @property
    def trouble(self) -> bool:
        """Whether something failed anywhere. A roll that has begun to go back never goes forward again."""
        hosts = self.hosts.values()
        back = any(host.reverting or host.result is Result.RETURNED for host in hosts)
        return any(host.trouble is not None for host in hosts) or (back and not self.aborting)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take one record of the journal into account; of kinds that are not known only later versions write."""
        kind = record.get("kind")
        host = self.hosts.get(str(record.get("host", "")))
        if kind == "begin" and host is not None:
            host.running = Step(record["step"])
            host.parted = host.parted or host.running is Step.DRAIN
        elif kind == "end" and host is not None:
            host.running = None
            ended = Ended(Outcome(record["outcome"]), str(record.get("why", "")), record.get("data") or {})
            _end(host, Step(record["step"]), ended)
        elif kind == "revert" and host is not None:
            # asked first: it may have been changed since by somebody else, and is not drained for nothing
            host.reverting, host.result, host.verdict, host.unsure = True, None, None, True
        elif kind == "answer" and host is not None:
            host.verdict = Outcome(record["verdict"])
            if host.verdict is Outcome.FAIL:
                host.trouble = Outcome.FAIL
        elif kind == "stop":
            self.stopping = str(record.get("why") or "stopped")
            self.aborting = self.aborting or bool(record.get("abort"))
        elif kind == "resume":
            self._resume()
        elif kind == "finish":
            self.finished = int(record["exit_code"])

    def _resume(self) -> None:
        """Another process goes on: what ran is unknown, and every lock has to be taken anew, with a new epoch."""
        self.finished = None
        if not self.aborting:
            self.stopping = ""
        for host in self.hosts.values():
            lost = host.result is Result.LOST
            host.unsure = lost or host.running in MUTATING or (host.begun and host.result is None)
            host.relock = host.relock or host.locked or host.running is Step.LOCK or host.running is Step.UNLOCK
            host.locked, host.looks, host.losses, host.running = False, 0, 0, None
            if lost:
                host.result, host.trouble = None, None
            if host.staged is False:
                host.staged, host.trouble = None, None
            if host.result is Result.UNTOUCHED:
                host.result, host.trouble, host.checked, host.why, host.fix = None, None, False, "", ""


def _end(host: Host, step: Step, ended: Ended) -> None:
    if ended.why and ended.outcome is not Outcome.OK:
        host.why, host.fix = ended.why, str(ended.data.get("fix") or "")
    if step is Step.STAGE:
        host.staged = ended.outcome is Outcome.OK
        if not host.staged:
            host.trouble = ended.outcome
        return
    if step is Step.LOOK:
        _looked(host, ended)
        return
    if ended.outcome is Outcome.UNREACHABLE:
        host.unsure, host.losses = True, host.losses + 1
        host.relock = host.relock or host.locked or step is Step.LOCK
    elif ended.outcome is Outcome.OK:
        _done(host, step, ended)
    elif ended.outcome is Outcome.REFUSED and step is not Step.LOCK:
        # somebody took the host over; what it does is no longer this run's to say
        host.locked, host.relock, host.trouble, host.result = False, False, ended.outcome, Result.LOST
    else:
        _failed(host, step, ended)


def _done(host: Host, step: Step, ended: Ended) -> None:
    if step is Step.LOCK:
        host.locked, host.relock, host.epoch = True, False, int(ended.data.get("epoch", 0))
    elif step is Step.PREFLIGHT:
        host.checked = True
        if ended.data.get("already"):
            host.result = Result.PRESENT
    elif step is Step.DRAIN:
        host.drained = host.parted = True
    elif step is Step.SWITCH and ended.data.get("already"):
        host.result = Result.PRESENT
    elif step is Step.SWITCH:
        host.open, host.switched = True, True
    elif step is Step.BENCH:
        host.verdict = Outcome.OK
    elif step is Step.PROMOTE:
        host.open, host.result = False, Result.PROMOTED
    elif step is Step.RETURN:
        host.open, host.reverting, host.result = False, False, Result.RETURNED
    elif step is Step.UNDRAIN:
        host.drained, host.parted = False, False
    elif step is Step.UNLOCK:
        host.locked = False


def _failed(host: Host, step: Step, ended: Ended) -> None:
    """It failed on a host that answered."""
    if step is Step.BENCH:
        host.verdict = ended.outcome
        if ended.outcome is Outcome.FAIL:
            host.trouble = ended.outcome
        return
    if step is Step.UNLOCK:
        # the lease ends it; nothing that serves is touched by it
        host.locked = False
        return
    host.trouble = ended.outcome
    if step is Step.SWITCH:
        known = {Change.RETURNED: Result.RETURNED, Change.NONE: Result.UNTOUCHED}
        host.result = known.get(ended.change or Change.BROKEN, Result.BROKEN)
        host.switched = host.result is not Result.UNTOUCHED
    elif step is Step.RETURN:
        host.open, host.reverting, host.result = False, False, Result.BROKEN
    elif step is Step.PROMOTE:
        host.unsure, host.verdict = True, Outcome.FAIL
    elif step is Step.UNDRAIN:
        # it serves, and nobody sends it requests: a person has to look
        host.drained, host.parted, host.result, host.stranded = False, False, Result.BROKEN, True
    elif host.reverting:
        # it goes on as promoted; that it is not taken back is told
        host.reverting, host.relock, host.result = False, False, Result.PROMOTED
    elif host.open:
        # it returns by itself: this run cannot confirm it
        host.relock, host.result = False, Result.LOST
    else:
        host.relock, host.result = False, Result.UNTOUCHED


def _looked(host: Host, ended: Ended) -> None:
    if ended.outcome is not Outcome.OK:
        host.looks += 1
        if host.looks >= MAX_LOOKS:
            _lose(host)
        return
    host.unsure, host.looks = False, 0
    # a lock that is there is taken anew before anything else is done: its epoch may be lost
    host.relock, host.locked = bool(ended.data.get("ours")), False
    host.drained = bool(ended.data.get("drained", host.drained))
    host.parted = host.parted or host.drained
    change = ended.change or Change.NONE
    host.open = change is Change.OPEN
    host.switched = host.switched or change is not Change.NONE
    if change is Change.OPEN:
        host.result = None
        if ended.data.get("unhealthy"):
            # it is in the middle of a switch that nobody carries on
            host.verdict, host.trouble = Outcome.FAIL, host.trouble or Outcome.FAIL
            host.why = ended.why or host.why
    elif change is Change.PROMOTED:
        host.result = None if host.reverting else Result.PROMOTED
    elif change in (Change.RETURNED, Change.BROKEN):
        if not host.reverting or change is Change.BROKEN:
            host.trouble = host.trouble or Outcome.FAIL
        host.reverting, host.why = False, ended.why or host.why
        host.result = Result.RETURNED if change is Change.RETURNED else Result.BROKEN
    elif host.reverting:
        host.reverting, host.relock, host.result, host.trouble = False, False, Result.LOST, Outcome.REFUSED
        host.why = "it was changed since by somebody else"
    else:
        host.verdict, host.checked = None, False
    if host.losses >= MAX_LOSSES and host.result is None:
        # it answers, and then it does not: no roll is built on that
        host.trouble = Outcome.UNREACHABLE
        if host.open:
            host.verdict = Outcome.FAIL
        if host.losses >= 2 * MAX_LOSSES or not (host.open or host.reverting):
            _lose(host)


def _lose(host: Host) -> None:
    host.unsure, host.locked, host.relock, host.result = False, False, False, Result.LOST
    host.trouble = Outcome.UNREACHABLE


def replay(records: Iterable[Mapping[str, Any]]) -> State | None:
    """The state after these records; None when they do not begin with a plan."""
    state: State | None = None
    for record in records:
        if record.get("kind") == "plan":
            plan = Plan.from_dict(record["plan"])
            state = State(plan, {name: Host(name) for name in plan.hosts})
        elif state is not None:
            state.apply(record)
    return state
