# SPDX-License-Identifier: Apache-2.0
"""A site of three containers whose own sides of a roll are real, and whose plays and connections are made up."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_ports as ports
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_agent import Agent, answer

sys.path.insert(0, str(Path(__file__).parents[1] / "site"))
sys.path.insert(0, str(Path(__file__).parents[1] / "topology"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from cli_rig import Rig, make_rig

from rackwell.ansible import runner, ssh
from rackwell.ansible.results import PlayResult
from rackwell.provision import builds
from rackwell.provision.builds import Built

from .node import NEW, OLD, WANTED, Node

NAMES = ("glm5-01", "glm5-02", "glm5-03")


class Hosts:
    """The containers.

    Attributes:
        down: those that do not answer. before: called before each request, with the container and the request.
        asked: (container, op) of each request.
    """

    def __init__(self, rig: Rig, root: Path) -> None:
        self.rig = rig
        self.nodes = {name: Node(root / name) for name in NAMES}
        self.agents: dict[str, Agent] = {}
        for name, node in self.nodes.items():
            node.installed(OLD, NEW)
            directory = str(node.directory / "rollout")
            self.agents[name] = Agent(directory, node, node, ["agent"], lambda node=node: node.moment, lambda _s: None)
        self.down: set[str] = set()
        self.before: Callable[[str, dict[str, Any]], None] = lambda _name, _request: None
        self.asked: list[tuple[str, str]] = []

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def request(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask a host, and let it do what it then does by itself."""
        told, _code = answer(self.agents[name], json.dumps(request))
        while self.nodes[name].ordered:
            self.agents[name].work(*self.nodes[name].ordered.pop()[2:])
        return told

    def ask(self, connection: ssh.Connection, remote: list[str], text: str = "", **_: Any) -> ssh.Said:
        """In place of OpenSSH."""
        name, request = connection.host, json.loads(text)
        self.asked.append((name, str(request["op"])))
        self.before(name, request)
        if name in self.down:
            return ssh.Said(ssh.LOST, "", "No route to host")
        assert remote == ["/usr/local/lib/rackwell/rollout-agent", "ask"]
        return ssh.Said(0, json.dumps(self.request(name, request)), "")

    def play(self, name: str, site: Path, run: runner.RunDirectory, limit: list[str], **options: Any) -> PlayResult:
        """In place of Ansible."""
        events: list[tuple[str, str, str, dict[str, Any]]] = []
        for host in limit:
            if host in self.down:
                events.append(("unreachable", host, "", {"msg": "Failed to connect: No route to host"}))
                continue
            if name == "roll_stage":
                events.append(
                    ("ok", host, "release", {"rackwell_result": {"schema": "rackwell.release_store/1", "digest": NEW}})
                )
                run_id = str(options["extra"]["__inference_server_roll_run"])
                lacking = self.request(host, {"op": "prepare", "run": run_id, "wanted": WANTED})["lacking"]
                if lacking:
                    events.append(("failed", host, "inference_server", {"rackwell_error": lacking[0]}))
                    continue
            run_id = str((options.get("extra") or {}).get("__inference_server_roll_run") or "")
            told = {**self.agents[host].look(0, run_id), "installed": True, "connection": {"host": host}}
            events.append(("ok", host, "inference_server", {"rackwell_result": told}))
        self.rig.machines.on(name, *events)
        return self.rig.machines.play(name, site, run, limit, **options)


@pytest.fixture(autouse=True)
def _no_ports_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens on the machine of the tests is none of a made-up host's."""
    monkeypatch.setattr(ports, "port_owners", lambda _host, _port: [])


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hosts:
    """Three containers that serve OLD; the build `next` is NEW."""
    rig = make_rig(tmp_path, monkeypatch, capsys)
    rig.site.add("hosts.yml", "        glm5-02:\n        glm5-03:\n")
    machines = "".join(f"        pve{n}:\n          ansible_host: 192.0.2.1{n}\n" for n in (2, 3))
    rig.site.edit("hosts.yml", "    gpu_containers:", f"{machines}    gpu_containers:")
    key = (rig.site.root / "known_hosts").read_text()
    rig.site.add("known_hosts", "".join(key.replace("192.0.2.10", f"192.0.2.1{n}") for n in (2, 3)))
    first = (rig.site.root / "host_vars/glm5-01.yml").read_text()
    for number in (2, 3):
        text = first.replace("201", f"20{number}").replace("glm5-01", f"glm5-0{number}")
        text = text.replace("2.21/", f"2.2{number}/").replace("pve1", f"pve{number}")
        rig.site.write(f"host_vars/glm5-0{number}.yml", text)
    rig.site.write("builds/next.yml", (rig.site.root / "builds/server.yml").read_text())
    made = Hosts(rig, tmp_path / "hosts")
    monkeypatch.setattr(runner, "play", made.play)
    monkeypatch.setattr(ssh, "ask", made.ask)
    path = rig.site.root / ".rackwell/releases" / NEW
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    whole = builds.make_all

    def make_all(site: Any, container: Any, progress: Any, server: str = "") -> dict[str, Built]:
        made = whole(site, container, progress)
        return {**made, "release": Built(server, NEW, path, False, {})} if server else made

    monkeypatch.setattr(builds, "make_all", make_all)
    monkeypatch.setattr("rackwell.rollout.live.LOOK_PAUSE_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
    return made
