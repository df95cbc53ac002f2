# SPDX-License-Identifier: Apache-2.0
"""The small parts of a roll: answers, plays, verdicts, decisions, and what is told of them."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rackwell.ansible import runner, ssh
from rackwell.ansible.results import Failure, HostCounts, PlayResult
from rackwell.errors import ExitCode, Problem
from rackwell.rollout import following, telling
from rackwell.rollout.answers import answered, of_play
from rackwell.rollout.board import Board
from rackwell.rollout.decide import decide
from rackwell.rollout.live import LiveFleet
from rackwell.rollout.plan import Plan, batches
from rackwell.rollout.state import Host, Result, State, replay
from rackwell.rollout.steps import Change, Ended, Outcome, Step

PLAN = Plan("run-1", "next", "b" * 64, (("h0",), ("h1", "h2")))


def state(*records: dict[str, Any], plan: Plan = PLAN) -> State:
    made = replay([{"kind": "plan", "plan": plan.as_dict()}, *records])
    assert made is not None
    return made


def end(host: str, step: str, outcome: str = "ok", why: str = "", **data: Any) -> dict[str, Any]:
    return {"kind": "end", "host": host, "step": step, "outcome": outcome, "why": why, "data": data}


STAGED = [end(name, "stage") for name in PLAN.hosts]
OPENED = [*STAGED, end("h0", "lock", epoch=1), end("h0", "preflight"), end("h0", "drain"), end("h0", "switch")]


# -- answers of a host ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (ssh.Said(0, '{"ok": true, "epoch": 3}', ""), Outcome.OK),
        (ssh.Said(0, '{"ok": false, "refused": "epoch 1 is over", "lock": null}', ""), Outcome.REFUSED),
        (ssh.Said(1, '{"ok": false, "error": "OSError: no space"}', ""), Outcome.FAIL),
        (ssh.Said(127, "", "bash: rollout-agent: No such file or directory"), Outcome.FAIL),
        (ssh.Said(0, "[]", ""), Outcome.FAIL),
        (ssh.Said(255, "", "No route to host"), Outcome.UNREACHABLE),
        # ssh itself was killed: nobody knows what the host did
        (ssh.Said(-signal.SIGINT, "", ""), Outcome.UNREACHABLE),
    ],
)
def test_an_answer_means(said: ssh.Said, outcome: Outcome) -> None:
    ended = answered(said)
    assert ended.outcome is outcome
    assert ended.why or outcome is Outcome.OK


def test_a_terminal_s_ctrl_c_does_not_reach_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!{sys.executable}\nimport os\nprint(os.getsid(0) == os.getpid())\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ssh.ask(ssh.Connection("h"), ["true"]).out == "True\n"


def play(*failures: Failure, hosts: tuple[str, ...] = ("h0",)) -> PlayResult:
    return PlayResult("p", Path("log"), {name: HostCounts(ok=1) for name in hosts}, failures=list(failures))


PROBLEM = (Problem("gate-held", "the boot gate holds the server", "h0", "P2P failed", "mend it"),)


@pytest.mark.parametrize(
    ("played", "outcome"),
    [
        (play(), Outcome.OK),
        (play(hosts=()), Outcome.UNREACHABLE),
        (play(Failure("h0", "r", "t", PROBLEM)), Outcome.FAIL),
        (play(Failure("h0", "r", "t", PROBLEM, unreachable=True)), Outcome.UNREACHABLE),
        (play(Failure("h0", "r", "t", PROBLEM, locked=True)), Outcome.REFUSED),
        (play(Failure("h1", "r", "t", PROBLEM)), Outcome.OK),
    ],
)
def test_a_play_means_for_one_host(played: PlayResult, outcome: Outcome) -> None:
    assert of_play("h0", played).outcome is outcome


@pytest.mark.parametrize(
    ("change", "meaning", "unhealthy"),
    [
        (None, Change.NONE, False),
        ({"state": "open"}, Change.OPEN, False),
        ({"state": "switching"}, Change.OPEN, True),
        ({"state": "returning"}, Change.OPEN, True),
        ({"state": "promoted"}, Change.PROMOTED, False),
        ({"state": "returned", "why": "slow"}, Change.RETURNED, False),
        ({"state": "broken", "why": "dead"}, Change.BROKEN, False),
    ],
)
def test_a_look_means(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any] | None, meaning: Change, unhealthy: bool
) -> None:
    answers = iter([{"working": True}, {"working": False, "change": change, "ours": True}])
    fleet = object.__new__(LiveFleet)
    monkeypatch.setattr(fleet, "_ask", lambda *_, **__: Ended(Outcome.OK, data=next(answers)), raising=False)
    looked = fleet._look(Host("h0"), PLAN)
    assert (looked.change, looked.data["unhealthy"], looked.data["ours"]) == (meaning, unhealthy, True)


@pytest.mark.parametrize(
    ("asked", "then", "outcome"),
    [
        (Outcome.REFUSED, None, Outcome.REFUSED),
        (Outcome.UNREACHABLE, None, Outcome.UNREACHABLE),
        (Outcome.OK, Change.RETURNED, Outcome.OK),
        (Outcome.FAIL, Change.RETURNED, Outcome.OK),
        (Outcome.OK, Change.BROKEN, Outcome.FAIL),
        # its work died: asked for again, and not told as broken
        (Outcome.OK, Change.OPEN, Outcome.UNREACHABLE),
    ],
)
def test_only_the_host_says_that_it_is_broken(
    monkeypatch: pytest.MonkeyPatch, asked: Outcome, then: Change | None, outcome: Outcome
) -> None:
    fleet = object.__new__(LiveFleet)
    monkeypatch.setattr(fleet, "_ask", lambda *_, **__: Ended(asked), raising=False)
    monkeypatch.setattr(fleet, "_look", lambda *_: Ended(Outcome.OK, data={"change": str(then)}), raising=False)
    assert fleet._return(Host("h0"), PLAN).outcome is outcome


# -- decisions -----------------------------------------------------------------------------------------------------


def steps(of: State) -> dict[str, Step]:
    return dict(decide(of).steps)


def test_a_held_host_gives_its_lock_back_and_stops_the_roll() -> None:
    held = [*OPENED, end("h0", "bench", "inconclusive", "noise")]
    assert steps(state(*held)) == {"h0": Step.UNLOCK}
    assert decide(state(*held, end("h0", "unlock"))).end is ExitCode.HELD


@pytest.mark.parametrize(("verdict", "step"), [("ok", Step.PROMOTE), ("fail", Step.RETURN)])
def test_an_answer_is_carried_out_by_the_next_process(verdict: str, step: Step) -> None:
    held = [
        *OPENED,
        end("h0", "bench", "inconclusive", "noise"),
        end("h0", "unlock"),
        {"kind": "finish", "exit_code": 4},
    ]
    answer = {"kind": "answer", "host": "h0", "verdict": verdict}
    going = [*held, {"kind": "resume"}, answer]
    assert steps(state(*going)) == {"h0": Step.LOOK}
    going.append(end("h0", "look", change="open", ours=False, drained=True))
    assert steps(state(*going)) == {"h0": Step.LOCK}
    assert steps(state(*going, end("h0", "lock", epoch=2))) == {"h0": step}


def test_a_change_that_nobody_carries_on_is_taken_back() -> None:
    stuck = [*OPENED[:-1], {"kind": "begin", "host": "h0", "step": "switch"}, {"kind": "resume"}]
    stuck.append(end("h0", "look", change="open", unhealthy=True, ours=True, drained=True))
    assert steps(state(*stuck)) == {"h0": Step.LOCK}
    assert steps(state(*stuck, end("h0", "lock", epoch=2))) == {"h0": Step.RETURN}


def test_a_switch_that_touched_nothing_leaves_the_host_as_it_was() -> None:
    failed = state(*OPENED[:-1], end("h0", "switch", "fail", "the port is taken", change="none"))
    assert failed.hosts["h0"].result is Result.UNTOUCHED
    assert steps(failed) == {"h0": Step.UNDRAIN}
    over = [end("h0", "undrain"), end("h0", "unlock")]
    assert decide(state(*OPENED[:-1], end("h0", "switch", "fail", change="none"), *over)).end is ExitCode.FAILED


def test_an_abort_returns_what_is_open_and_what_was_promoted() -> None:
    kept = [*OPENED, end("h0", "bench"), end("h0", "promote"), end("h0", "undrain"), end("h0", "unlock")]
    aborted = state(*kept, {"kind": "stop", "abort": True, "why": "aborted"})
    assert decide(aborted).revert == ("h0",)
    going = [*kept, {"kind": "stop", "abort": True, "why": "aborted"}, {"kind": "revert", "host": "h0"}]
    # asked first, and not drained for nothing
    assert steps(state(*going)) == {"h0": Step.LOOK}
    other = state(*going, end("h0", "look", change="none", ours=False))
    assert (other.hosts["h0"].result, other.hosts["h0"].drained) == (Result.LOST, False)
    going.append(end("h0", "look", change="promoted", ours=False))
    assert steps(state(*going)) == {"h0": Step.LOCK}
    assert steps(state(*going, end("h0", "lock", epoch=2))) == {"h0": Step.DRAIN}


def test_a_host_whose_drain_was_cut_off_comes_back_into_rotation() -> None:
    cut = state(
        *STAGED, end("h0", "lock", epoch=1), end("h0", "preflight"), {"kind": "begin", "host": "h0", "step": "drain"}
    )
    cut.apply({"kind": "resume"})
    cut.apply({"kind": "stop", "why": "aborted", "abort": True})
    # the drain may come to it after this look
    cut.apply(end("h0", "look", change="none", ours=True))
    assert steps(cut) == {"h0": Step.LOCK}
    cut.apply(end("h0", "lock", epoch=2))
    assert steps(cut) == {"h0": Step.UNDRAIN}
    cut.apply(end("h0", "undrain"))
    assert steps(cut) == {"h0": Step.UNLOCK}


def test_what_is_there_already_is_only_unlocked() -> None:
    there = [*STAGED, end("h0", "lock", epoch=1), end("h0", "preflight", already=True)]
    assert steps(state(*there)) == {"h0": Step.UNLOCK}
    assert set(steps(state(*there, end("h0", "unlock")))) == {"h1", "h2"}
    # found out only at the switch
    assert steps(state(*OPENED[:-1], end("h0", "switch", already=True))) == {"h0": Step.UNDRAIN}


def test_a_canary_that_is_named_twice_is_one() -> None:
    assert batches(["a", "b"], "1", ["b", "b"]) == (("b",), ("a",))


# -- what is told --------------------------------------------------------------------------------------------------


def test_a_host_that_gets_no_requests_is_not_told_as_broken() -> None:
    stranded = state(*OPENED, end("h0", "bench"), end("h0", "promote"), end("h0", "undrain", "fail", "no hook"))
    problem = telling.problems(stranded, "rackwell resume run-1")[0]
    assert (problem.code, "back into rotation" in problem.what) == ("roll-broken", True)


def test_the_board_shows_what_happens_and_counts_the_rest() -> None:
    now = [0.0]
    board = Board(lambda: now[0])
    many = dataclasses.replace(PLAN, batches=batches([f"h{n}" for n in range(100)]))
    going = state(plan=many)
    board.take({"kind": "plan"}, going)
    begun = {"kind": "begin", "host": "h0", "step": "switch"}
    going.apply(begun)
    board.take(begun, going)
    now[0] = 75.0
    first, rest = board.lines(10)
    assert first.split() == ["1", "h0", "switching", "1:15", "min"]
    assert rest.strip() == "and 99 waiting"


def test_a_journal_is_followed_until_the_roll_is_over(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    records = [
        {"kind": "plan", "plan": PLAN.as_dict()},
        {**end("h0", "bench"), "time": 1.0},
        {"kind": "finish", "exit_code": 0},
    ]
    texts = [json.dumps(record) + "\n" for record in records]
    journal.write_text(texts[0] + texts[1][:10])
    left = [texts[1][10:], '{"half', "\n" + texts[2]]

    def grow() -> None:
        with journal.open("a") as stream:
            stream.write(left.pop(0))

    told = list(following.follow(journal, grow))
    assert [line.where for line in told] == ["controller", "h0", "controller"]
    assert told[-1].text.endswith("exit code 0")


def test_plays_of_all_threads_can_be_ended() -> None:
    with runner.Interrupts() as interrupts:
        assert not interrupts.must_kill
        runner.end_all()
        assert interrupts.must_kill
        runner.begin_again()
        assert not interrupts.must_kill
