# SPDX-License-Identifier: Apache-2.0
"""Rolls with a router in front: when a host is out of it, and what becomes of the roll when the router does not answer.

The router's own side is made up here; tests/unit/router has the real one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.ansible import runner, ssh
from rackwell.ansible.results import PlayResult
from rackwell.rollout.steps import Ended, Outcome

from .conftest import NAMES, Hosts
from .node import NEW, OLD
from .test_commands import benched, releases, roll


class Front:
    """A router's machine.

    Attributes:
        drained: who is out. log: (op, host) of what was asked, and (``switch``, host) of the hosts' switches.
        answer: what it says instead of doing; None for doing it. reached: whether ssh gets there.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.drained: set[str] = set()
        self.log: list[tuple[str, str]] = []
        self.answer: dict[str, Any] | None = None
        self.reached = True

    def ask(self, connection: ssh.Connection, remote: list[str], text: str = "", **options: Any) -> ssh.Said:
        if connection.host != "front":
            if json.loads(text)["op"] == "switch":
                self.log.append(("switch", connection.host))
                assert connection.host in self.drained, "it is switched while it is in rotation"
            return self.hosts.ask(connection, remote, text, **options)
        assert remote == ["/usr/local/lib/rackwell/router-agent", "ask"]
        if not self.reached:
            return ssh.Said(ssh.LOST, "", "No route to host")
        request = json.loads(text)
        if request["op"] == "look":
            return ssh.Said(0, json.dumps(self.answer or {"answers": True, "workers": []}), "")
        self.log.append((request["op"], request["worker"]))
        if self.answer is not None:
            return ssh.Said(1, json.dumps(self.answer), "")
        (self.drained.add if request["op"] == "drain" else self.drained.discard)(request["worker"])
        return ssh.Said(0, json.dumps({"worker": request["worker"]}), "")

    def play(self, name: str, site: Path, run: runner.RunDirectory, limit: list[str], **options: Any) -> PlayResult:
        if name != "router_look":
            return self.hosts.play(name, site, run, limit, **options)
        event = ("unreachable", "front", "", {"msg": "No route to host"})
        told = {"schema": "rackwell.router/1", "connection": {"host": "front"}}
        if self.reached:
            event = ("ok", "front", "router", {"rackwell_result": told})
        self.hosts.rig.machines.on(name, event)
        return self.hosts.rig.machines.play(name, site, run, limit, **options)


