# SPDX-License-Identifier: Apache-2.0
"""The host's own side of a roll, as a program: what a run may ask of this host, and what the host does by itself.

    agent ask  < {"op": ..., "run": ..., "epoch": ...}      one JSON object in, one out
    agent work switch|turn|return|verify RUN [WHY]          what takes long, in a unit of its own
    agent boot                                              before the server starts
    agent watch                                             beside the server: ends one that lives on without serving

A request is answered at once; what takes long goes on in ``rackwell-rollout-work.service``, whoever listens. Exit code
0 with ``{"ok": true, ...}``, 0 with ``{"ok": false, "refused": ...}`` for a run that may not, 1 for anything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import rollout_change as changes
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import (
    Activation,
    Gate,
    GateError,
    Paths,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Client
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_preflight import Lack
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_watch import Watch, settings_in
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_follow import Follower
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_chain import ChainError
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_lock import Locks, Moment, RefusedError, now
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_wanted import Prepared, Wanted

WORK = "rackwell-rollout-work"
#: orders the verification that follows a return at boot
VERIFY = WORK + "-verify"
#: long work runs in one of these: asked for, by the deadline, once more, after a boot; the timer: ordered, not begun
_UNITS = (*(name + ".service" for name in (WORK, changes.TIMER, changes.AGAIN, VERIFY)), VERIFY + ".timer")
SCHEMA = "rackwell.rollout_host/1"
#: what a request for the short part waits for another one, and long work for other long work: a return that comes
#: late is better than one that gives up
PATIENCE_S, WORK_PATIENCE_S = 10.0, 7200.0


class Agent:
    """This host.

    Args:
        directory: of the roll's state, root's alone.
        command: how this program is called, for units and timers.
    """

    def __init__(
        self,
        directory: str,
        activation: Activation,
        system: System,
        command: list[str],
        moment: Callable[[], Moment] = now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = directory
        self.locks = Locks(directory, moment)
        self.changes = changes.Changes(directory, activation, system, command, moment)
        self.prepared = Prepared(directory)
        self._activation = activation
        self._system = system
        self._command = command
        self._moment = moment
        self._sleep = sleep

    @contextlib.contextmanager
    def _alone(self, path: str = "", patience: float = PATIENCE_S) -> Iterator[None]:
        """One request at a time; long work has a lock of its own."""
        end = time.monotonic() + patience
        while True:
            with files.exclusive(path or os.path.join(self.directory, "request.lock")) as mine:
                if mine:
                    yield
                    return
            if time.monotonic() > end:
                raise TimeoutError("another request to this host does not end")
            self._sleep(0.05)

    # -- requests ------------------------------------------------------------------------------------------------

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a run asks for, if it may.

        Raises:
            RefusedError: it may not. OSError, CommandError, ChainError, ValueError: it could not be done.
        """
        op = str(request.get("op"))
        if op == "check":
            return self.healthy()
        run = str(request["run"]) if op != "look" else str(request.get("run") or "")
        if op == "look":
            return self.look(float(request.get("wait_s") or 0), run)
        if op == "preflight":
            return {**self.look(0, run), **self.healthy()}
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        if op == "prepare":
            # it belongs to this run, and touches nothing: the host may be another one's until then
            return self._prepare(run, request["wanted"])
        with self._alone():
            if op == "lock":
                return self._lock(run, request)
            self.locks.check(run, int(request["epoch"]))
            return self._fenced(op, run, request)

    def _fenced(self, op: str, run: str, request: dict[str, Any]) -> dict[str, Any]:
        """What only the run that holds this host may ask for."""
        if op == "switch":
            return self._switch(run, request)
        if op == "turn":
            return self._turn(run, str(request["side"]))
        if op == "promote":
            return self._told(self.changes.promote(self._mine(run)))
        if op == "return":
            return self._work("return", run, str(request.get("why") or "asked for"))
        if op == "hold":
            self.changes.record("held", run=run, seconds=int(request["hold_s"]))
            return self._told(self.changes.extend(self._mine(run), int(request["hold_s"])))
        if op == "renew":
            return self._renew(run)
        if op == "unlock":
            self.changes.record("unlocked", run=run)
            self.locks.release()
            return {}
        raise ValueError(f"unknown request {op!r}")

    def _lock(self, run: str, request: dict[str, Any]) -> dict[str, Any]:
        change = self.changes.present()
        if (
            change is not None
            and change.state in changes.UNDER_WAY
            and change.run != run
            and not request.get("takeover")
        ):
            raise RefusedError(f"the change of run {change.run} is {change.state}", None)
        lock = self.locks.take(run, str(request.get("owner") or "?"), float(request.get("lease_s") or 300))
        self.changes.record("locked", run=run, epoch=lock.epoch, owner=lock.owner)
        if change is not None and change.run == run:
            self.changes.extend(change)
        return {"epoch": lock.epoch}

    def _renew(self, run: str) -> dict[str, Any]:
        """A sign of life: an open change goes on waiting. It never shortens the time that a person was given."""
        change = self.changes.present()
        if change is None or change.run != run or self._working():
            return {}
        if change.until - self._moment().uptime < change.confirm_s:
            self.changes.extend(change)
        return {}

    def _mine(self, run: str) -> changes.Change:
        change = self.changes.present()
        if change is None or change.run != run:
            raise ValueError("this run has changed nothing here")
        return change

    def _told(self, change: changes.Change) -> dict[str, Any]:
        return {"change": change.told(self._moment())}

    def _prepare(self, run: str, data: dict[str, Any]) -> dict[str, Any]:
        wanted = self.prepared.put(run, data)
        # the boot gate is asked at the switch: its verdict may be another one until then
        return _lacking(self._missing(wanted))

    def _missing(self, wanted: Wanted) -> list[Lack]:
        found: list[Lack] = wanted.lacking(self._activation.paths.root, self._activation.unit)
        check, proxy = wanted.check, self._activation.proxy
        return found + (proxy.lacking(check.host, check.port, check.api_key) if proxy else [])

    def _switch(self, run: str, request: dict[str, Any]) -> dict[str, Any]:
        change = self.changes.present()
        if change is not None and change.run == run and change.state in (changes.OPEN, changes.PROMOTED):
            return self._told(change)  # it was done, and the answer was lost
        if not self._working():
            wanted = self.prepared.get(run)
            if wanted is None:
                raise ValueError("nothing is prepared on this host for this run; begin the roll anew")
            unit = self._activation.unit
            lacking = [*self._missing(wanted), *wanted.held(unit)]
            if lacking:
                return _lacking(lacking)
            self.changes.prepare(
                run, int(request["epoch"]), wanted.snapshot(), wanted.check, int(request["confirm_s"]), wanted.fatal
            )
        return self._work("switch", run)

    def _turn(self, run: str, side: str) -> dict[str, Any]:
        change = self._mine(run)
        if side not in (changes.NEW, changes.BEFORE):
            raise ValueError(f"a side is {changes.NEW} or {changes.BEFORE}, not {side!r}")
        if change.state != changes.OPEN:
            raise ValueError(f"the change is {change.state}: {change.why}")
        if change.side == side and not self._working():
            return self._told(change)
        return self._work("turn", run, side)

    def _work(self, what: str, run: str, why: str = "") -> dict[str, Any]:
        """Begin long work in a unit of its own, which outlives whoever asked."""
        if not self._working():
            argv = [*self._command, "work", what, run, *([why] if why else [])]
            self._system.run_now(WORK, argv)
        return {"working": True}

    def _working(self) -> bool:
        """Whether long work is under way, whoever began it: a run, the deadline, or the boot."""
        if not all(state.ended for state in self._system.show_all(_UNITS)):
            return True
        if not os.path.exists(self._work_lock):
            return False
        with files.exclusive(self._work_lock) as mine:
            return not mine

    @property
    def _work_lock(self) -> str:
        return os.path.join(self.directory, "work.lock")

    def look(self, wait_s: float, run: str = "") -> dict[str, Any]:
        """What this host knows; waits for work that is under way, up to so long. Changes nothing."""
        end = time.monotonic() + wait_s
        while self._working() and time.monotonic() < end:
            self._sleep(0.2)
        moment = self._moment()
        change, lock = self.changes.present(), self.locks.present()
        present = self._activation.present()
        wanted = self.prepared.get(run) if run else None
        mine = change if change is not None and (not run or change.run == run) else None
        return {
            "schema": SCHEMA,
            "boot_id": moment.boot_id,
            "working": self._working(),
            "release": present.release,
            "serves": present.active,
            # what the run's switch would change; null: it has prepared nothing here
            "differs": None if wanted is None else wanted.differs(present),
            "lock": lock.told(moment) if lock else None,
            "ours": lock is not None and lock.run == run,
            "epoch": self.locks.epoch(),
            "change": mine.told(moment) if mine else None,
            "other_change": change.told(moment) if change and not mine else None,
            "clock": time.time(),
        }

    def healthy(self) -> dict[str, Any]:
        """Whether what was last verified still serves: what a return would lead to."""
        present = self._activation.present()
        if not present.active:
            return {"healthy": False, "why": "the server does not run"}
        release = os.path.join(self._activation.paths.root, "releases", present.release or "")
        if not os.path.isfile(os.path.join(release, "complete")):
            return {"healthy": False, "why": f"{release} is not a whole release any more: nothing could return to it"}
        if present.check is None:
            return {"healthy": False, "why": "what runs was never verified by rackwell"}
        invocation = self._system.show(self._activation.unit).invocation
        try:
            self._activation.gate.verify(present.check, invocation, 0)
        except GateError as error:
            return {"healthy": False, "why": f"{error.what}: {error.why}"}
        return {"healthy": True, "why": ""}

    # -- long work -----------------------------------------------------------------------------------------------

    def work(self, what: str, run: str, why: str = "") -> changes.Change:
        """Switch, turn, return or verify; one at a time."""
        activation = self._alone(self._activation.paths.lock, WORK_PATIENCE_S)
        with self._alone(self._work_lock, WORK_PATIENCE_S), activation:
            change = self._mine(run)
            if what == "switch":
                # a timer or a boot may have come first
                return self.changes.switch(change) if change.state == changes.SWITCHING else change
            if what == "turn":
                return self.changes.turn(change, why) if change.state == changes.OPEN else change
            if what == "verify":
                return self.changes.verify_return(change) if change.state == changes.RETURNING else change
            # marked as the one request of this moment: a promotion comes before it, or is refused after it
            with self._alone():
                change = self._mine(run)
                if why == "deadline":
                    if change.state not in changes.UNDER_WAY:
                        return change
                    why = "nobody confirmed it in time"
                change = self.changes.begin_return(change, why)
            return self.changes.go_back(change, why)

    def boot(self) -> None:
        """Before the server starts. The verification comes after it, by a timer."""
        if self.changes.boot():
            change = self.changes.present()
            if change is not None:
                self._system.run_later(VERIFY, 1, [*self._command, "work", "verify", change.run])


