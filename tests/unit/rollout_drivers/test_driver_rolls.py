# SPDX-License-Identifier: Apache-2.0
"""Rolls of a driver over made-up hosts with faults and killed controllers: what is said of the hosts is so.

RACKWELL_MODEL_RUNS sets how many are tried.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwell.errors import ExitCode
from rackwell.rollout import telling
from rackwell.rollout.drivers import fleet as fleets
from rackwell.rollout.drivers.move import TRIES, Do, Seen, following
from rackwell.rollout.run import Roll
from rackwell.rollout.state import Result, State, replay
from rackwell.rollout.steps import Outcome

sys.path.insert(0, str(Path(__file__).parent))

from driverworld import AFTER, BEFORE, Box, Container, Fleet, Workers, World, plan_of

RUNS = int(os.environ.get("RACKWELL_MODEL_RUNS", "200"))
RESUMABLE = {ExitCode.UNREACHABLE, ExitCode.INTERRUPTED, ExitCode.LOCKED}


class KilledError(Exception):
    """The controller dies here."""


class Records:
    """A journal in memory; the process dies at a record, before it is written."""

    def __init__(self, records: list[dict[str, Any]], dies_at: int | None = None) -> None:
        self.records, self._dies_at = records, dies_at

    def append(self, record: dict[str, Any]) -> dict[str, Any]:
        if self._dies_at is not None and len(self.records) >= self._dies_at:
            raise KilledError
        self.records.append(record)
        return record


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Any:
    """Nobody waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleets, "BOOT_WAIT_S", 0.0)
        patch.setattr(fleets.time, "sleep", lambda _s: None)
        yield


def carried_out(world: World, kills: list[int], answers: list[str] | None = None) -> tuple[ExitCode, State]:
    """Begin, die at these records, go on until it ends."""
    plan, records, at = plan_of(world), list[dict[str, Any]](), 0
    left = list(answers or [])
    for attempt in range(len(kills) + 14):
        at += kills[attempt] if attempt < len(kills) else 0
        journal = Records(records, at if attempt < len(kills) else None)
        try:
            fleet = Fleet(world, plan.settings)
            roll = Roll(journal, lambda state, fleet=fleet: Workers(fleet, state), None if records else plan)
            for host in roll.state.hosts.values():
                if host.held and left:
                    roll.ask({"kind": "answer", "host": host.name, "verdict": left.pop()})
            code = roll.carry_out()
        except KilledError:
            continue
        assert replay(records) == roll.state
        if (code in RESUMABLE or (code is ExitCode.HELD and left)) and attempt < len(kills) + 13:
            continue
        return code, roll.state
    raise AssertionError("it never ended")


def holds(code: ExitCode, state: State, world: World) -> None:
    """What was said is so."""
    begun = True
    for name, host in state.hosts.items():
        box = world.boxes[name]
        if host.result is Result.PROMOTED:
            assert box.at(AFTER)
            assert all(one.serves and not one.drained for one in box.containers)
        elif host.result is Result.RETURNED:
            assert box.at(BEFORE)
            assert all(one.serves and not one.drained for one in box.containers)
        elif host.result in (Result.UNTOUCHED, None) and not host.held:
            assert box.at(BEFORE)
            assert all(not one.drained for one in box.containers)
        if host.result not in (Result.LOST, Result.BROKEN) and not host.held:
            assert all(one.lock is None for one in box.containers), "a lock was left"
        assert begun or host.result is not Result.PROMOTED, "a host was moved after another had failed"
        begun = begun and host.result in (Result.PROMOTED, Result.PRESENT)
    if code is ExitCode.DONE:
        assert all(box.at(AFTER) for box in world.boxes.values())
    if code is ExitCode.ROLLED_BACK:
        assert all(box.at(BEFORE) for box in world.boxes.values())


versions = st.sampled_from([frozenset[str]()] * 8 + [frozenset({AFTER}), frozenset({AFTER, BEFORE})])
containers_of = st.builds(
    dict,
    broken=st.sampled_from([frozenset()] * 6 + [frozenset({AFTER})]),
    dies=st.sampled_from([False] * 7 + [True]),
    bench=st.sampled_from([Outcome.OK] * 8 + [Outcome.FAIL, Outcome.INCONCLUSIVE]),
)
boxes_of = st.builds(
    dict,
    refuses=versions,
    stuck=versions,
    flaky=st.sampled_from([0.0, 0.0, 0.0, 0.2]),
    containers=st.lists(containers_of, min_size=1, max_size=3),
)


