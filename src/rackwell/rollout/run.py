# SPDX-License-Identifier: Apache-2.0
"""Carries a roll out: decides, writes down, does, writes down, until there is nothing left to do."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rackwell.errors import ExitCode
from rackwell.rollout.decide import decide
from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host, State, replay
from rackwell.rollout.steps import Ended, Outcome, Step


class Journal(Protocol):
    """Where records go: :class:`rackwell.rollout.chain.Chain`, or a list in a test."""

    records: list[dict[str, Any]]

    def append(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write one; it lasts when this returns. Raises OSError."""


class Fleet(Protocol):
    """The hosts. What a step must do is told by :class:`rackwell.rollout.steps.Step`."""

    def perform(self, step: Step, host: Host, plan: Plan) -> Ended:
        """Do one step and say how it ended; called from several threads, for one host at a time.

        Must not raise for what a host does. Everything but STAGE, LOCK and LOOK carries ``host.epoch``, which the host
        refuses when it has seen a newer one.
        """


class Workers(Protocol):
    """Does steps beside each other and gives back which one ended."""

    def begin(self, host: Host, step: Step) -> None:
        """Start a step."""

    def wait(self) -> tuple[str, Step, Ended] | None:
        """The next one that ended: host, step and how; None when somebody asked to look at the state again."""


class Threads:
    """A thread a step."""

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self._fleet, self._plan = fleet, plan
        self._ended: queue.SimpleQueue[tuple[str, Step, Ended] | None] = queue.SimpleQueue()

    def begin(self, host: Host, step: Step) -> None:
        """Start a step in a thread that does not keep the process from ending: the host goes on without it."""
        threading.Thread(target=self._do, args=(host, step), name=f"{step} {host.name}", daemon=True).start()

    def _do(self, host: Host, step: Step) -> None:
        try:
            ended = self._fleet.perform(step, host, self._plan)
        except Exception as error:  # noqa: BLE001 - a fault of ours in one thread must not be waited for for ever
            ended = Ended(Outcome.UNREACHABLE, f"{type(error).__name__}: {error}")
        self._ended.put((host.name, step, ended))

    def together(self, hosts: Sequence[Host], step: Step, do: Callable[[], Mapping[str, Ended]]) -> None:
        """Start one thing that is this step of several hosts."""

        def work() -> None:
            try:
                ended = dict(do())
            except Exception as error:  # noqa: BLE001 - as in _do
                ended = {host.name: Ended(Outcome.UNREACHABLE, f"{type(error).__name__}: {error}") for host in hosts}
            for host in hosts:
                self._ended.put((host.name, step, ended[host.name]))

        threading.Thread(target=work, name=str(step), daemon=True).start()

    def wait(self) -> tuple[str, Step, Ended] | None:
        """Wait for one; in slices, so that a signal is heard."""
        while True:
            try:
                return self._ended.get(timeout=0.5)
            except queue.Empty:
                continue

    def wake(self) -> None:
        """Have :meth:`wait` return None: the state was changed from outside."""
        self._ended.put(None)


class Roll:
    """One process's part of a roll.

    Args:
        journal: empty for a new roll (then `plan` is needed), or that of one to go on with.
        told: given each record, as soon as it is written.
        wall: seconds since the epoch, for the record only.
    """

    def __init__(
        self,
        journal: Journal,
        workers: Callable[[State], Workers],
        plan: Plan | None = None,
        told: Callable[[Mapping[str, Any], State], None] = lambda _record, _state: None,
        wall: Callable[[], float] = time.time,
        owner: Mapping[str, Any] | None = None,
    ) -> None:
        self._journal, self._told, self._wall = journal, told, wall
        self._asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._who = dict(owner or {})
        if plan is not None:
            # the state is what the records say, from the first one on
            record = self._append({"kind": "plan", "plan": plan.as_dict(), "by": self._who})
        state = replay(journal.records)
        if state is None:
            raise ValueError("the journal does not begin with a plan")
        self.state = state
        if plan is not None:
            self._told(record, state)
        else:
            self._write({"kind": "resume", "by": self._who})
        self._workers = workers(state)

    def ask(self, record: dict[str, Any]) -> None:
        """Have a ``stop`` or ``answer`` record written by the thread that carries the roll out. Any thread."""
        self._asked.put(record)
        wake = getattr(self._workers, "wake", None)
        if wake is not None:
            wake()

    def carry_out(self) -> ExitCode:
        """Go on until the end. Raises OSError when the journal cannot be written: nothing more is begun then."""
        while True:
            while not self._asked.empty():
                self._write(self._asked.get())
            following = decide(self.state)
            for name in following.revert:
                self._write({"kind": "revert", "host": name})
            for name, step in following.steps:
                self._write({"kind": "begin", "host": name, "step": str(step)})
                self._workers.begin(self.state.hosts[name], step)
            if following.end is not None:
                self._write({"kind": "finish", "exit_code": int(following.end)})
                return following.end
            if following.revert:
                continue
            done = self._workers.wait()
            if done is None:
                continue
            name, step, ended = done
            self._write(
                {
                    "kind": "end",
                    "host": name,
                    "step": str(step),
                    "outcome": str(ended.outcome),
                    "why": ended.why,
                    "data": dict(ended.data),
                }
            )

    def _append(self, record: dict[str, Any]) -> dict[str, Any]:
        return self._journal.append({"time": round(self._wall(), 3), **record})

    def _write(self, record: dict[str, Any]) -> None:
        whole = self._append(record)
        self.state.apply(whole)
        self._told(whole, self.state)