def _lacking(lacking: list[Lack]) -> dict[str, Any]:
    return {"lacking": [lack._asdict() for lack in lacking]}


def answer(agent: Agent, text: str) -> tuple[dict[str, Any], int]:
    """The answer to a request and the exit code."""
    try:
        request = json.loads(text)
        if not isinstance(request, dict):
            raise ValueError("a request is a JSON object")
        return {"ok": True, **agent.ask(request)}, 0
    except RefusedError as error:
        return {"ok": False, "refused": error.why, "lock": error.lock}, 0
    except (OSError, CommandError, ChainError, ValueError, TypeError, KeyError) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}, 1


class Place(NamedTuple):
    """What the agent looks after; written into its launcher when it is installed."""

    unit: str = "rackwell-inference.service"
    environment_file: str = "/etc/rackwell/inference.env"
    root: str = "/opt/rackwell"
    state: str = "/var/lib/rackwell"


def agent_of(place: Place, command: list[str]) -> Agent:
    """The agent of this machine."""
    paths = Paths("/etc/systemd/system/" + place.unit, place.environment_file, place.root, place.state)
    system = System()
    directory = os.path.join(place.state, "rollout")
    text = files.read_text(os.path.join(directory, "change.json"))
    fatal = (json.loads(text).get("fatal") or []) if text else []
    gate = Gate(place.unit, system, lambda check: Client(check.host, check.port, check.api_key), fatal=fatal)
    activation = Activation(place.unit, paths, system, gate, proxy=Follower.here())
    return Agent(directory, activation, system, command)


def main(argv: list[str], place: Place, command: list[str]) -> int:
    """The program. ``command`` is how it is called."""
    if argv == ["watch"]:
        unit = files.read_text("/etc/systemd/system/" + place.unit) or ""
        journal = os.path.join(place.state, "journal.jsonl")
        sys.stdout.write(f"{Watch(place.unit, System(), settings_in(unit), journal).run() or 'this start is over'}\n")
        return 0
    agent = agent_of(place, command)
    if argv == ["ask"]:
        told, code = answer(agent, sys.stdin.read())
        sys.stdout.write(json.dumps(told, sort_keys=True) + "\n")
        return code
    if argv[:1] == ["work"] and len(argv) in (3, 4):
        change = agent.work(*argv[1:])
        sys.stdout.write(f"{change.state}: {change.why}\n")
        return 0
    if argv == ["boot"]:
        agent.boot()
        return 0
    sys.stderr.write(__doc__ or "")
    return 2
