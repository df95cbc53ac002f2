# SPDX-License-Identifier: Apache-2.0
"""Machines that are not there: plays whose events are made up, and releases that were never built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import samples
from sitemaker import SiteMaker, listing

from rackwell.ansible import runner
from rackwell.ansible.events import Collector
from rackwell.ansible.results import PlayResult
from rackwell.cli.main import main
from rackwell.provision import builds
from rackwell.provision.builds import Built
from rackwell.site import inventory

ERROR = {
    "code": "engine-died",
    "what": "the engine died while loading",
    "where": "unit",
    "why": "exit 1",
    "fix": "see it",
}

HOST = {"schema": "rackwell.pve_host/1", "driver_version": "595.58.03", "gpus": [{}] * 8}
CONTAINER = {
    "schema": "rackwell.pve_container/1",
    "vmid": 201,
    "exists": True,
    "changed_keys": [],
    "systemd": "running",
}
GPUS = samples.healthy()
SERVER = {"schema": "rackwell.inference_server/1", "health": 200, "answer": " Paris."}


def release(digest: str) -> dict[str, Any]:
    return {
        "schema": "rackwell.release_store/1",
        "name": "server",
        "digest": digest,
        "staged": True,
        "staged_before": True,
        "slot_before": digest,
    }


def point(concurrency: int, valid: bool = True) -> dict[str, Any]:
    return {
        "schema": "rackwell.bench_point/1",
        "concurrency": concurrency,
        "num_prompts": concurrency * 4,
        "input_tokens": 128,
        "output_tokens": 64,
        "status": "measured" if valid else "failed",
        "valid": valid,
        "throughput": {
            "duration_s": 10.0,
            "request_per_s": 1.0,
            "input_tok_per_s": 128.0,
            "output_tok_per_s": 64.0 * concurrency,
            "total_tok_per_s": 192.0 * concurrency,
        },
    }


class Machines:
    """Stands in for `runner.play`: each playbook has its list of (event, host, role, result)."""

    def __init__(self) -> None:
        self.plays: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.during: Callable[[str], None] = lambda name: None
        #: names of plays of which the next one is ended by Ctrl-C
        self.interrupted: list[str] = []

    def on(self, name: str, *events: tuple[str, str, str, dict[str, Any]]) -> None:
        self.plays[name] = list(events)

    def play(
        self, name: str, site: Path, run: runner.RunDirectory, limit: list[str], *, listener: Any, **options: Any
    ) -> PlayResult:
        self.calls.append((name, {"limit": limit, **options}))
        run.write(f"play {name}")
        self.during(name)
        result = PlayResult(name, run.log)
        collector = Collector(result, listener, options.get("on_result", lambda _: None))
        counts: dict[str, dict[str, int]] = {key: {} for key in ("ok", "changed", "failures", "dark", "rescued")}
        for number, (event, host, role, res) in enumerate(self.plays.get(name, [])):
            rescued = res.pop("rescued", False)
            data = {"host": host, "role": role, "task": res.pop("task", f"Do {role}"), "task_uuid": str(number)}
            collector.take({"event": f"runner_on_{event}", "event_data": {**data, "res": res}})
            kind = {"ok": "ok", "failed": "rescued" if rescued else "failures", "unreachable": "dark"}[event]
            counts[kind][host] = counts[kind].get(host, 0) + 1
            if res.get("changed"):
                counts["changed"][host] = counts["changed"].get(host, 0) + 1
        collector.take({"event": "playbook_on_stats", "event_data": counts})
        if name in self.interrupted:
            self.interrupted.remove(name)
            result.interrupted = True
        collector.finish(4 if counts["dark"] else 2 if counts["failures"] else 0)
        return result


class Rig:
    """A site, its machines, and the command line."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.site = SiteMaker(root)
        self.machines = Machines()
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def run(self, *arguments: str) -> int:
        code = main([*arguments])
        self.out, self.err = self._capsys.readouterr()
        return code

    def at_site(self, *arguments: str) -> int:
        return self.run(*arguments, "-i", str(self.site.root))

    def json(self, *arguments: str) -> dict[str, Any]:
        """The envelope of a command, whose exit code must be the process's."""
        code = self.at_site(*arguments, "--json")
        envelope: dict[str, Any] = json.loads(self.out)
        assert envelope["exit_code"] == code
        return envelope

    def codes(self, envelope: dict[str, Any]) -> list[str]:
        return [problem["code"] for problem in envelope["problems"]]


def built(site: SiteMaker) -> dict[str, Built]:
    def one(role: str, name: str) -> Built:
        digest = hashlib.sha256(role.encode()).hexdigest()
        return Built(name, digest, site.root / ".rackwell" / "releases" / digest, False, {"wheels": [], "patches": []})

    return {
        "release": one("release", "server"),
        "gpu_probe": one("gpu_probe", "probe"),
        "bench_client": one("b", "bench-client"),
    }


DIGEST = hashlib.sha256(b"release").hexdigest()


def make_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    rig = Rig(tmp_path / "site", capsys)
    monkeypatch.setattr(inventory, "read", lambda path: inventory.from_listing(listing(path), path))
    monkeypatch.setattr(runner, "play", rig.machines.play)
    monkeypatch.setattr(builds, "make_all", lambda site, container, progress, server="": built(rig.site))
    rig.machines.on(
        "bench",
        ("ok", "glm5-01", "bench_client", {"rackwell_result": point(4)}),
        ("ok", "glm5-01", "bench_client", {"rackwell_result": point(16)}),
    )
    return rig
