# SPDX-License-Identifier: Apache-2.0
"""Rolls over simulated fleets with random faults: whatever happens, what is said of the hosts is so.

RACKWELL_MODEL_RUNS sets how many are tried.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwell.errors import ExitCode
from rackwell.rollout.plan import Plan, batches
from rackwell.rollout.run import Roll
from rackwell.rollout.state import Host, Result, State, replay
from rackwell.rollout.steps import Change, Outcome, Step

from .fleet import DEADLINE, LEASE, NEW, OLD, CrashError, Machine, Memory, Simulation

RUNS = int(os.environ.get("RACKWELL_MODEL_RUNS", "300"))
MANY = 1000 if RUNS >= 3000 else 100
RESUMABLE = {ExitCode.UNREACHABLE, ExitCode.INTERRUPTED, ExitCode.LOCKED}


def order_holds(state: State, simulation: Simulation) -> None:
    """A host is begun only when all of the batches before are promoted, and none is switched before all are staged."""
    begun = [name for name in state.plan.hosts if simulation.machines[name].change is not Change.NONE]
    if begun:
        assert all(simulation.machines[name].staged for name in state.plan.hosts)
    for earlier, later in zip(state.plan.batches, state.plan.batches[1:], strict=False):
        if any(name in begun for name in later):
            machines = [simulation.machines[name] for name in earlier]
            assert all(machine.change is not Change.NONE or machine.present for machine in machines)


def carried_out(
    simulation: Simulation,
    plan: Plan,
    crashes: list[int],
    stop_at: int | None,
    answers: tuple[str, ...] = (),
    abort_at: int | None = None,
) -> tuple[ExitCode, State]:
    """Begin the roll, let it die at these records, and go on with it until it ends.

    Args:
        answers: what a person says of the hosts that are held, one after the other. abort_at: a record after which
            whoever carries it on is told to take all of it back.
    """
    records: list[dict[str, Any]] = []
    left = list(answers)
    at = 0
    for attempt in range(len(crashes) + 12):
        at += crashes[attempt] if attempt < len(crashes) else 0
        dies = at if attempt < len(crashes) else None
        journal = Memory(records, dies)

        def told(_record: Any, state: State) -> None:
            if len(records) % max(1, len(simulation.machines) // 10) == 0:
                order_holds(state, simulation)

        try:
            roll = Roll(journal, simulation.workers, plan if not records else None, told)
            if stop_at is not None and len(records) <= stop_at:
                roll.ask({"kind": "stop", "why": "asked to"})
            if abort_at is not None and len(records) >= abort_at:
                roll.ask({"kind": "stop", "why": "aborted", "abort": True})
            for host in roll.state.hosts.values():
                if host.held and left:
                    roll.ask({"kind": "answer", "host": host.name, "verdict": left.pop()})
                    simulation.answered.add(host.name)
            code = roll.carry_out()
        except CrashError:
            continue
        replayed = replay(records)
        assert replayed == roll.state
        going_on = code is ExitCode.HELD and left and not roll.state.aborting
        undecided = abort_at is not None and not roll.state.aborting
        abort_at = min(abort_at, len(records)) if undecided and abort_at is not None else abort_at
        if (code in RESUMABLE or going_on or undecided) and attempt < len(crashes) + 11:
            simulation.now += LEASE + 1
            stop_at = None
            continue
        return code, roll.state
    raise AssertionError("it never ended")


def holds(code: ExitCode, state: State, simulation: Simulation) -> None:
    """What was said is so, once all timers of the hosts have run out."""
    for name, host in state.hosts.items():
        machine = simulation.machines[name]
        if host.result is not Result.LOST:
            lock = machine.lock
            assert lock is None or lock[0] != state.plan.run or (name, lock[1]) in simulation.orphans, f"{name}: locked"
    simulation.now += DEADLINE + LEASE + 1
    for machine in simulation.machines.values():
        machine.tick(simulation.now)
        assert machine.change is not Change.OPEN
    for name, host in state.hosts.items():
        host_holds(host, simulation.machines[name], name in simulation.answered)
        if state.aborting and simulation.machines[name].change is Change.PROMOTED:
            assert host.trouble or host.result is Result.LOST, f"{name} was not taken back"
    results = {host.result for host in state.hosts.values()}
    actives = {machine.active for machine in simulation.machines.values()}
    if code is ExitCode.DONE:
        assert state.aborting or results <= {Result.PROMOTED, Result.PRESENT}
        assert state.aborting or actives == {NEW}
    if code is ExitCode.ROLLED_BACK and state.plan.on_failure == "return":
        touched = {machine.active for machine in simulation.machines.values() if not machine.present}
        assert touched == {OLD} or any(h.trouble and h.result is Result.PROMOTED for h in state.hosts.values())
        assert Result.RETURNED in results
    if code is ExitCode.HELD:
        assert any(host.held for host in state.hosts.values())
    fenced: dict[str, int] = {}
    for name, epoch, _step in simulation.epochs:
        assert epoch >= fenced.get(name, 0), "a step of an older epoch was done"
        fenced[name] = epoch


def host_holds(host: Host, machine: Machine, answered: bool) -> None:
    """What the roll says of one host is so."""
    assert host.running is None
    if host.result is Result.PROMOTED:
        assert (machine.active, machine.change, machine.healthy) == (NEW, Change.PROMOTED, True)
        assert machine.bench is Outcome.OK or answered, "what failed its gate was promoted"
    elif host.result is Result.RETURNED:
        assert (machine.active, machine.healthy) == (OLD, True)
    elif host.result is Result.BROKEN:
        assert not machine.healthy or machine.drained
    elif host.result is Result.PRESENT:
        assert (machine.active, machine.change, machine.benched) == (NEW, Change.NONE, 0)
    elif host.result in (Result.UNTOUCHED, None):
        assert machine.active == OLD or machine.present
    if host.result not in (Result.BROKEN, Result.LOST) and not host.held:
        assert not machine.drained, "it serves and gets no requests"


outcomes = st.sampled_from([Outcome.OK] * 12 + [Outcome.FAIL, Outcome.INCONCLUSIVE])
machines_of = st.builds(
    dict,
    stage=st.sampled_from([Outcome.OK] * 40 + [Outcome.FAIL, Outcome.UNREACHABLE]),
    preflight=st.sampled_from([Outcome.OK] * 20 + [Outcome.FAIL]),
    switch=st.sampled_from(["ok"] * 20 + ["fail", "broken", "stuck"]),
    bench=outcomes,
    returns=st.sampled_from([True] * 15 + [False]),
    flaky=st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5]),
    down_until=st.sampled_from([0, 0, 0, 0, 30, 10_000]),
    present=st.sampled_from([False] * 9 + [True]),
)


@settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    hosts=st.lists(machines_of, min_size=1, max_size=9),
    crashes=st.lists(st.integers(1, 40), max_size=4),
    sizes=st.sampled_from(["1", "1,2", "1,30%", "2,100%", "100%"]),
    keep=st.booleans(),
    stop_at=st.none() | st.integers(0, 60),
    held_by=st.sampled_from([0, 0, 0, 0, 20]),
    answers=st.lists(st.sampled_from(["ok", "fail"]), max_size=4).map(tuple),
    abort_at=st.none() | st.integers(0, 90),
    seed=st.integers(0, 2**32),
)
def test_what_is_said_of_the_hosts_is_so(
    hosts: list[dict[str, Any]],
    crashes: list[int],
    sizes: str,
    keep: bool,
    stop_at: int | None,
    held_by: int,
    answers: tuple[str, ...],
    abort_at: int | None,
    seed: int,
) -> None:
    machines = [Machine(f"h{number}", **options) for number, options in enumerate(hosts)]
    if held_by:
        machines[-1].lock, machines[-1].seen = ("another", 7, held_by), 7
    simulation = Simulation(machines, random.Random(seed))
    plan = Plan("run-1", "b", "d" * 64, batches(list(simulation.machines), sizes), "keep" if keep else "return")
    code, state = carried_out(simulation, plan, crashes, stop_at, answers, abort_at)
    holds(code, state, simulation)


@pytest.mark.parametrize("seed", range(max(1, RUNS // 3000)))
def test_many_hosts(seed: int) -> None:
    dice = random.Random(seed)
    machines = [Machine(f"h{number}", flaky=dice.choice([0.0, 0.0, 0.05])) for number in range(MANY)]
    if seed % 2:
        machines[dice.randrange(MANY)].bench = Outcome.FAIL
    simulation = Simulation(machines, dice)
    plan = Plan("run-1", "b", "d" * 64, batches(list(simulation.machines), "1,10%,50%"))
    code, state = carried_out(simulation, plan, [500 * seed], None)
    holds(code, state, simulation)
    assert code is (ExitCode.ROLLED_BACK if seed % 2 else ExitCode.DONE)


def test_a_process_that_was_paused_past_its_lease_is_refused() -> None:
    machine = Machine("h0")
    simulation = Simulation([machine], random.Random(1))
    plan = Plan("run-1", "b", "d" * 64, (("h0",),))
    records: list[dict[str, Any]] = []
    roll = Roll(Memory(records, 12), simulation.workers, plan)
    with pytest.raises(CrashError):
        roll.carry_out()
    # another run takes the host over once the lease is over
    simulation.now += LEASE + 1
    assert simulation._lock(machine, "run-2").outcome is Outcome.OK
    before = (machine.active, machine.change, machine.drained)
    for step in (Step.SWITCH, Step.PROMOTE, Step.RETURN, Step.UNLOCK):
        assert simulation._on(machine, step, 1, "run-1").outcome is Outcome.REFUSED
    assert (machine.active, machine.change, machine.drained) == before
