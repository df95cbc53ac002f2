# SPDX-License-Identifier: Apache-2.0
"""A simulated fleet for the model test: hosts that behave as the real ones must, with faults, on their own clock.

Each host knows its lock (run, epoch, lease), the highest epoch it has seen, its change, and its dead-man deadline, and
does nothing that these forbid. What a dead process had begun arrives later all the same.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from rackwell.rollout.plan import Plan
from rackwell.rollout.state import Host, State
from rackwell.rollout.steps import Change, Ended, Outcome, Step

LEASE = 40
DEADLINE = 60
OLD, NEW = "old", "new"


class CrashError(Exception):
    """The controller is killed here."""


@dataclasses.dataclass
class Machine:
    """What one host really is.

    Attributes:
        switch: how the new release behaves here: ``ok``, ``fail`` (its start is not accepted), or ``broken`` (and the
            old one is damaged). bench: verdict of the gate here.
        down_until: it cannot be reached before that time. flaky: chance that the answer to a step is lost.
    """

    name: str
    stage: Outcome = Outcome.OK
    preflight: Outcome = Outcome.OK
    switch: str = "ok"
    bench: Outcome = Outcome.OK
    returns: bool = True
    flaky: float = 0.0
    down_until: int = 0
    #: it serves the new release already
    present: bool = False
    active: str = OLD
    healthy: bool = True
    staged: bool = False
    drained: bool = False
    seen: int = 0
    lock: tuple[str, int, float] | None = None
    change: Change = Change.NONE
    deadline: float = 0.0
    benched: int = 0

    def __post_init__(self) -> None:
        if self.present:
            self.active = NEW

    def tick(self, now: float) -> None:
        """The dead-man's timer is the host's own."""
        if self.change is Change.OPEN and now > self.deadline:
            self.go_back()

    def go_back(self) -> None:
        """Return to what ran before, and see whether it serves."""
        self.active = OLD
        self.healthy = self.returns
        self.change = Change.RETURNED if self.returns else Change.BROKEN


class Simulation:
    """All hosts, and :class:`rackwell.rollout.run.Workers` over them in one thread.

    Args:
        crash_after: the process dies before the n-th time that it waits; None never. `budget` of it is shared by all
            processes of one roll.
    """

    def __init__(self, machines: list[Machine], dice: random.Random) -> None:
        self.machines = {machine.name: machine for machine in machines}
        self.dice = dice
        self.now = 0.0
        self.epochs: list[tuple[str, int, Step]] = []
        self.late: list[tuple[str, Step, int, str]] = []
        #: locks that a dead process took with its last breath: nobody knows of them, and their lease ends them
        self.orphans: set[tuple[str, int]] = set()
        #: hosts of which a person decided
        self.answered: set[str] = set()
        self.running: list[tuple[Host, Step, int]] = []
        self.plan: Plan | None = None

    # -- workers -------------------------------------------------------------------------------------------------

    def workers(self, state: State) -> Simulation:
        """Those of the next process. What the one before had begun may arrive at any time from now on."""
        self.plan = state.plan
        self.late += [(host.name, step, epoch, state.plan.run) for host, step, epoch in self.running]
        self.running = []
        return self

    def begin(self, host: Host, step: Step) -> None:
        self.running.append((host, step, host.epoch))

    def wait(self) -> tuple[str, Step, Ended] | None:
        assert self.running, "waits for nothing"
        # what runs beside each other takes the time of one
        self.now += self.dice.randint(1, 6) / len(self.running)
        if self.dice.random() < 5 / len(self.machines):
            for machine in self.machines.values():
                machine.tick(self.now)
        if self.late and self.dice.random() < 0.5:
            name, step, epoch, run = self.late.pop(self.dice.randrange(len(self.late)))
            self._on(self.machines[name], step, epoch, run)
            if step is Step.LOCK:
                self.orphans.add((name, self.machines[name].seen))
        host, step, epoch = self.running.pop(self.dice.randrange(len(self.running)))
        assert self.plan is not None
        machine = self.machines[host.name]
        if self.now < machine.down_until:
            return host.name, step, Ended(Outcome.UNREACHABLE, "no route")
        if self.dice.random() < machine.flaky / 2:
            return host.name, step, Ended(Outcome.UNREACHABLE, "lost on the way there")
        ended = self._on(machine, step, epoch, self.plan.run)
        if self.dice.random() < machine.flaky / 2:
            return host.name, step, Ended(Outcome.UNREACHABLE, "the answer was lost")
        return host.name, step, ended

    # -- a host's own side ---------------------------------------------------------------------------------------

    def _on(self, machine: Machine, step: Step, epoch: int, run: str) -> Ended:
        machine.tick(self.now)
        if step is Step.STAGE:
            machine.staged = machine.stage is Outcome.OK
            return Ended(machine.stage)
        if step is Step.LOOK:
            ours = machine.lock is not None and machine.lock[0] == run
            stuck = machine.change is Change.OPEN and not machine.healthy
            told = {"change": str(machine.change), "drained": machine.drained, "ours": ours, "unhealthy": stuck}
            return Ended(Outcome.OK, data=told)
        if step is Step.LOCK:
            return self._lock(machine, run)
        if machine.lock is None or machine.lock[:2] != (run, epoch) or epoch < machine.seen:
            return Ended(Outcome.REFUSED, "not the holder")
        self.epochs.append((machine.name, epoch, step))
        machine.lock = (run, epoch, self.now + LEASE)
        return getattr(self, f"_{step}")(machine)

    def _lock(self, machine: Machine, run: str) -> Ended:
        if machine.lock is not None and machine.lock[0] != run and machine.lock[2] > self.now:
            return Ended(Outcome.REFUSED, "held by another run")
        machine.seen += 1
        machine.lock = (run, machine.seen, self.now + LEASE)
        if machine.change is Change.OPEN:
            machine.deadline = self.now + DEADLINE
        return Ended(Outcome.OK, data={"epoch": machine.seen})

    def _preflight(self, machine: Machine) -> Ended:
        if machine.present:
            return Ended(Outcome.OK, data={"already": True})
        return Ended(machine.preflight)

    def _drain(self, machine: Machine) -> Ended:
        machine.drained = True
        return Ended(Outcome.OK)

    def _undrain(self, machine: Machine) -> Ended:
        machine.drained = False
        return Ended(Outcome.OK)

    def _switch(self, machine: Machine) -> Ended:
        assert machine.staged
        assert machine.drained
        assert not machine.present
        if machine.change is Change.OPEN and machine.healthy:
            return Ended(Outcome.OK)  # it was done already, and the answer was lost
        if machine.switch == "ok":
            machine.active, machine.healthy, machine.change = NEW, True, Change.OPEN
            machine.deadline = self.now + DEADLINE
            return Ended(Outcome.OK)
        if machine.switch == "stuck":
            # it died in the middle, and nobody carries it on
            machine.active, machine.healthy, machine.change = NEW, False, Change.OPEN
            machine.deadline = self.now + DEADLINE
            return Ended(Outcome.UNREACHABLE, "no answer")
        machine.returns = machine.returns and machine.switch != "broken"
        machine.go_back()
        return Ended(Outcome.FAIL, "never ready", {"change": str(machine.change)})

    def _bench(self, machine: Machine) -> Ended:
        assert machine.healthy, "what does not serve is measured"
        machine.benched += 1
        machine.deadline = self.now + DEADLINE
        return Ended(machine.bench, data={})

    def _promote(self, machine: Machine) -> Ended:
        if machine.change not in (Change.OPEN, Change.PROMOTED) or not machine.healthy:
            return Ended(Outcome.FAIL, "the change is no longer open", {"change": str(machine.change)})
        machine.change = Change.PROMOTED
        return Ended(Outcome.OK)

    def _return(self, machine: Machine) -> Ended:
        if machine.change in (Change.OPEN, Change.PROMOTED):
            machine.go_back()
        return Ended(Outcome.OK if machine.healthy else Outcome.FAIL, data={"change": str(machine.change)})

    def _unlock(self, machine: Machine) -> Ended:
        machine.lock = None
        return Ended(Outcome.OK)


class Memory:
    """A journal in memory; the process dies at a given record, before it is written."""

    def __init__(self, records: list[dict[str, Any]], dies_at: int | None) -> None:
        self.records = records
        self._dies_at = dies_at

    def append(self, record: dict[str, Any]) -> dict[str, Any]:
        if self._dies_at is not None and len(self.records) >= self._dies_at:
            raise CrashError
        self.records.append(record)
        return record
