# SPDX-License-Identifier: Apache-2.0
"""Takes a host's lock from a run that is dead; only with a proof that it is."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.ansible import runner, ssh
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision.progress import Progress
from rackwell.rollout.rolling import who
from rackwell.rollout.rolls import FOLDER, JOURNAL
from rackwell.rollout.steps import Outcome
from rackwell.site import declaration

SCHEMA = "rackwell.rollout_host"


@dataclasses.dataclass(frozen=True)
class Unlocked:
    """What became of a lock.

    Attributes:
        lock: as the host told of it; empty when there was none. proof: why its holder is dead.
        change: the run's change on this host, when it made one.
    """

    container: str
    run: str
    unlocked: bool
    lock: dict[str, Any]
    proof: str
    change: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        change = {name: self.change.get(name) for name in ("run", "state", "returns_in_s")} if self.change else None
        return {**dataclasses.asdict(self), "change": change}


def unlock(path: Path, name: str, run: str, progress: Progress) -> Unlocked:
    """Take the lock of `run` from container `name`.

    The host gives a new epoch with it: should the holder live all the same, its next step is refused there.

    Raises:
        RackwellError: no such container (exit 2); somebody else's lock, or a holder of which nobody knows that it is
            dead (exit 5); the host does not answer (exit 6).
    """
    site = declaration.load(path)
    container = site.container(name)
    directory = RunDirectory.create(site.state, "unlock")
    progress.log, progress.safety = directory.log, "nothing was unlocked"
    played = runner.play(
        "roll_look", site.path, directory, [container.name], listener=progress.step, extra=_asks(run), retries=0
    )
    if played.interrupted:
        raise KeyboardInterrupt
    told = next(iter(played.payloads(SCHEMA, container.name)), None)
    if told is None:
        raise RackwellError(played.problems or [_silent(name)], played.exit_code or ExitCode.UNREACHABLE)
    lock, change = told.get("lock"), told.get("change") or told.get("other_change") or {}
    if not lock:
        return Unlocked(name, run, False, {}, "", change)
    if lock["run"] != run:
        why = f"run {lock['run']} of {lock['owner']} holds it, {_age(lock)}"
        fix = f"rackwell unlock {name} --run {lock['run']}, when that one is dead"
        raise _locked(f"{name} is not held by run {run}", name, why, fix)
    proof = proof_of_death(site.state, lock)
    if not proof:
        why = f"{lock['owner']} holds it, {_age(lock)}; the lease ends in {lock['left_s']:.0f} s unless it is renewed"
        fix = "wait for that, or end the process where it runs; the host lets a new run in once the lease is over"
        raise _locked(f"nothing proves that run {run} is dead", name, why, fix)
    connection = ssh.Connection.from_dict(told["connection"])
    taken = _ask(connection, {"op": "lock", "run": run, "owner": f"unlock by {who()}", "lease_s": 60}, name)
    _ask(connection, {"op": "unlock", "run": run, "epoch": taken["epoch"]}, name)
    return Unlocked(name, run, True, dict(lock), proof, change)


def _asks(run: str) -> dict[str, Any]:
    return {"__inference_server_roll_run": run}


def proof_of_death(state: Path, lock: Mapping[str, Any]) -> str:
    """Why the holder of a lock is dead; empty when that is not known.

    The journal of a run is locked by the process that carries it out, and the kernel lets go of that when it ends. It
    proves something only on the machine of the holder.
    """
    if not lock.get("left_s"):
        return "its lease is over"
    if str(lock.get("owner", "")).rpartition("@")[2] != socket.gethostname():
        return ""
    try:
        handle = os.open(state / FOLDER / str(lock["run"]) / JOURNAL, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return ""
    finally:
        os.close(handle)
    return "no process on this machine carries it out any more"


def _age(lock: Mapping[str, Any]) -> str:
    age = lock.get("age_s")
    return "since before the machine booted" if age is None else f"last heard of {age:.0f} s ago"


def _ask(connection: ssh.Connection, request: dict[str, Any], name: str) -> dict[str, Any]:
    from rackwell.rollout.answers import answered
    from rackwell.rollout.live import LAUNCHER

    ended = answered(ssh.ask(connection, [LAUNCHER, "ask"], json.dumps(request)))
    if ended.outcome is Outcome.OK:
        return dict(ended.data)
    if ended.outcome is Outcome.REFUSED:
        raise _locked(f"{name} was taken by another run meanwhile", name, ended.why, "rackwell status")
    code = ExitCode.UNREACHABLE if ended.outcome is Outcome.UNREACHABLE else ExitCode.FAILED
    problem = Problem(
        "unlock-failed", f"{name} could not be unlocked", name, ended.why, "run it again, or wait for the lease to end"
    )
    raise RackwellError(problem, code)


def _locked(what: str, where: str, why: str, fix: str) -> RackwellError:
    return RackwellError(Problem("locked", what, where, why, fix), ExitCode.LOCKED)


def _silent(name: str) -> Problem:
    return Problem("unreachable", f"{name} told nothing", name, "", "rackwell status")
