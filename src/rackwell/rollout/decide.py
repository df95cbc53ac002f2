# SPDX-License-Identifier: Apache-2.0
"""What a roll does next, from its state alone."""

from __future__ import annotations

import dataclasses

from rackwell.errors import ExitCode
from rackwell.rollout.state import Host, Result, State
from rackwell.rollout.steps import Outcome, Step


@dataclasses.dataclass(frozen=True)
class Next:
    """What to begin now; what to write down first; or how the roll ends once nothing runs any more.

    Attributes:
        steps: (host, step), all of them at the same time.
        revert: hosts that were promoted and are to return from now on.
        end: the exit code; None while there is something to do or to wait for.
    """

    steps: tuple[tuple[str, Step], ...] = ()
    revert: tuple[str, ...] = ()
    end: ExitCode | None = None


def decide(state: State) -> Next:
    """The next thing to do. An empty ``Next`` means: wait for what runs."""
    hosts = [state.hosts[name] for name in state.plan.hosts]
    busy = any(host.running is not None for host in hosts)
    if not any(host.begun for host in hosts):
        if state.stopping:
            return Next() if busy else Next(end=ending(state))
        unstaged = [host for host in hosts if host.staged is None]
        if unstaged:
            return Next(tuple((host.name, Step.STAGE) for host in unstaged if host.running is None))
        if busy:
            return Next()
        if any(not host.staged for host in hosts):
            return Next(end=ending(state))  # what cannot be staged stops the roll before any switch
    batch = frozenset(_batch(state))
    steps = tuple(
        (host.name, step)
        for host in hosts
        if host.running is None and (host.name in batch or host.begun)
        for step in [_step(host, state)]
        if step is not None
    )
    if state.plan.one_at_a_time:
        steps = () if busy else _alone(steps)
    if steps or busy:
        return Next(steps)
    if _backwards(state) and not _waits(state):
        # one at a time: each costs a restart, and the others go on serving
        promoted = [host.name for host in reversed(hosts) if host.result is Result.PROMOTED and host.trouble is None]
        if promoted:
            return Next(revert=(promoted[0],))
    return Next(end=ending(state))


def _alone(steps: tuple[tuple[str, Step], ...]) -> tuple[tuple[str, Step], ...]:
    """Every host of which something is unknown is asked first; then one host has all of its steps before another."""
    asked = tuple(each for each in steps if each[1] is Step.LOOK)
    return asked or steps[:1]


def _waits(state: State) -> bool:
    """Whether hosts that serve stay as they are, because another is out: lost, or neither way was seen to serve there.

    Who aborts has decided otherwise.
    """
    out = any(host.result in (Result.LOST, Result.BROKEN) for host in state.hosts.values())
    return state.plan.one_at_a_time and out and not state.aborting


def _backwards(state: State) -> bool:
    """Whether what was switched is taken back."""
    return state.aborting or (state.trouble and state.plan.on_failure == "return")


def _batch(state: State) -> tuple[str, ...]:
    """The hosts that may be begun now: the first batch that has one left, once all before it are done."""
    if state.stopping or state.trouble:
        return ()
    for batch in state.plan.batches:
        hosts = [state.hosts[name] for name in batch]
        if any(host.held for host in hosts):
            return ()
        if not all(host.result is not None and not host.locked and not host.parted for host in hosts):
            return batch
    return ()


def _step(host: Host, state: State) -> Step | None:
    if host.unsure:
        return Step.LOOK
    if host.result is Result.LOST:
        return None
    if host.open or host.reverting:
        return _open(host, state)
    if host.result is not None or state.stopping or state.trouble:
        # its end was come to, or it was begun and not switched: leave it serving and free
        if host.parted and host.result is not Result.BROKEN:
            return Step.UNDRAIN if host.locked else Step.LOCK
        if host.locked:
            return Step.UNLOCK
        return Step.LOCK if host.relock else None
    if not host.locked:
        return Step.LOCK
    if not host.checked:
        return Step.PREFLIGHT
    return Step.SWITCH if host.drained else Step.DRAIN


def _open(host: Host, state: State) -> Step | None:
    back = host.reverting or state.aborting or host.verdict is Outcome.FAIL or _backwards(state)
    if host.held and not back:
        # its lock goes: who decides may be another person
        if host.locked:
            return Step.UNLOCK
        return Step.LOCK if host.relock else None
    if not host.locked:
        return Step.LOCK
    if host.reverting and not host.drained:
        return Step.DRAIN
    if back:
        return Step.RETURN
    return Step.BENCH if host.verdict is None else Step.PROMOTE


def ending(state: State) -> ExitCode:
    """The exit code of a roll in which nothing runs and nothing can be begun."""
    hosts = list(state.hosts.values())
    results = {host.result for host in hosts}
    if results <= {Result.PROMOTED, Result.PRESENT} and not state.trouble:
        return ExitCode.DONE
    if Result.BROKEN in results:
        return ExitCode.FAILED
    if Result.LOST in results:
        taken = all(host.trouble is Outcome.REFUSED for host in hosts if host.result is Result.LOST)
        return ExitCode.LOCKED if taken else ExitCode.UNREACHABLE
    if any(host.held for host in hosts):
        return ExitCode.HELD
    if state.trouble:
        return _of_trouble(hosts)
    return ExitCode.DONE if state.aborting else ExitCode.INTERRUPTED


def _of_trouble(hosts: list[Host]) -> ExitCode:
    if any(host.result is Result.RETURNED for host in hosts):
        return ExitCode.ROLLED_BACK
    troubles = {host.trouble for host in hosts}
    if Outcome.FAIL in troubles:
        return ExitCode.FAILED
    if Outcome.REFUSED in troubles:
        return ExitCode.LOCKED
    return ExitCode.UNREACHABLE
