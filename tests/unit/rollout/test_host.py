# SPDX-License-Identifier: Apache-2.0
"""The host's own side of a roll: who may, what is open, and how it returns by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import rollout_chain
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import Snapshot
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_agent import Agent, Place, answer
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_guard import rolling
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_install import differences, install, put
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_lock import Moment, now

from rackwell.rollout import chain

from .node import CHECK, NEW, OLD, WANTED, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def agent(node: Node) -> Agent:
    node.installed(OLD, NEW)
    return Agent(str(node.directory / "rollout"), node, node, ["agent"], lambda: node.moment, lambda _s: None)


def locked(agent: Agent, run: str = "run-1", lease: float = 60.0) -> int:
    return int(agent.ask({"op": "lock", "run": run, "owner": "me", "lease_s": lease})["epoch"])


def switched(agent: Agent, node: Node, run: str = "run-1") -> int:
    """Locked, asked to switch, and the work done, as its unit does it."""
    epoch = locked(agent, run)
    agent.ask({"op": "prepare", "run": run, "wanted": WANTED})
    agent.ask({"op": "switch", "run": run, "epoch": epoch, "confirm_s": 60})
    agent.work(*node.ordered.pop()[2:])
    return epoch


def state(agent: Agent) -> str:
    return str(agent.look(0, "run-1")["change"]["state"])


def test_a_switch_stays_open_until_it_is_promoted(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    assert (node.release, state(agent)) == (NEW, "open")
    assert node.timer == ["agent", "work", "return", "run-1", "deadline"]
    agent.ask({"op": "promote", "run": "run-1", "epoch": epoch})
    assert (state(agent), node.timer) == ("promoted", None)
    agent.ask({"op": "unlock", "run": "run-1", "epoch": epoch})
    assert agent.look(0)["lock"] is None
    events = [record["event"] for record in chain.read(node.directory / "rollout/journal.jsonl")]
    assert events == ["locked", "switch-asked", "open", "promoted", "unlocked"]


def test_what_is_not_promoted_in_time_returns_by_itself(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    assert node.timer is not None
    agent.work(*node.timer[2:])
    assert (node.release, node.serves, state(agent)) == (OLD, True, "returned")
    told, code = answer(agent, json.dumps({"op": "promote", "run": "run-1", "epoch": epoch}))
    assert (told["ok"], code) == (False, 1)
    assert "can no longer be promoted" in told["error"]


def test_a_deadline_that_comes_after_the_promotion_does_nothing(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    timer = list(node.timer or [])
    agent.ask({"op": "promote", "run": "run-1", "epoch": epoch})
    agent.work(*timer[2:])
    assert (node.release, state(agent)) == (NEW, "promoted")


def test_a_start_that_is_not_accepted_returns_at_once(agent: Agent, node: Node) -> None:
    node.good = frozenset({OLD})
    switched(agent, node)
    change = agent.look(0, "run-1")["change"]
    assert (node.release, change["state"], change["code"]) == (OLD, "returned", "never-ready")
    assert "did not get ready" in change["why"]


def test_a_damaged_old_release_is_told_as_broken(agent: Agent, node: Node) -> None:
    node.good = frozenset()
    switched(agent, node)
    assert state(agent) == "broken"


@pytest.mark.parametrize("at", ["switching", "open"])
def test_a_boot_takes_an_unconfirmed_change_back(agent: Agent, node: Node, at: str) -> None:
    if at == "open":
        switched(agent, node)
    else:
        epoch = locked(agent)
        agent.ask({"op": "prepare", "run": "run-1", "wanted": WANTED})
        agent.ask({"op": "switch", "run": "run-1", "epoch": epoch, "confirm_s": 60})
        node.release = NEW  # it went down in the middle of the switch
    node.moment, node.timer = Moment("boot-2", 5.0), None
    agent.boot()
    assert (node.release, node.timer) == (OLD, ["agent", "work", "verify", "run-1"])
    agent.work("verify", "run-1")
    assert state(agent) == "returned"


def test_a_boot_leaves_a_promoted_change_alone(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    agent.ask({"op": "promote", "run": "run-1", "epoch": epoch})
    node.moment = Moment("boot-2", 5.0)
    agent.boot()
    assert (node.release, state(agent), node.timer) == (NEW, "promoted", None)


def test_a_holder_that_slept_past_its_lease_is_refused(agent: Agent, node: Node) -> None:
    epoch = locked(agent)
    told, code = answer(agent, json.dumps({"op": "lock", "run": "run-2", "owner": "you", "lease_s": 60}))
    assert (told["ok"], code, told["lock"]["owner"]) == (False, 0, "me")
    node.moment = Moment("boot-1", 1061.0)
    second = locked(agent, "run-2")
    assert second == epoch + 1
    for op in ("switch", "promote", "return", "unlock", "renew"):
        told, code = answer(agent, json.dumps({"op": op, "run": "run-1", "epoch": epoch}))
        assert (told["ok"], "epoch 1 is over" in told["refused"], code) == (False, True, 0)
    assert agent.look(0, "run-2")["ours"]


def test_a_run_takes_its_own_lock_anew_and_its_dead_process_is_refused(agent: Agent) -> None:
    first, second = locked(agent), locked(agent)
    assert answer(agent, json.dumps({"op": "unlock", "run": "run-1", "epoch": first}))[0]["ok"] is False
    assert answer(agent, json.dumps({"op": "unlock", "run": "run-1", "epoch": second}))[0]["ok"] is True


def test_a_reboot_ends_a_lease(agent: Agent, node: Node) -> None:
    locked(agent, lease=10_000)
    node.moment = Moment("boot-2", 1.0)
    assert locked(agent, "run-2") == 2


def test_an_open_change_keeps_others_out_after_its_lease(agent: Agent, node: Node) -> None:
    switched(agent, node)
    node.moment = Moment("boot-1", 5000.0)
    told, _code = answer(agent, json.dumps({"op": "lock", "run": "run-2", "owner": "you"}))
    assert "the change of run run-1 is open" in told["refused"]


def test_what_is_asked_twice_is_done_once(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    again = agent.ask({"op": "switch", "run": "run-1", "epoch": epoch, "confirm_s": 60})
    assert (again["change"]["state"], node.ordered) == ("open", [])
    agent.ask({"op": "return", "run": "run-1", "epoch": epoch, "why": "slow"})
    agent.work(*node.ordered.pop()[2:])
    agent.ask({"op": "return", "run": "run-1", "epoch": epoch, "why": "slow"})
    agent.work(*node.ordered.pop()[2:])
    events = [record["event"] for record in chain.read(node.directory / "rollout/journal.jsonl")]
    assert events.count("returned") == 1


def test_no_secret_is_told_or_journalled(agent: Agent, node: Node) -> None:
    switched(agent, node)
    told = json.dumps(agent.look(0, "run-1")) + (node.directory / "rollout/journal.jsonl").read_text()
    assert "marked-secret" not in told
    file = node.directory / "rollout/change.json"
    assert "marked-secret" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"op": "lock"}', '{"op": "nonsense", "run": "r", "epoch": 0}'])
def test_a_request_that_makes_no_sense_changes_nothing(agent: Agent, text: str) -> None:
    told, code = answer(agent, text)
    assert (told["ok"], code) in ((False, 1), (False, 0))
    assert agent.locks.epoch() == 0


def test_both_sides_write_the_same_journal(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"kind": "note", "text": "ä\n"}, {"kind": "note", "number": 1.5}]
    here, there = tmp_path / "here", tmp_path / "there"
    with chain.Chain(here) as journal:
        for record in records:
            journal.append(dict(record))
    for record in records:
        rollout_chain.append(str(there), dict(record))
    assert here.read_bytes() == there.read_bytes()
    there.write_bytes(there.read_bytes() + b'{"half')
    rollout_chain.append(str(there), {"kind": "note"})
    assert [record["seq"] for record in chain.read(there)] == [1, 2, 3]


def test_others_keep_off_while_a_roll_is_under_way(agent: Agent, node: Node) -> None:
    state = str(node.directory)
    assert rolling(state) == ""
    node.moment = now()
    epoch = locked(agent)
    assert "run run-1 of me holds this host" in rolling(state)
    agent.ask({"op": "unlock", "run": "run-1", "epoch": epoch})
    assert rolling(state) == ""
    epoch = switched(agent, node)
    agent.ask({"op": "unlock", "run": "run-1", "epoch": epoch})
    assert "the change of run run-1 is open" in rolling(state)


def test_the_installed_program_needs_nothing_but_python(tmp_path: Path) -> None:
    place = Place(root=str(tmp_path / "opt"), state=str(tmp_path / "state"))
    old = tmp_path / "lib/agent-0000000000000000/x.py"
    old.parent.mkdir(parents=True)
    old.write_text("")
    wanted = install(place, sys.executable, str(tmp_path / "lib"), str(tmp_path / "units"))
    assert len(differences(wanted)) == len(wanted.wanted)
    put(wanted)
    assert differences(wanted) == []
    assert not old.exists()
    launcher = tmp_path / "lib/rollout-agent"
    asked = subprocess.run(
        [launcher, "ask"], input='{"op": "unlock", "run": "r", "epoch": 1}', capture_output=True, text=True, check=False
    )
    assert (asked.returncode, json.loads(asked.stdout)["refused"]) == (0, "epoch 1 is over: the newest is 0")


def test_a_return_that_has_begun_is_not_promoted(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    change = agent.changes.present()
    assert change is not None
    agent.changes.begin_return(change, "nobody confirmed it in time")
    told, _code = answer(agent, json.dumps({"op": "promote", "run": "run-1", "epoch": epoch}))
    assert (told["ok"], state(agent)) == (False, "returning")


@pytest.mark.parametrize("unit", ["rackwell-rollout-return.service", "rackwell-rollout-work-verify.timer"])
def test_whoever_returns_is_seen_at_work(agent: Agent, node: Node, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    epoch = switched(agent, node)
    ended = node.show("")
    monkeypatch.setattr(node, "show", lambda name: ended._replace(active="active") if name == unit else ended)
    assert agent.look(0, "run-1")["working"] is True
    assert agent.ask({"op": "return", "run": "run-1", "epoch": epoch}) == {"working": True}
    assert node.ordered == []


def test_a_host_returns_when_nothing_can_be_written_down(
    agent: Agent, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched(agent, node)
    journal = node.directory / "rollout/journal.jsonl"
    journal.write_text(journal.read_text().replace("switch-asked", "switch-ASKED"))  # its chain is broken from here on
    monkeypatch.setattr(agent.changes, "_keep", lambda _change: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        agent.work("return", "run-1", "deadline")
    assert (node.release, node.serves) == (OLD, True)


def test_a_switch_that_cannot_be_prepared_touches_nothing(
    agent: Agent, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> Snapshot:
        raise OSError(28, "no space")

    monkeypatch.setattr(node, "begin", no_space)
    monkeypatch.setattr(node, "return_to", no_space)
    switched(agent, node)
    change = agent.look(0, "run-1")["change"]
    assert (node.release, change["state"], node.timer) == (OLD, "returned", None)
    assert "nothing was touched" in change["why"]


def test_a_sign_of_life_shortens_no_hold(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    agent.ask({"op": "hold", "run": "run-1", "epoch": epoch, "hold_s": 86400})
    agent.ask({"op": "renew", "run": "run-1", "epoch": epoch})
    assert agent.look(0, "run-1")["change"]["returns_in_s"] == 86400
    locked(agent)
    assert agent.look(0, "run-1")["change"]["returns_in_s"] == 60


def test_what_could_not_be_returned_to_is_not_healthy(agent: Agent, node: Node) -> None:
    marker = node.directory / f"releases/{OLD}/complete"
    marker.unlink()
    told = agent.ask({"op": "check"})
    assert (told["healthy"], "not a whole release" in told["why"]) == (False, True)
    marker.touch()
    assert agent.ask({"op": "check"})["healthy"] is True
    node.good = frozenset()
    assert "did not get ready" in agent.ask({"op": "check"})["why"]


def test_a_return_that_dies_half_way_is_taken_up_again(
    agent: Agent, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched(agent, node)
    with monkeypatch.context() as killed:
        killed.setattr(node, "return_to", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            agent.work("return", "run-1", "deadline")
    assert (state(agent), node.timer) == ("returning", ["agent", "work", "return", "run-1", "deadline"])
    agent.work(*(node.timer or [])[2:])
    assert (node.release, state(agent), node.timer) == (OLD, "returned", None)


def test_a_deadline_that_cannot_be_ordered_is_a_return(
    agent: Agent, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = node.switch

    def switch(*arguments: Any) -> Any:
        monkeypatch.setattr(node, "run_later", lambda *_: (_ for _ in ()).throw(CommandError("no timers today")))
        return whole(*arguments)

    monkeypatch.setattr(node, "switch", switch)
    switched(agent, node)
    change = agent.look(0, "run-1")["change"]
    assert (node.release, change["state"]) == (OLD, "returned")
    assert "no timers today" in change["why"]


def turned(agent: Agent, node: Node, epoch: int, side: str) -> dict[str, Any]:
    """Asked to serve the other release for a while, and the work done."""
    asked = agent.ask({"op": "turn", "run": "run-1", "epoch": epoch, "side": side})
    if node.ordered:
        agent.work(*node.ordered.pop()[2:])
    return asked


def test_an_open_change_can_serve_both_releases_in_turn(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    for side, release in (("from", OLD), ("to", NEW)):
        assert turned(agent, node, epoch, side) == {"working": True}
        change = agent.look(0, "run-1")["change"]
        assert (node.release, change["state"], change["side"], change["returns_in_s"]) == (release, "open", side, 60)
        # asked twice it is done once
        assert turned(agent, node, epoch, side)["change"]["side"] == side
    assert agent.ask({"op": "promote", "run": "run-1", "epoch": epoch})["change"]["state"] == "promoted"
    told, _code = answer(agent, json.dumps({"op": "turn", "run": "run-1", "epoch": epoch, "side": "from"}))
    assert "the change is promoted" in told["error"]


def test_what_is_only_measured_once_more_is_not_promoted(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    turned(agent, node, epoch, "from")
    told, _code = answer(agent, json.dumps({"op": "promote", "run": "run-1", "epoch": epoch}))
    assert (told["ok"], "serves what ran before" in told["error"], state(agent)) == (False, True, "open")
    # the controller is gone now: what ran before stays
    agent.work(*(node.timer or [])[2:])
    assert (node.release, node.serves, state(agent)) == (OLD, True, "returned")


@pytest.mark.parametrize(("side", "good", "ends"), [("from", {NEW}, "broken"), ("to", {OLD}, "returned")])
def test_a_turn_that_does_not_serve_is_a_return(agent: Agent, node: Node, side: str, good: set[str], ends: str) -> None:
    epoch = switched(agent, node)
    if side == "to":
        turned(agent, node, epoch, "from")
    node.good = frozenset(good)
    turned(agent, node, epoch, side)
    change = agent.look(0, "run-1")["change"]
    assert (node.release, change["state"], change["code"]) == (OLD, ends, "never-ready")
    assert "measured in turn" in change["why"]


def test_a_boot_in_a_turn_takes_the_change_back(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    agent.ask({"op": "turn", "run": "run-1", "epoch": epoch, "side": "from"})
    node.ordered, node.moment = [], Moment("boot-2", 5.0)
    agent.boot()
    agent.work("verify", "run-1")
    assert (node.release, state(agent)) == (OLD, "returned")


def test_a_side_that_there_is_not(agent: Agent, node: Node) -> None:
    epoch = switched(agent, node)
    told, code = answer(agent, json.dumps({"op": "turn", "run": "run-1", "epoch": epoch, "side": "up"}))
    assert (told["ok"], code, node.ordered) == (False, 1, [])


def test_a_switch_needs_what_its_run_has_prepared(agent: Agent, node: Node) -> None:
    epoch = locked(agent)
    agent.ask({"op": "prepare", "run": "run-2", "wanted": WANTED})
    told, code = answer(agent, json.dumps({"op": "switch", "run": "run-1", "epoch": epoch, "confirm_s": 60}))
    assert (code, "nothing is prepared on this host for this run" in told["error"]) == (1, True)
    assert (node.ordered, agent.changes.present()) == ([], None)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"release": "c" * 64}, "release-incomplete"),
        ({"user": "no-such-user"}, "user-missing"),
        ({"model_path": "/no/such/model"}, "model-missing"),
        ({"check": {**CHECK._asdict(), "host": "192.0.2.1"}}, "address-not-here"),
    ],
)
def test_what_is_missing_is_told_when_it_is_prepared_and_before_the_switch(
    agent: Agent, node: Node, change: dict[str, Any], code: str
) -> None:
    lacking = agent.ask({"op": "prepare", "run": "run-1", "wanted": {**WANTED, **change}})["lacking"]
    assert [lack["code"] for lack in lacking] == [code]
    epoch = locked(agent)
    told = agent.ask({"op": "switch", "run": "run-1", "epoch": epoch, "confirm_s": 60})
    assert told["lacking"] == lacking
    assert (node.ordered, agent.changes.present()) == ([], None)


def test_the_boot_gate_is_asked_at_the_switch_and_not_before(agent: Agent, node: Node) -> None:
    held = [sys.executable, "-c", "import sys; sys.exit('held by the boot gate: p2p-corrupt: x')"]
    assert agent.ask({"op": "prepare", "run": "run-1", "wanted": {**WANTED, "condition": held}}) == {"lacking": []}
    epoch = locked(agent)
    (lack,) = agent.ask({"op": "switch", "run": "run-1", "epoch": epoch, "confirm_s": 60})["lacking"]
    assert (lack["code"], lack["why"], node.ordered) == ("gate-held", "held by the boot gate: p2p-corrupt: x", [])


def test_what_was_prepared_and_is_damaged_is_as_if_it_were_not_there(agent: Agent, node: Node) -> None:
    agent.ask({"op": "prepare", "run": "run-1", "wanted": WANTED})
    path = node.directory / "rollout/wanted/run-1.json"
    path.write_text(path.read_text()[:100])
    assert agent.ask({"op": "preflight", "run": "run-1"})["differs"] is None
    epoch = locked(agent)
    told, _code = answer(agent, json.dumps({"op": "switch", "run": "run-1", "epoch": epoch, "confirm_s": 60}))
    assert "nothing is prepared" in told["error"]


def test_a_host_says_what_a_switch_would_change(agent: Agent, node: Node) -> None:
    assert agent.look(0, "run-1")["differs"] is None
    agent.ask({"op": "prepare", "run": "run-1", "wanted": WANTED})
    told = agent.ask({"op": "preflight", "run": "run-1"})
    assert (told["differs"], told["healthy"]) == (["unit file", "environment file", "release"], True)
    switched(agent, node)
    assert agent.ask({"op": "preflight", "run": "run-1"})["differs"] == []
    assert "marked-secret" not in json.dumps(told)


def test_what_runs_prepare_is_root_s_alone_and_does_not_pile_up(agent: Agent, node: Node) -> None:
    for number in range(12):
        agent.ask({"op": "prepare", "run": f"2026113{number:02}-x", "wanted": WANTED})
    kept = sorted((node.directory / "rollout/wanted").iterdir())
    assert [path.stem for path in kept] == [f"2026113{number:02}-x" for number in range(4, 12)]
    assert "marked-secret" in kept[0].read_text()
    assert {path.stat().st_mode & 0o077 for path in (*kept, kept[0].parent)} == {0}


@pytest.mark.parametrize("run", ["../../etc/x", "", "a/b", ".hidden"])
def test_a_run_s_id_is_no_path(agent: Agent, node: Node, run: str) -> None:
    told, code = answer(agent, json.dumps({"op": "prepare", "run": run, "wanted": WANTED}))
    assert (code, told["ok"]) == (1, False)
    assert not (node.directory / "rollout/wanted").exists()


@pytest.mark.parametrize("wanted", [{}, {**WANTED, "more": 1}, {**WANTED, "check": {"port": 1}}, "text"])
def test_what_a_run_wants_is_checked_when_it_is_laid_down(agent: Agent, wanted: Any) -> None:
    told, code = answer(agent, json.dumps({"op": "prepare", "run": "run-1", "wanted": wanted}))
    assert (code, told["ok"]) == (1, False)