@pytest.fixture
def front(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Front:
    """A router in front of the three."""
    site = hosts.rig.site
    site.add("hosts.yml", "    routers:\n      hosts:\n        front:\n          ansible_host: 192.0.2.9\n")
    site.edit("profiles/toy.yml", "server:\n", "server:\n  host: 0.0.0.0\n")
    made = Front(hosts)
    monkeypatch.setattr(runner, "play", made.play)
    monkeypatch.setattr(ssh, "ask", made.ask)
    return made


def test_a_plan_names_who_would_drain_each(hosts: Hosts, front: Front) -> None:
    envelope = roll(hosts, "--plan")
    assert {tuple(line["drained_by"]) for line in envelope["result"]["hosts"]} == {("front",)}
    assert front.log == []


def test_each_host_is_out_while_it_is_switched(hosts: Hosts, front: Front) -> None:
    assert roll(hosts, "--batch", "1", "--skip-gate", "bench", "--reason", "a test")["exit_code"] == 0
    assert front.log == [(word, name) for name in NAMES for word in ("drain", "switch", "undrain")]
    assert front.drained == set()
    # and again on the way back
    front.log.clear()
    assert hosts.rig.json("rollback")["exit_code"] == 0
    assert front.log == [(word, name) for name in reversed(NAMES) for word in ("drain", "undrain")]
    assert releases(hosts) == [OLD] * 3


def test_a_host_that_returned_is_in_rotation_again(hosts: Hosts, front: Front) -> None:
    hosts["glm5-01"].good = frozenset({OLD})
    assert roll(hosts)["exit_code"] == 3
    assert front.log == [("drain", "glm5-01"), ("switch", "glm5-01"), ("undrain", "glm5-01")]


def test_a_gate_that_fails_brings_all_of_them_back(hosts: Hosts, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    benched(hosts, monkeypatch, {"glm5-02": Ended(Outcome.FAIL, "-73%")})
    assert roll(hosts, "--batch", "1")["exit_code"] == 3
    assert front.drained == set()
    assert front.log[-2:] == [("drain", "glm5-01"), ("undrain", "glm5-01")]


@pytest.mark.parametrize("reached", [True, False])
def test_a_router_that_does_not_answer_keeps_the_host_as_it_is(hosts: Hosts, front: Front, reached: bool) -> None:
    front.reached, front.answer = reached, {"answers": False, "why": "the router does not answer: refused"}
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (1, ["roll-stopped"])
    assert "glm5-01 was not switched: router front: " in envelope["problems"][0]["what"]
    assert "does not answer" in envelope["problems"][0]["what"]
    # nothing was taken from it, so nothing is brought back, and the host is not told as broken
    assert front.log == []
    # it was found before anything was measured
    assert ("glm5-01", "check") not in hosts.asked
    assert releases(hosts) == [OLD] * 3


def test_a_router_that_falls_silent_after_the_look_drains_nobody(
    hosts: Hosts, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(connection: ssh.Connection, remote: list[str], text: str = "", **options: Any) -> ssh.Said:
        said = front.ask(connection, remote, text, **options)
        if connection.host == "front":
            front.answer = {"answers": False, "why": "refused"}
        return said

    monkeypatch.setattr(ssh, "ask", ask)
    envelope = roll(hosts)
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (1, ["roll-stopped"])
    assert "router front: refused" in envelope["problems"][0]["what"]
    assert front.log == []
    assert releases(hosts) == [OLD] * 3


def test_a_router_that_was_not_set_up_is_told_so(hosts: Hosts, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(connection: ssh.Connection, remote: list[str], text: str = "", **options: Any) -> ssh.Said:
        if connection.host == "front":
            return ssh.Said(127, "", "sh: router-agent: not found")
        return hosts.ask(connection, remote, text, **options)

    monkeypatch.setattr(ssh, "ask", ask)
    envelope = roll(hosts)
    assert envelope["exit_code"] == 1
    assert "rackwell provision does it" in envelope["problems"][0]["what"]
    assert releases(hosts) == [OLD] * 3


def test_requests_that_do_not_end_keep_the_host_as_it_is(hosts: Hosts, front: Front) -> None:
    told = "glm5-01 was not drained: 3 of its requests did not end within 300 s; it is in rotation again"
    ask = front.ask

    def slow(connection: ssh.Connection, remote: list[str], text: str = "", **options: Any) -> ssh.Said:
        if connection.host == "front" and json.loads(text)["op"] == "drain":
            return ssh.Said(1, json.dumps({"error": told}), "")
        return ask(connection, remote, text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssh, "ask", slow)
        envelope = roll(hosts)
    assert envelope["exit_code"] == 1
    assert told in envelope["problems"][0]["what"]
    # asked for all the same: nobody knows how far it came
    assert front.log == [("undrain", "glm5-01")]
    assert releases(hosts) == [OLD] * 3


def test_a_host_that_no_router_takes_back_is_told_and_stops_the_roll(hosts: Hosts, front: Front) -> None:
    ask = front.ask

    def deaf(connection: ssh.Connection, remote: list[str], text: str = "", **options: Any) -> ssh.Said:
        if connection.host == "front" and json.loads(text)["op"] == "undrain":
            return ssh.Said(1, json.dumps({"error": "the router has it, and calls it unhealthy"}), "")
        return ask(connection, remote, text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssh, "ask", deaf)
        envelope = roll(hosts, "--on-failure", "keep", "--skip-gate", "bench", "--reason", "a test")
    assert (envelope["exit_code"], hosts.rig.codes(envelope)) == (1, ["roll-broken"])
    problem = envelope["problems"][0]
    assert "could not be brought back into rotation" in problem["what"]
    assert "calls it unhealthy" in problem["why"]
    assert "rackwell provision glm5-01" in problem["fix"]
    assert releases(hosts) == [NEW, OLD, OLD]


def test_hooks_are_called_besides(hosts: Hosts, front: Front) -> None:
    folder = hosts.rig.site.root / "hooks"
    folder.mkdir()
    for word in ("drain", "undrain"):
        (folder / word).write_text(f'#!/bin/sh\necho {word} "$1" >>"{folder}/log"\n')
        (folder / word).chmod(0o755)
    assert roll(hosts, "--limit", "glm5-01", "--skip-gate", "bench", "--reason", "a test")["exit_code"] == 0
    assert (folder / "log").read_text().split("\n")[:2] == ["drain glm5-01", "undrain glm5-01"]
    assert front.log == [("drain", "glm5-01"), ("switch", "glm5-01"), ("undrain", "glm5-01")]
