# SPDX-License-Identifier: Apache-2.0
"""Rolls from the command line, over hosts whose own sides are real."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_activation import GateError

from rackwell.ansible import ssh
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import measure
from rackwell.provision.measured import Measured
from rackwell.rollout import gate, rolls
from rackwell.rollout.benches import Benches
from rackwell.rollout.chain import Chain, read
from rackwell.rollout.live import LiveFleet
from rackwell.rollout.steps import Ended, Outcome

from .conftest import NAMES, Hosts
from .node import NEW, OLD, WANTED, Node

NO_BENCH = ("--skip-gate", "bench", "--reason", "a test")


def roll(hosts: Hosts, *more: str) -> dict[str, Any]:
    return hosts.rig.json("roll", "next", *(more or NO_BENCH))


def journal(hosts: Hosts) -> Path:
    return rolls.places(hosts.rig.site.root / ".rackwell")[0] / rolls.JOURNAL


def states(hosts: Hosts) -> list[str]:
    found = [hosts.agents[name].look(0)["change"] for name in NAMES]
    return [change["state"] if change else "none" for change in found]


def releases(hosts: Hosts) -> list[str]:
    return [hosts[name].release for name in NAMES]


def benched(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, Ended]) -> None:
    """The gate's verdicts, made up."""
    monkeypatch.setattr(Benches, "baseline", lambda *_: Ended(Outcome.OK))
    monkeypatch.setattr(Benches, "judge", lambda _self, host, _plan: verdicts.get(host.name, Ended(Outcome.OK)))


def test_a_roll_promotes_every_host_and_leaves_no_lock(hosts: Hosts) -> None:
    envelope = roll(hosts)
    assert (envelope["problems"], envelope["exit_code"]) == ([], 0)
    assert [host["result"] for host in envelope["result"]["hosts"]] == ["promoted"] * 3
    assert releases(hosts) == [NEW] * 3
    assert states(hosts) == ["promoted"] * 3
    assert all(hosts.agents[name].look(0)["lock"] is None for name in NAMES)
    assert envelope["result"]["undeclared"] == list(NAMES)
    assert read(Path(envelope["result"]["journal"]))[-1]["exit_code"] == 0


def test_a_host_that_serves_it_already_is_left_alone(hosts: Hosts) -> None:
    hosts["glm5-02"].release, hosts["glm5-02"].put = NEW, (WANTED["unit"], WANTED["environment"])
    envelope = roll(hosts)
    assert envelope["exit_code"] == 0
    assert [host["phase"] for host in envelope["result"]["hosts"]] == ["promoted", "already there", "promoted"]
    assert states(hosts) == ["promoted", "none", "promoted"]
    assert ("glm5-02", "promote") not in hosts.asked
    # and is not taken back with the others
    assert hosts.rig.json("rollback")["exit_code"] == 0
    assert releases(hosts) == [OLD, NEW, OLD]


def test_a_start_that_is_not_accepted_ends_the_roll_at_the_canary(hosts: Hosts) -> None:
    hosts["glm5-01"].good = frozenset({OLD})
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (3, ["roll-returned"])
    assert releases(hosts) == [OLD] * 3
    assert states(hosts) == ["returned", "none", "none"]


def test_a_damaged_old_release_is_told_as_broken(hosts: Hosts) -> None:
    def lost(name: str, request: dict[str, Any]) -> None:
        if request["op"] == "promote":
            hosts[name].good = frozenset()
            hosts.agents[name].work("return", request["run"], "deadline")

    hosts.before = lost
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (1, ["roll-broken"])


