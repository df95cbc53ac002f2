# SPDX-License-Identifier: Apache-2.0
"""`rackwell adopt` and `rackwell drift` on a site with machines that are made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from cli_rig import CONTAINER, ERROR, Rig

SEEN: dict[str, Any] = {
    "schema": "rackwell.pve_container_look/1",
    "vmid": 202,
    "node": "pve1",
    "file": "/etc/pve/lxc/202.conf",
    "digest": "0123456789abcdef",
    "running": True,
    "declaration": {
        "vmid": 202,
        "hostname": "old-box",
        "adopted": True,
        "ostype": "debian",
        "storage": "local",
        "disk_size": 32,
        "unprivileged": True,
        "memory": 8192,
        "swap": 0,
        "onboot": True,
        "features": {"nesting": True},
        "gpus": ["0000:06:00.0"],
        "devices": ["/dev/nvidiactl"],
        "device_mode": "0666",
        "mounts": [{"source": "/srv/models/toy", "target": "/srv/models/toy", "read_only": True}],
        "bridge": "vmbr0",
        "ip": "192.0.2.22/24",
        "raw": [],
    },
    "untold": [],
    "oddities": [],
    "gpus": [{"bus_id": "0000:06:00.0"}],
    "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e"],
    "missing_keys": 0,
    "templates": ["local:vztmpl/debian-12.tar.zst"],
}
DRIFT = {
    "code": "differs",
    "severity": "error",
    "side": "both",
    "key": "memory",
    "what": "memory is not what is declared",
    "found": "4096",
    "declared": "8192",
    "line": "memory: 4096",
    "number": 7,
    "fix": "rackwell provision makes it so",
}
WARNING = {
    **DRIFT,
    "code": "pending",
    "severity": "warning",
    "what": "memory: a change of it waits",
    "fix": "pct reboot VMID",
}
NOTE = {**DRIFT, "code": "not-spoken-of", "severity": "note", "what": "the declaration does not speak of net1"}


def machine(rig: Rig, seen: dict[str, Any], *drift: dict[str, Any], changed: bool = False) -> None:
    """What the host tells of the container, before and after it is declared."""
    rig.machines.on("adopt", ("ok", "pve1", "", {"rackwell_result": seen}))
    report = {**CONTAINER, "vmid": 202, "drift": list(drift)}
    rig.machines.on("drift", ("ok", "old-box", "pve_container", {"changed": changed, "rackwell_result": report}))
    rig.machines.during = lambda name: (
        name == "adopt_keys" and rig.site.add("known_hosts", f"192.0.2.22 {SEEN['host_keys'][0]}\n")
    )


def names(rig: Rig) -> list[str]:
    return [name for name, _ in rig.machines.calls]


def test_a_container_is_declared_and_proved(rig: Rig) -> None:
    machine(rig, SEEN, NOTE)
    assert rig.at_site("adopt", "pve1", "202") == 0
    site = rig.site.load()
    node = site.containers["old-box"]
    assert node.value("pve_container_vmid") == 202
    assert node.value("pve_container_adopted") is True
    # what its groups give is not written again
    written = yaml.safe_load((rig.site.root / "host_vars/old-box.yml").read_text())
    assert "pve_container_template" not in written
    assert site.problems_of("old-box") == []
    assert names(rig) == ["adopt", "adopt_keys", "drift"]
    assert rig.machines.calls[0][1]["extra"]["rackwell_adopt_ssh_public_key"].startswith("ssh-ed25519")
    assert rig.machines.calls[2][1]["check"] is True
    assert "changes nothing" in rig.out


def test_json_tells_all_of_it(rig: Rig) -> None:
    machine(rig, {**SEEN, "missing_keys": 1, "running": False})
    envelope = rig.json("adopt", "pve1", "202", "--name", "other")
    result = envelope["result"]
    assert (envelope["schema"], result["container"], result["vmid"]) == ("rackwell.adopt/1", "other", 202)
    assert [file.rpartition("/")[2] for file in result["files"]] == ["other.yml", "hosts.yml"]
    assert result["declaration"]["hostname"] == "old-box"
    assert len(result["notes"]) == 2


def test_a_dry_run_writes_nothing(rig: Rig) -> None:
    machine(rig, SEEN)
    before = {path: path.read_bytes() for path in rig.site.root.rglob("*.yml")}
    assert rig.at_site("adopt", "pve1", "202", "--dry-run") == 0
    assert yaml.safe_load(rig.out)["pve_container_vmid"] == 202
    assert {path: path.read_bytes() for path in rig.site.root.rglob("*.yml")} == before
    assert names(rig) == ["adopt"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pve9", "202"], "unknown-host"),
        (["pve1", "201"], "already-declared"),
        (["pve1", "202", "--name", "glm5-01"], "file-exists"),
        (["pve1", "202", "--name", "pve1"], "bad-name"),
        (["pve1", "202", "--name", "../x"], "bad-name"),
        (["pve1", "12"], "usage"),
    ],
)
def test_what_is_declared_is_not_lost(rig: Rig, arguments: list[str], code: str) -> None:
    machine(rig, SEEN)
    before = {path: path.read_bytes() for path in rig.site.root.rglob("*.yml")}
    envelope = rig.json("adopt", *arguments)
    assert (rig.codes(envelope), envelope["exit_code"]) == ([code], 2)
    assert {path: path.read_bytes() for path in rig.site.root.rglob("*.yml")} == before


def test_an_own_file_is_written_over_when_that_is_asked_for(rig: Rig) -> None:
    machine(rig, {**SEEN, "declaration": {**SEEN["declaration"], "vmid": 201, "hostname": "glm5-01"}})
    assert rig.codes(rig.json("adopt", "pve1", "201", "--name", "glm5-01")) == ["already-declared"]
    rig.at_site("adopt", "pve1", "201", "--name", "glm5-01", "--overwrite")
    assert "Written by `rackwell adopt`" in (rig.site.root / "host_vars/glm5-01.yml").read_text()


def test_a_directory_of_variables_is_never_written_over(rig: Rig) -> None:
    machine(rig, SEEN)
    rig.site.write("host_vars/old-box/main.yml", "a: 1\n")
    for more in ([], ["--overwrite"]):
        assert rig.codes(rig.json("adopt", "pve1", "202", *more)) == ["file-exists"]


def test_what_cannot_be_declared_is_told_and_left_to_fill_in(rig: Rig) -> None:
    untold = {
        "key": "net0",
        "what": "its address is dhcp",
        "fix": "give it a fixed one",
        "blocks": True,
        "line": "net0: name=eth0,ip=dhcp",
        "number": 9,
    }
    declaration = {key: value for key, value in SEEN["declaration"].items() if key != "ip"}
    machine(rig, {**SEEN, "declaration": declaration, "untold": [untold]})
    envelope = rig.json("adopt", "pve1", "202")
    assert envelope["exit_code"] == 4
    told = envelope["problems"][0]
    assert (told["code"], told["where"], told["why"]) == (
        "not-declarable",
        "pve1:/etc/pve/lxc/202.conf:9",
        "net0: name=eth0,ip=dhcp",
    )
    text = (rig.site.root / "host_vars/old-box.yml").read_text()
    assert "pve_container_ip: FILL_IN 192.0.2.21/24" in text
    assert "# Not declared: net0: name=eth0,ip=dhcp (its address is dhcp)" in text
    assert "drift" not in names(rig)
    assert (envelope["result"]["proved"], envelope["result"]["drift"]) == (False, None)


def test_a_container_that_differs_all_the_same_is_held(rig: Rig) -> None:
    machine(rig, SEEN, DRIFT, changed=True)
    envelope = rig.json("adopt", "pve1", "202")
    assert (envelope["exit_code"], envelope["result"]["proved"], rig.codes(envelope)) == (4, False, ["differs"])


def test_a_host_that_does_not_know_the_container_ends_it(rig: Rig) -> None:
    rig.machines.on("adopt", ("failed", "pve1", "", {"rackwell_error": {**ERROR, "code": "no-container"}}))
    envelope = rig.json("adopt", "pve1", "299")
    assert (rig.codes(envelope), envelope["exit_code"]) == (["no-container"], 1)
    rig.machines.on("adopt", ("unreachable", "pve1", "", {"msg": "timed out"}))
    assert rig.json("adopt", "pve1", "299")["exit_code"] == 6
    assert not (rig.site.root / "host_vars/old-box.yml").exists()


def drifted(rig: Rig, *items: dict[str, Any], event: str = "ok", **res: Any) -> dict[str, Any]:
    report = {**CONTAINER, "drift": list(items)}
    rig.machines.on("drift", (event, "glm5-01", "pve_container", {"rackwell_result": report, **res}))
    return rig.json("drift", "glm5-01")


@pytest.mark.parametrize(
    ("items", "code"),
    [([], 0), ([NOTE], 0), ([WARNING, NOTE], 4), ([DRIFT, WARNING], 1)],
    ids=["", "note", "warn", "err"],
)
def test_the_exit_code_says_how_grave_it_is(rig: Rig, items: list[dict[str, Any]], code: int) -> None:
    envelope = drifted(rig, *items)
    assert (envelope["exit_code"], envelope["ok"]) == (code, code == 0)
    assert [one["severity"] for one in envelope["result"]["drift"]] == [one["severity"] for one in items]
    assert rig.codes(envelope) == {0: [], 4: ["needs-a-person"], 1: ["differs"]}[code]


def test_each_difference_has_its_line_and_its_remedy(rig: Rig) -> None:
    drifted(rig, DRIFT, WARNING)
    rig.at_site("drift", "glm5-01")
    assert "pve1:/etc/pve/lxc/201.conf:7" in rig.out
    assert "line     memory: 4096" in rig.out
    assert "rackwell provision glm5-01 makes it so" in rig.out
    assert "pct reboot 201" in rig.out
    assert "1 error, 1 warning" in rig.out


def test_what_is_declared_and_not_there_points_to_the_declaration(rig: Rig) -> None:
    rig.site.add("host_vars/glm5-01.yml", "pve_container_memlock: unlimited\n")
    missing = {**DRIFT, "side": "declaration", "key": "lxc.prlimit.memlock", "line": "", "number": 0}
    (told,) = drifted(rig, missing)["result"]["drift"]
    assert told["where"] == rig.site.line("host_vars/glm5-01.yml", "memlock")
    (told,) = drifted(rig, {**missing, "key": "mp3"})["result"]["drift"]
    assert told["where"] == rig.site.line("host_vars/glm5-01.yml", "pve_container_mounts")
    (told,) = drifted(rig, {**missing, "key": "startup"})["result"]["drift"]
    assert told["where"] == rig.site.line("hosts.yml", "glm5-01")


def test_a_refused_run_tells_its_drift(rig: Rig) -> None:
    refused = {**DRIFT, "code": "read-only", "key": "rootfs"}
    report = {"schema": "rackwell.container_drift/1", "vmid": 201, "drift": [refused]}
    error = {**ERROR, "code": "read-only-option"}
    rig.machines.on(
        "drift", ("failed", "glm5-01", "pve_container", {"rackwell_result": report, "rackwell_error": error})
    )
    envelope = rig.json("drift", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["read-only"])


def test_a_container_that_is_not_there_is_told(rig: Rig) -> None:
    rig.machines.on(
        "drift",
        ("ok", "glm5-01", "pve_container", {"changed": True, "rackwell_result": {**CONTAINER, "exists": False}}),
    )
    envelope = rig.json("drift", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["not-there"])


def test_a_silent_host_and_a_wrong_declaration_have_their_codes(rig: Rig) -> None:
    rig.machines.on("drift", ("unreachable", "glm5-01", "pve_container", {"msg": "timed out"}))
    assert rig.json("drift", "glm5-01")["exit_code"] == 6
    # other roles' variables need not hold
    rig.site.edit("group_vars/gpu_containers.yml", "release_build: server\n", "")
    rig.machines.on("drift", ("ok", "glm5-01", "pve_container", {"rackwell_result": {**CONTAINER, "drift": []}}))
    assert rig.json("drift", "glm5-01")["exit_code"] == 0
    rig.site.edit("host_vars/glm5-01.yml", "pve_container_vmid: 201", "pve_container_vmid: 1")
    assert rig.json("drift", "glm5-01")["exit_code"] == 2
    assert json.loads(rig.out)["problems"]
