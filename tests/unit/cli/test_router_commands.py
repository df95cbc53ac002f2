# SPDX-License-Identifier: Apache-2.0
"""Routers from the command line: what `provision` does for them, and what `status` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_rig import Rig, make_rig

from rackwell.provision import builds
from rackwell.provision.builds import Built

RELEASE = "ab" * 32


@pytest.fixture
def routed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    """A router on a machine of its own in front of the container."""
    rig = make_rig(tmp_path, monkeypatch, capsys)
    rig.site.add("hosts.yml", "    routers:\n      hosts:\n        front:\n          ansible_host: 192.0.2.9\n")
    rig.site.add("hosts.yml", "          router_address: 0.0.0.0\n")
    rig.site.edit("profiles/toy.yml", "server:\n", "server:\n  host: 0.0.0.0\n")
    path = rig.site.root / ".rackwell/releases" / RELEASE
    monkeypatch.setattr(builds, "make_router", lambda *_: Built("router", RELEASE, path, False, {}))
    return rig


def calls(rig: Rig, name: str) -> list[dict[str, Any]]:
    return [options for called, options in rig.machines.calls if called == name]


def heard(**told: Any) -> tuple[str, str, str, dict[str, Any]]:
    result = {"schema": "rackwell.router/1", "installed": True, "answers": True, "why": "", "others": [], **told}
    return ("ok", "front", "router", {"rackwell_result": result})


def worker(**told: Any) -> dict[str, Any]:
    return {
        "name": "glm5-01",
        "url": "http://192.0.2.21:30000",
        "listed": True,
        "healthy": True,
        "drained": None,
    } | told


def test_provision_sets_it_up_after_the_container_serves(routed: Rig) -> None:
    envelope = routed.json("provision", "glm5-01", "--no-bench")
    assert envelope["exit_code"] == 0, envelope["problems"]
    assert envelope["result"]["routers"] == [
        {"name": "front", "url": "http://192.0.2.9:30080/v1", "changed": 0, "ok": True}
    ]
    names = [name for name, _ in routed.machines.calls]
    assert names.index("router") > names.index("provision")
    (played,) = calls(routed, "router")
    assert played["limit"] == ["front"]
    assert played["extra"]["router_bundle"].endswith(RELEASE)
    # what a roll left drained is brought back by it
    assert played["extra"]["__router_undrain"] == ["glm5-01"]


def test_check_mode_asks_for_it_as_well(routed: Rig) -> None:
    assert routed.json("provision", "glm5-01", "--check")["exit_code"] == 0
    assert calls(routed, "router")[0]["check"]


def test_a_container_that_is_not_provisioned_is_not_given_to_it(routed: Rig) -> None:
    error = {"code": "broken", "what": "it broke", "where": "glm5-01", "why": "", "fix": ""}
    routed.machines.on("provision", ("failed", "glm5-01", "release", {"rackwell_error": error}))
    assert routed.json("provision", "glm5-01")["exit_code"] == 1
    assert calls(routed, "router") == []


def test_a_router_that_fails_is_told_and_the_container_serves(routed: Rig) -> None:
    error = {"code": "router-undrain", "what": "glm5-01 is not back", "where": "front", "why": "", "fix": "see"}
    routed.machines.on("router", ("failed", "front", "router", {"rackwell_error": error}))
    envelope = routed.json("provision", "glm5-01", "--no-bench")
    assert (envelope["exit_code"], routed.codes(envelope)) == (1, ["router-undrain"])
    assert not envelope["result"]["routers"][0]["ok"]


def test_without_a_router_nothing_is_done_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = make_rig(tmp_path, monkeypatch, capsys)
    envelope = rig.json("provision", "glm5-01", "--no-bench")
    assert (envelope["exit_code"], envelope["result"]["routers"], calls(rig, "router")) == (0, [], [])
    assert rig.json("status")["result"]["routers"] == []


@pytest.mark.parametrize(
    ("event", "state", "says"),
    [
        (heard(workers=[worker()]), "serves", "in rotation"),
        (heard(workers=[worker(healthy=False)]), "no worker", "unhealthy"),
        (heard(workers=[worker(listed=False, healthy=False)]), "no worker", "not in it"),
        (
            heard(workers=[worker(drained={"run": "20261130T1-a", "since": 1796035200})]),
            "no worker",
            "drained by run 20261130T1-a since 2026-11-30 10:40 UTC",
        ),
        (heard(answers=False, why="refused", workers=[worker(listed=False)]), "silent", "not in it"),
        (heard(installed=False, answers=None), "absent", None),
        (("unreachable", "front", "router", {"msg": "No route to host"}), "unreachable", None),
    ],
)
def test_status_says_who_is_behind_it(routed: Rig, event: Any, state: str, says: str | None) -> None:
    routed.machines.on("status", event)
    (row,) = routed.json("status")["result"]["routers"]
    assert (row["router"], row["state"]) == ("front", state)
    assert row["workers"].get("glm5-01") == says
    assert "front" in calls(routed, "status")[0]["limit"]
    routed.at_site("status")
    assert f"router front {state}" in routed.out


def test_a_declaration_that_does_not_hold_keeps_its_containers_from_being_touched(routed: Rig) -> None:
    routed.site.edit("profiles/toy.yml", "  host: 0.0.0.0\n", "")
    envelope = routed.json("provision", "glm5-01")
    assert (envelope["exit_code"], routed.codes(envelope)) == (2, ["router-cannot-reach"])
    routed.site.edit("profiles/toy.yml", "server:\n", "server:\n  host: 0.0.0.0\n")
    routed.site.add("group_vars/all.yml", "router_build: nope\n")
    envelope = routed.json("provision", "glm5-01")
    assert (envelope["exit_code"], routed.codes(envelope)) == (2, ["file-missing"])
    assert "router_build" in str(envelope["problems"][0]["where"]) or "all.yml" in envelope["problems"][0]["where"]