def test_a_gate_that_fails_takes_back_what_was_promoted(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-02": Ended(Outcome.FAIL, "-73%")})
    envelope = roll(hosts, "--batch", "1")
    assert envelope["exit_code"] == 3
    assert states(hosts) == ["returned", "returned", "none"]
    assert "-73%" in envelope["problems"][0]["why"]


def test_a_held_host_waits_for_a_person(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-01": Ended(Outcome.INCONCLUSIVE, "too noisy")})
    envelope = roll(hosts, "--hold-for", "2")
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (4, ["roll-held"])
    told = hosts.agents["glm5-01"].look(0)
    assert (told["lock"], told["change"]["returns_in_s"]) == (None, 7200)
    for wrong in ("glm5-02", "nobody"):
        refused = hosts.rig.json("resume", "--promote", wrong)
        assert (refused["exit_code"], hosts.rig.codes(refused)) == (2, ["not-held"])
    assert hosts.rig.json("resume", "--promote", "glm5-01", "--return", "glm5-01")["exit_code"] == 2
    envelope = hosts.rig.json("resume", "--promote", "glm5-01")
    assert envelope["exit_code"] == 0
    assert releases(hosts) == [NEW] * 3


def test_a_held_host_can_be_taken_back(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-01": Ended(Outcome.INCONCLUSIVE, "too noisy")})
    roll(hosts, "--hold-for", "2")
    assert hosts.rig.json("resume", "--return", "glm5-01")["exit_code"] == 3
    assert releases(hosts) == [OLD] * 3


def test_an_abort_needs_no_release_on_this_machine(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-02": Ended(Outcome.INCONCLUSIVE, "too noisy")})
    run = roll(hosts, "--batch", "1")["result"]["run"]
    (hosts.rig.site.root / ".rackwell/releases" / NEW / "manifest.json").unlink()
    missing = hosts.rig.json("resume")
    assert hosts.rig.codes(missing) == ["release-missing"]
    assert f"rackwell abort {run}" in missing["problems"][0]["fix"]
    assert hosts.rig.json("abort")["exit_code"] == 0
    assert releases(hosts) == [OLD] * 3


def test_what_a_later_roll_changed_is_not_taken_back_by_an_earlier_one(hosts: Hosts) -> None:
    first = roll(hosts)["result"]["run"]
    for node in hosts.nodes.values():
        node.release = OLD  # somebody provisioned
    place = journal(hosts).parent
    place.rename(place.with_name("2" + "0" * 14 + "Z-aaaa"))
    second = roll(hosts)["result"]["run"]
    refused = hosts.rig.json("rollback", "2" + "0" * 14)
    assert hosts.rig.codes(refused) == ["roll-superseded"]
    assert second in refused["problems"][0]["fix"]
    assert first != second


def test_a_roll_that_is_over_is_told(hosts: Hosts) -> None:
    assert hosts.rig.json("resume")["exit_code"] == 2
    roll(hosts)
    for command in ("resume", "abort"):
        refused = hosts.rig.json(command)
        assert (refused["exit_code"], hosts.rig.codes(refused)) == (2, ["roll-finished"])
        assert "rackwell rollback" in refused["problems"][0]["fix"]
    assert hosts.rig.json("rollback")["exit_code"] == 0
    assert hosts.rig.codes(hosts.rig.json("rollback")) == ["nothing-to-return"]
    assert hosts.rig.codes(hosts.rig.json("resume", "nonsense")) == ["unknown-roll"]


def test_a_host_that_cannot_be_staged_stops_the_roll_before_any_switch(hosts: Hosts) -> None:
    hosts.down.add("glm5-03")
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (6, ["unreachable"])
    assert states(hosts) == ["none"] * 3
    hosts.down.clear()
    assert hosts.rig.json("resume")["exit_code"] == 0
    assert releases(hosts) == [NEW] * 3


def test_a_host_that_vanishes_returns_by_itself_and_gets_no_more_signs_of_life(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    whole = LiveFleet.forget
    monkeypatch.setattr(LiveFleet, "forget", lambda self, name: (forgotten.append(name), whole(self, name))[1])

    def cut(name: str, request: dict[str, Any]) -> None:
        if request["op"] == "promote":
            hosts.down.add(name)

    hosts.before = cut
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (6, ["roll-lost"])
    assert forgotten == ["glm5-01"]
    hosts.agents["glm5-01"].work(*(hosts["glm5-01"].timer or [])[2:])
    assert releases(hosts) == [OLD] * 3


def test_another_run_keeps_its_host(hosts: Hosts) -> None:
    hosts.agents["glm5-01"].ask({"op": "lock", "run": "other", "owner": "you@there", "lease_s": 600})
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (5, ["locked"])
    assert "run other of you@there" in envelope["problems"][0]["what"]
    assert states(hosts) == ["none"] * 3


def test_a_journal_that_cannot_be_written_stops_it(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Chain.append

    def full(self: Chain, record: dict[str, Any]) -> dict[str, Any]:
        if record.get("step") == "promote":
            raise OSError(28, "No space left on device")
        return whole(self, record)

    monkeypatch.setattr(Chain, "append", full)
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (1, ["journal-unwritable"])
    assert "glm5-01 return by themselves" in envelope["problems"][0]["what"]
    assert ("glm5-01", "promote") not in hosts.asked


def test_a_journal_that_somebody_changed_is_not_gone_on_with(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-01": Ended(Outcome.INCONCLUSIVE, "too noisy")})
    roll(hosts, "--hold-for", "2")
    journal(hosts).write_text(journal(hosts).read_text().replace("too noisy", "all is well"))
    for command in (["resume"], ["logs"], ["history", journal(hosts).parent.name]):
        broken = hosts.rig.json(*command)
        assert (broken["exit_code"], hosts.rig.codes(broken)) == (1, ["journal-broken"])
    assert hosts.rig.codes(hosts.rig.json("history")) == ["journal-broken"]


def test_a_first_ctrl_c_lets_the_hosts_come_to_their_end(hosts: Hosts) -> None:
    def interrupt(_name: str, request: dict[str, Any]) -> None:
        if request["op"] == "preflight":
            hosts.before = lambda _name, _request: None
            os.kill(os.getpid(), signal.SIGINT)

    hosts.before = interrupt
    envelope = roll(hosts, *NO_BENCH, "--batch", "1")
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (130, ["interrupted"])
    assert "promoted" not in states(hosts)[1:]
    assert all(hosts.agents[name].look(0)["lock"] is None for name in NAMES)
    assert "no further host is begun" in hosts.rig.err
    assert hosts.rig.json("resume")["exit_code"] == 0
    assert releases(hosts) == [NEW] * 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nothing",), 2),
        (("next", "--limit", "nobody"), 2),
        (("next", "--canary", "nobody"), 2),
        (("next", "--batch", "0"), 2),
        (("next", "--bench", "nothing"), 2),
        (("next", "--min-effect", "5"), 2),
        (("next", "--skip-gate", "bench"), 2),
        (("next", "--skip-gate", "luck", "--reason", "x"), 2),
        (("next", "--on-failure", "cry"), 2),
    ],
)
def test_what_makes_no_sense_touches_nothing(hosts: Hosts, arguments: tuple[str, ...], code: int) -> None:
    assert hosts.rig.at_site("roll", *arguments) == code
    assert (hosts.asked, hosts.rig.machines.calls) == ([], [])
    assert rolls.places(hosts.rig.site.root / ".rackwell") == []


def test_another_python_is_told_before_anything_is_built(hosts: Hosts) -> None:
    hosts.rig.site.edit("builds/next.yml", "3.11", "3.12")
    assert hosts.rig.codes(roll(hosts)) == ["python-differs"]


def test_a_plan_touches_nothing(hosts: Hosts) -> None:
    hosts["glm5-03"].release = NEW
    hosts.agents["glm5-02"].ask({"op": "lock", "run": "other", "owner": "you@there", "lease_s": 600})
    before = list(hosts.asked)
    envelope = roll(hosts, "--plan", "--canary", "glm5-02")
    assert envelope["exit_code"] == 0
    told = {line["host"]: line for line in envelope["result"]["hosts"]}
    assert [line["batch"] for line in envelope["result"]["hosts"]] == [1, 2, 3]
    assert (told["glm5-01"]["from"], told["glm5-01"]["to"]) == (OLD, NEW)
    assert told["glm5-01"]["baseline"] == "measured before the switch"
    assert "run other of you@there" in told["glm5-02"]["note"]
    assert "serves it already" in told["glm5-03"]["note"]
    assert hosts.asked == before
    assert rolls.places(hosts.rig.site.root / ".rackwell") == []
    hosts.down.add("glm5-01")
    assert roll(hosts, "--plan")["exit_code"] == 6


def test_the_log_has_what_happened(hosts: Hosts) -> None:
    roll(hosts)
    assert hosts.rig.at_site("logs", "-f") == 0
    lines = hosts.rig.out.splitlines()
    assert "roll 2" in lines[0]
    assert "the roll is over: exit code 0" in lines[-1]
    assert any("glm5-02" in line and "promote ok" in line for line in lines)
    assert len(hosts.rig.json("logs")["result"]["lines"]) == len(lines)
    assert hosts.rig.json("logs", "-f")["exit_code"] == 2


def test_unlock_wants_a_proof(hosts: Hosts) -> None:
    agent = hosts.agents["glm5-01"]
    agent.ask({"op": "lock", "run": "other", "owner": "you@there", "lease_s": 600})
    alive = hosts.rig.json("unlock", "glm5-01", "--run", "other")
    assert (alive["exit_code"], hosts.rig.codes(alive)) == (5, ["locked"])
    assert "you@there holds it" in alive["problems"][0]["why"]
    another = hosts.rig.json("unlock", "glm5-01", "--run", "mine")
    assert "rackwell unlock glm5-01 --run other" in another["problems"][0]["fix"]
    hosts["glm5-01"].moment = hosts["glm5-01"].moment._replace(uptime=2000.0)
    done = hosts.rig.json("unlock", "glm5-01", "--run", "other")
    assert (done["exit_code"], done["result"]["proof"]) == (0, "its lease is over")
    assert agent.look(0)["lock"] is None
    # whoever slept past its lease is refused now
    assert hosts.request("glm5-01", {"op": "renew", "run": "other", "epoch": 1})["ok"] is False
    again = hosts.rig.json("unlock", "glm5-01", "--run", "other")
    assert (again["exit_code"], again["result"]["unlocked"]) == (0, False)
    hosts.down.add("glm5-01")
    assert hosts.rig.json("unlock", "glm5-01", "--run", "other")["exit_code"] == 6


def test_a_process_that_is_gone_on_this_machine_is_a_proof(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-01": Ended(Outcome.INCONCLUSIVE, "too noisy")})
    run = roll(hosts, "--hold-for", "2")["result"]["run"]
    from rackwell.rollout.rolling import who

    hosts.agents["glm5-01"].ask({"op": "lock", "run": run, "owner": who(), "lease_s": 600})
    with Chain(journal(hosts)):
        assert hosts.rig.json("unlock", "glm5-01", "--run", run)["exit_code"] == 5
    done = hosts.rig.json("unlock", "glm5-01", "--run", run)
    assert "no process on this machine" in done["result"]["proof"]
    assert done["result"]["change"]["state"] == "open"


def test_a_benchmark_that_cannot_be_stored_is_no_verdict(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RackwellError(Problem("no-run-directory", "the run's directory cannot be made", "/x", "disk full"))

    monkeypatch.setattr(measure, "measure", full)
    envelope = roll(hosts, "--limit", "glm5-01")
    assert envelope["exit_code"] == 1
    assert "disk full" in json.dumps(envelope["problems"])
    assert states(hosts)[0] == "none"


class InTurn:
    """Benchmarks of what each host serves.

    Attributes:
        seen: (container, release) of each. judged: what the gate was given, by number in `seen`.
        during: called with the container before each.
    """

    def __init__(self, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts = hosts
        self.seen: list[tuple[str, str]] = []
        self.judged: list[tuple[list[int], list[int]]] = []
        self.during: Callable[[str], None] = lambda _name: None
        monkeypatch.setattr(measure, "measure", self._measure)
        monkeypatch.setattr(gate, "judge", self._judge)

    def _measure(self, target: Any, built: dict[str, Any], *_: object) -> Measured:
        name = target.container.name
        self.during(name)
        serves = self.hosts[name].release
        assert built["release"].digest == serves, "what is measured is credited to another release"
        self.seen.append((name, serves))
        run: Any = SimpleNamespace(run_id=str(len(self.seen) - 1), points=[SimpleNamespace(valid=True)])
        return Measured(run, None, True, [], ExitCode.DONE)

    def _judge(self, before: list[Any], after: list[Any], *_: object) -> Ended:
        self.judged.append(([int(one.run_id) for one in before], [int(one.run_id) for one in after]))
        return Ended(Outcome.OK)


@pytest.fixture
def in_turn(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> InTurn:
    for name in NAMES:
        hosts[name].installed()
    return InTurn(hosts, monkeypatch)


def test_old_and_new_are_measured_in_turn(hosts: Hosts, in_turn: InTurn) -> None:
    envelope = roll(hosts, "--limit", "glm5-01", "--interleave", "2")
    assert (envelope["exit_code"], envelope["problems"]) == (0, [])
    assert [release for _name, release in in_turn.seen] == [OLD, NEW, OLD, NEW, OLD, NEW]
    assert in_turn.judged == [([0, 2, 4], [1, 3, 5])]
    assert (hosts["glm5-01"].release, states(hosts)[0]) == (NEW, "promoted")


def test_an_old_release_that_does_not_come_back_in_its_turn_is_broken(hosts: Hosts, in_turn: InTurn) -> None:
    def damaged(name: str) -> None:
        if len(in_turn.seen) == 1:
            hosts[name].good = frozenset({NEW})

    in_turn.during = damaged
    envelope = roll(hosts, "--limit", "glm5-01", "--interleave", "1")
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (1, ["roll-broken"])
    assert in_turn.judged == []


def test_who_goes_on_in_a_turn_measures_the_new_release_first(hosts: Hosts, in_turn: InTurn) -> None:
    def killed(_name: str) -> None:
        # the old one, once more
        if len(in_turn.seen) == 2:
            hosts.down.add("glm5-01")
            raise RackwellError(Problem("x", "the controller loses the host", "here"))

    in_turn.during = killed
    envelope = roll(hosts, "--limit", "glm5-01", "--interleave", "1")
    assert envelope["exit_code"] == 6
    assert hosts["glm5-01"].release == OLD
    hosts.down.clear()
    in_turn.during = lambda _name: None
    assert hosts.rig.json("resume")["exit_code"] == 0
    assert [release for _name, release in in_turn.seen] == [OLD, NEW, NEW, OLD, NEW]
    assert hosts["glm5-01"].release == NEW


def test_a_host_that_lost_what_was_prepared_is_not_touched(hosts: Hosts) -> None:
    def lose(name: str, request: dict[str, Any]) -> None:
        if (name, request["op"]) == ("glm5-01", "preflight"):
            for path in (hosts[name].directory / "rollout/wanted").iterdir():
                path.unlink()

    hosts.before = lose
    envelope = roll(hosts, *NO_BENCH)
    assert (envelope["exit_code"], releases(hosts)) == (1, [OLD] * 3)
    assert "begin it anew" in json.dumps(envelope["problems"])
    assert ("glm5-01", "switch") not in hosts.asked


def test_a_start_that_is_not_accepted_is_told_with_its_cause(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(node: Node) -> None:
        node.serves = False
        said = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free"]
        raise GateError("engine-died", "the engine died", "exit code 1", said, said)

    node = hosts["glm5-01"]
    monkeypatch.setattr(node, "_start", lambda: lost(node) if node.release == NEW else setattr(node, "serves", True))
    envelope = roll(hosts, *NO_BENCH)
    assert (envelope["exit_code"], releases(hosts)) == (3, [OLD] * 3)
    (problem,) = envelope["problems"]
    assert "the engine died: exit code 1" in problem["why"] + problem["what"]
    assert "oom]" in problem["why"]
    assert "memory" in problem["fix"]


def test_a_host_that_cannot_say_what_became_of_its_switch_is_asked_again(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def ask(connection: ssh.Connection, remote: list[str], text: str = "", **options: Any) -> ssh.Said:
        said = hosts.ask(connection, remote, text, **options)
        switched = ("glm5-01", "switch") in hosts.asked
        if connection.host == "glm5-01" and switched and json.loads(text)["op"] == "look" and not failed:
            failed.append(text)
            return ssh.Said(1, json.dumps({"ok": False, "error": "OSError: [Errno 22] Invalid argument"}), "")
        return said

    monkeypatch.setattr(ssh, "ask", ask)
    envelope = roll(hosts, *NO_BENCH)
    assert (envelope["exit_code"], releases(hosts)) == (0, [NEW] * 3)
    assert failed