def world_of(boxes: list[dict[str, Any]], seed: int) -> World:
    made = []
    for number, options in enumerate(boxes):
        inner = [Container(f"c{number}-{n}", **one) for n, one in enumerate(options["containers"])]
        made.append(Box(f"pve{number}", inner, **{k: v for k, v in options.items() if k != "containers"}))
    return World(made, random.Random(seed))


@settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    boxes=st.lists(boxes_of, min_size=1, max_size=4),
    kills=st.lists(st.integers(1, 30), max_size=4),
    answers=st.lists(st.sampled_from(["ok", "fail"]), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_what_is_said_of_the_hosts_is_so(
    boxes: list[dict[str, Any]], kills: list[int], answers: list[str], seed: int
) -> None:
    world = world_of(boxes, seed)
    code, state = carried_out(world, kills, answers)
    holds(code, state, world)


def healthy(count: int = 2) -> World:
    return world_of([{"containers": [{}, {}]} for _ in range(count)], 1)


def test_every_host_is_moved_with_its_containers() -> None:
    world = healthy(3)
    code, state = carried_out(world, [])
    assert code is ExitCode.DONE
    assert {host.result for host in state.hosts.values()} == {Result.PROMOTED}
    holds(code, state, world)


@pytest.mark.parametrize("at", range(1, 40))
def test_killed_at_every_record_and_gone_on_with(at: int) -> None:
    world = healthy(1)
    code, state = carried_out(world, [at])
    holds(code, state, world)
    # half a move is taken back; nothing else keeps it from its end
    assert code in (ExitCode.DONE, ExitCode.ROLLED_BACK)


@pytest.mark.parametrize(
    ("fault", "result", "code"),
    [
        ({"refuses": frozenset({AFTER})}, Result.RETURNED, ExitCode.ROLLED_BACK),
        ({"stuck": frozenset({AFTER})}, Result.RETURNED, ExitCode.ROLLED_BACK),
        ({"stuck": frozenset({AFTER}), "refuses": frozenset({BEFORE})}, Result.BROKEN, ExitCode.FAILED),
        ({"containers": [{}, {"broken": frozenset({AFTER})}]}, Result.RETURNED, ExitCode.ROLLED_BACK),
        ({"containers": [{}, {"bench": Outcome.FAIL}]}, Result.RETURNED, ExitCode.ROLLED_BACK),
        ({"containers": [{}, {"dies": True}]}, Result.RETURNED, ExitCode.ROLLED_BACK),
    ],
)
def test_a_host_that_fails_goes_back_and_the_roll_stops(fault: dict[str, Any], result: Result, code: ExitCode) -> None:
    world = world_of([{"containers": [{}, {}], **fault}, {"containers": [{}]}], 1)
    ended, state = carried_out(world, [])
    assert ended is code
    assert state.hosts["pve0"].result is result
    assert state.hosts["pve1"].result is None
    assert world.boxes["pve1"].at(BEFORE)
    holds(ended, state, world)


def test_one_that_fails_takes_the_promoted_ones_back() -> None:
    world = world_of([{"containers": [{}]}, {"containers": [{}], "refuses": frozenset({AFTER})}], 1)
    code, state = carried_out(world, [])
    assert code is ExitCode.ROLLED_BACK
    assert [host.result for host in state.hosts.values()] == [Result.RETURNED, Result.RETURNED]
    holds(code, state, world)


def test_a_container_that_another_run_holds_stops_it_before_anything() -> None:
    world = healthy(1)
    world.containers["c0-1"].lock = ("another", 3)
    code, _state = carried_out(world, [])
    assert code is ExitCode.LOCKED
    assert world.boxes["pve0"].at(BEFORE)
    assert world.containers["c0-0"].lock is None


def test_an_inconclusive_gate_is_a_persons() -> None:
    world = world_of([{"containers": [{"bench": Outcome.INCONCLUSIVE}]}, {"containers": [{}]}], 1)
    code, state = carried_out(world, [])
    assert code is ExitCode.HELD
    assert state.hosts["pve0"].held
    assert world.boxes["pve1"].at(BEFORE)


seens = st.builds(
    Seen,
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.sampled_from("ab"), st.booleans()),
    st.dictionaries(st.sampled_from("ab"), st.booleans()),
)


