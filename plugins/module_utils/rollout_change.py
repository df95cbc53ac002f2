# SPDX-License-Identifier: Apache-2.0
"""The change that a roll makes to this host, from the switch to its promotion or its return.

The host returns by itself: when the new start is not accepted, when nobody promotes it before its deadline, and when
the machine boots with a change that nobody has promoted. A controller that is gone is nothing but a promotion that does
not come.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Callable, NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import rollout_chain as chain
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import (
    Activation,
    Check,
    GateError,
    Healthy,
    Snapshot,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_lock import Moment, now

#: states of a change; the first three end by themselves in one of the others
SWITCHING, OPEN, RETURNING = "switching", "open", "returning"
PROMOTED, RETURNED, BROKEN = "promoted", "returned", "broken"
UNDER_WAY = (SWITCHING, OPEN, RETURNING)
#: what an open change serves: the release that was switched to, or for a while the one before
NEW, BEFORE = "to", "from"

#: transient timer that takes an unconfirmed change back
TIMER = "rackwell-rollout-return"
#: transient timer that takes a return up again whose process died half-way
AGAIN = "rackwell-rollout-again"
_UNFORESEEN = (OSError, CommandError, ValueError, TypeError, KeyError)


class Change(NamedTuple):
    """A change as it lies on the disk; it holds what may be secret, and is root's alone.

    Attributes:
        back: what ran before, to return to. wanted: what was switched to. check: how to tell that it serves.
        confirm_s: seconds from a healthy start to the return, unless it is promoted. why: of the state, for people.
        seconds: of the steps on this host, by name. fatal: rules that end the wait for a start, as the module has them.
        log: lines that tell why a start was not accepted. journal: that start's lines for its diagnosis, bounded.
        side: what it serves while it is open: ``to``, or ``from`` while that is measured once more.
    """

    run: str
    epoch: int
    state: str
    wanted: Snapshot
    back: Snapshot
    check: Check
    confirm_s: int
    why: str = ""
    code: str = ""
    until: float = 0.0
    boot_id: str = ""
    seconds: dict[str, float] | None = None
    fatal: list[dict[str, Any]] | None = None
    log: list[str] | None = None
    journal: list[str] | None = None
    side: str = NEW

    def as_json(self) -> str:
        """For the disk."""
        data = self._asdict()
        data["wanted"], data["back"] = json.loads(self.wanted.as_json()), json.loads(self.back.as_json())
        data["check"] = self.check._asdict()
        return json.dumps(data, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Change:
        """From the disk."""
        data = json.loads(text)
        data["wanted"] = Snapshot.from_json(json.dumps(data["wanted"]))
        data["back"] = Snapshot.from_json(json.dumps(data["back"]))
        data["check"] = Check(**data["check"])
        return cls(**{name: value for name, value in data.items() if name in cls._fields})

    def told(self, moment: Moment) -> dict[str, Any]:
        """What others may know of it: no unit, no environment, no key."""
        left = self.until - moment.uptime if self.until and self.boot_id == moment.boot_id else None
        return {
            "run": self.run,
            "state": self.state,
            "from": self.back.release,
            "to": self.wanted.release,
            "side": self.side,
            "why": self.why,
            "code": self.code,
            "returns_in_s": None if left is None or self.state != OPEN else round(max(left, 0.0), 1),
            "seconds": self.seconds or {},
            "log": self.log or [],
            "journal": self.journal or [],
        }


class Changes:
    """The change of this host and its journal.

    Args:
        directory: of the roll's state. command: the agent's command line, for timers.
    """

    def __init__(
        self,
        directory: str,
        activation: Activation,
        system: System,
        command: list[str],
        moment: Callable[[], Moment] = now,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._file = os.path.join(directory, "change.json")
        self.journal = os.path.join(directory, "journal.jsonl")
        self._activation = activation
        self._system = system
        self._command = command
        self._moment = moment
        self._wall = wall

    def present(self) -> Change | None:
        """The newest change; None when there never was one."""
        text = files.read_text(self._file)
        return Change.from_json(text) if text else None

    def record(self, event: str, **more: Any) -> None:
        """Write what happens into the journal, on the disk. Raises OSError, chain.ChainError."""
        chain.append(self.journal, {"event": event, "time": round(self._wall(), 3), **more})

    def _keep(self, change: Change) -> Change:
        files.write(self._file, change.as_json(), 0o600)
        return change

    # -- the timer -----------------------------------------------------------------------------------------------

    def _arm(self, change: Change, seconds: int) -> Change:
        """Have the host return by itself after so long; what was ordered before is forgotten. Raises CommandError."""
        command = [*self._command, "work", "return", change.run, "deadline"]
        self._disarm()
        try:
            self._system.run_later(TIMER, seconds, command)
        except CommandError:
            # the one before is stopped: none at all would keep the change open for ever
            self._disarm()
            self._system.run_later(TIMER, seconds, command)
        moment = self._moment()
        return self._keep(change._replace(until=moment.uptime + seconds, boot_id=moment.boot_id))

    def _disarm(self, timer: str = TIMER) -> None:
        try:
            self._system.systemctl("stop", timer + ".timer")
        except CommandError:
            # there is none
            return

    # -- what a run asks for -------------------------------------------------------------------------------------

    def prepare(
        self,
        run: str,
        epoch: int,
        wanted: Snapshot,
        check: Check,
        confirm_s: int,
        fatal: list[dict[str, Any]] | None = None,
    ) -> Change:
        """Write down what will be switched and what to return to. Nothing that runs is touched.

        Raises:
            OSError: no space.
        """
        back = self._activation.present()
        change = Change(run, epoch, SWITCHING, wanted, back, check, confirm_s, fatal=fatal)
        self.record("switch-asked", run=run, epoch=epoch, release_from=back.release, release_to=wanted.release)
        return self._keep(change)

    def switch(self, change: Change) -> Change:
        """Stop, switch, start and wait for ready and sane; return when that start is not accepted.

        Returns:
            The change, open, returned or broken.
        """
        begun = time.monotonic()
        try:
            # from the first moment on: a machine that hangs in the middle returns as well
            change = self._arm(change, change.check.ready_timeout + change.confirm_s)
            back = self._activation.begin(change.wanted, change.back)
            change = self._keep(change._replace(back=back))
        except (OSError, CommandError) as error:
            return self._untouched(change, f"the switch could not be prepared, and nothing was touched: {error}")
        try:
            healthy = self._activation.switch(change.wanted, change.check)
        except GateError as error:
            why = f"{error.what}: {error.why}"
            told = change._replace(code=error.code, log=error.lines, journal=error.journal)
            return self.go_back(told, why)
        except _UNFORESEEN as error:
            return self.go_back(change._replace(code="switch-error"), f"the switch failed half-way: {error}")
        change = change._replace(state=OPEN, seconds={**(change.seconds or {}), **_seconds(begun, healthy)})
        try:
            change = self._arm(change, change.confirm_s)
        except (OSError, CommandError) as error:
            return self.go_back(change._replace(code="switch-error"), f"its return could not be ordered: {error}")
        self.record("open", run=change.run, release=change.wanted.release, invocation=healthy.invocation)
        return change

    def turn(self, change: Change, side: str) -> Change:
        """Have an open change serve the other release, to be measured in turn; it stays open, and returns as before.

        Returns:
            The change, open, or returned or broken when that start was not accepted.
        """
        snapshot, check = change.wanted, change.check
        if side == BEFORE:
            snapshot, check = change.back, change.back.check or change.check
        try:
            self.record("turn", run=change.run, side=side, release=snapshot.release)
            change = self._arm(change._replace(side=side), check.ready_timeout + change.confirm_s)
            healthy = self._activation.switch(snapshot, check)
            change = self._arm(change, change.confirm_s)
            self.record("turned", run=change.run, release=snapshot.release, invocation=healthy.invocation)
        except GateError as error:
            told = change._replace(code=error.code, log=error.lines, journal=error.journal)
            return self.go_back(told, f"when it was measured in turn: {error.what}: {error.why}")
        except (*_UNFORESEEN, chain.ChainError) as error:
            return self.go_back(change._replace(code="switch-error"), f"the turn failed half-way: {error}")
        return change

    def _untouched(self, change: Change, why: str) -> Change:
        """What ran before still runs. Raises OSError, ChainError: that could not be written down."""
        change = self._keep(change._replace(state=RETURNED, why=why, code="cannot-write", until=0.0))
        self._disarm()
        self.record("not-begun", run=change.run, release=change.back.release, why=why)
        return change

    def promote(self, change: Change) -> Change:
        """Keep it: nothing returns by itself from here on.

        Raises:
            ValueError: it is not open any more.
        """
        if change.state == PROMOTED:
            return change
        if change.state != OPEN:
            raise ValueError(f"the change is {change.state}, and can no longer be promoted: {change.why}")
        if change.side != NEW:
            raise ValueError("it serves what ran before, to measure that once more")
        self.record("promoted", run=change.run, release=change.wanted.release)
        # the timer last: without it a change that could not be written down as promoted would stay open for ever
        change = self._keep(change._replace(state=PROMOTED, until=0.0))
        self._disarm()
        return change

    def extend(self, change: Change, seconds: int | None = None) -> Change:
        """Begin the deadline of an open change anew; another one for a change that waits for a person."""
        return self._arm(change, seconds or change.confirm_s) if change.state == OPEN else change

    def begin_return(self, change: Change, why: str) -> Change:
        """Say that it returns: from here on it cannot be promoted."""
        if change.state == RETURNED:
            return change
        change = change._replace(state=RETURNING, why=why)
        # a full disk, or a journal that somebody changed, must not keep a host on a release that nobody accepted
        with contextlib.suppress(OSError):
            self._keep(change)
        with contextlib.suppress(OSError, chain.ChainError):
            self.record("return-begun", run=change.run, release=change.back.release, why=why)
        return change

    def go_back(self, change: Change, why: str) -> Change:
        """Return to what ran before, and verify it; a second time does nothing that is done.

        Raises:
            OSError, ChainError: how it ended could not be written down.
        """
        if change.state == RETURNED:
            return change
        begun = time.monotonic()
        if change.state != RETURNING:
            change = self.begin_return(change, why)
        with contextlib.suppress(CommandError):
            seconds_to_try = change.check.ready_timeout + change.confirm_s
            self._system.run_later(AGAIN, seconds_to_try, [*self._command, "work", "return", change.run, "deadline"])
        try:
            _running, healthy, told = self._activation.return_to(change.back, change.check)
        except (GateError, *_UNFORESEEN) as error:
            healthy, told = None, f"the return failed half-way: {error}"
        # a host that was stopped before is left stopped: that is what it was
        good = healthy is not None or not change.back.active
        seconds = {**(change.seconds or {}), "return": round(time.monotonic() - begun, 1)}
        change = change._replace(state=RETURNED if good else BROKEN, why=f"{why}. {told}", seconds=seconds, until=0.0)
        self._keep(change)
        self._disarm()
        self._disarm(AGAIN)
        self.record(change.state, run=change.run, release=change.back.release, why=told)
        return change

    # -- at boot -------------------------------------------------------------------------------------------------

    def boot(self) -> bool:
        """Before the server starts: put back what ran before, when the machine went down with an unconfirmed change.

        Returns:
            Whether it did; :meth:`verify_return` must follow once the server had its chance to start.
        """
        change = self.present()
        if change is None or change.state not in UNDER_WAY:
            return False
        with contextlib.suppress(OSError, chain.ChainError):
            self.record("boot-return", run=change.run, state=change.state, release=change.back.release)
        self._activation.put_back(change.back)
        self._keep(change._replace(state=RETURNING, why="the machine booted with a change that nobody had confirmed"))
        return True

    def verify_return(self, change: Change) -> Change:
        """After :meth:`boot`: see whether what was put back serves."""
        if not change.back.active:
            change = change._replace(state=RETURNED)
        else:
            try:
                self._activation.start_present(change.back.check or change.check)
                change = change._replace(state=RETURNED)
            except (GateError, *_UNFORESEEN) as error:
                change = change._replace(state=BROKEN, why=f"{change.why}; {error}")
        self._keep(change)
        self.record(change.state, run=change.run, release=change.back.release, why=change.why)
        return change


def _seconds(begun: float, healthy: Healthy) -> dict[str, float]:
    whole = time.monotonic() - begun
    return {"switch": round(whole, 1), "start": healthy.ready_seconds or 0.0}