@given(seens, st.dictionaries(st.sampled_from(list(Do)), st.integers(0, 3)))
def test_the_next_part_follows_from_what_is_seen(seen: Seen, tried: dict[Do, int]) -> None:
    part = following(seen, tried)
    if seen.done:
        assert part is None
    if part is Do.CONTAINERS:
        assert seen.on_disk
        assert seen.booted
    if part is not None:
        assert tried.get(part, 0) < TRIES


def process(
    world: World, records: list[dict[str, Any]], record: dict[str, Any] | None = None
) -> tuple[ExitCode, State]:
    """One process: begins the roll, or goes on with it."""
    plan = plan_of(world)
    fleet = Fleet(world, plan.settings)
    roll = Roll(Records(records), lambda state: Workers(fleet, state), None if records else plan)
    if record is not None:
        roll.ask(record)
    return roll.carry_out(), roll.state


def one_is_lost() -> tuple[World, list[dict[str, Any]]]:
    """Of three, the second does not come back from its boot."""
    world = healthy(3)
    world.boxes["pve1"].gone_with = AFTER
    records: list[dict[str, Any]] = []
    code, state = process(world, records)
    assert code is ExitCode.UNREACHABLE
    assert [host.result for host in state.hosts.values()] == [Result.PROMOTED, Result.LOST, None]
    return world, records


def test_while_one_is_lost_no_other_is_touched() -> None:
    world, records = one_is_lost()
    for _ in range(3):
        code, state = process(world, records)
        assert code is ExitCode.UNREACHABLE
        assert world.boxes["pve0"].at(AFTER)
        assert world.boxes["pve2"].at(BEFORE)
    said = telling.problems(state, "rackwell resume RUN -i SITE")
    assert "pve0 keep the new driver" in said[0].fix
    assert "rackwell rollback RUN" in said[0].fix


def test_one_that_was_lost_is_settled_before_any_other() -> None:
    world, records = one_is_lost()
    world.boxes["pve1"].away, world.boxes["pve1"].gone_with = False, ""
    code, state = process(world, records)
    # half a move is taken back, and what was promoted after it
    assert code is ExitCode.ROLLED_BACK
    assert all(box.at(BEFORE) for box in world.boxes.values())
    assert "c1-0, c1-1: other libraries" in state.hosts["pve1"].why
    holds(code, state, world)


def test_who_aborts_takes_the_others_back_although_one_is_lost() -> None:
    world, records = one_is_lost()
    world.may_be_out.add("pve1")
    code, state = process(world, records, {"kind": "stop", "abort": True, "why": "aborted"})
    assert code is ExitCode.UNREACHABLE
    assert [host.result for host in state.hosts.values()] == [Result.RETURNED, Result.LOST, None]
    assert world.boxes["pve0"].at(BEFORE)


def test_one_that_went_back_keeps_the_roll_from_going_forward() -> None:
    """The host for which another was taken back may be as it was before: it is not tried again."""
    world = healthy(2)
    world.boxes["pve1"].refuses = frozenset({AFTER})
    records: list[dict[str, Any]] = []
    code, _state = process(world, records)
    assert code is ExitCode.ROLLED_BACK
    # as if what came to it last had been lost, and nothing but the other's return is known
    for record in records:
        if record["kind"] == "end" and record["host"] == "pve1" and record["step"] == "switch":
            record.update(outcome="unreachable", data={})
            records = records[: records.index(record) + 1]
            break
    world.boxes["pve1"].refuses = frozenset()
    records += [{"kind": "revert", "host": "pve0", "time": 0}]
    code, _state = process(world, records)
    assert code is ExitCode.ROLLED_BACK
    assert all(box.at(BEFORE) for box in world.boxes.values())
