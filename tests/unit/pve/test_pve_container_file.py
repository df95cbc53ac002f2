# SPDX-License-Identifier: Apache-2.0
"""pve_container where only the file will do, and where others have been at the container: all against the stand-in."""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_cli
from ansible_collections.rackwell.gpu.plugins.modules import pve_container
from labpve.containers import Containers
from labpve.errors import PveError as PctError
from pverig import Module, converge, diff_lines, refusal

RAW = {"memlock": "unlimited", "shm_size": "64G", "cpuset": "0-1"}
LINES = """\
lxc.cgroup2.cpuset.cpus: 0-1
lxc.prlimit.memlock: unlimited
lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,mode=1777,size=64G 0 0
"""
SNAPSHOT = "\n[before]\narch: amd64\nmemory: 256\nsnaptime: 1760000000\n"


def add(host: Module, text: str, old: str = "") -> None:
    """An edit by hand: `text` in the place of `old`, or at the end of the file."""
    file = host.standin.host.configs / "201.conf"
    file.write_text(file.read_text().replace(old, text) if old else file.read_text() + text)


def codes(out: pve_container.Outcome, *severities: str) -> list[str]:
    return [one["code"] for one in out.result["drift"] if one["severity"] in severities]


def test_a_new_container_starts_with_its_raw_lines(host: Module) -> None:
    checked = converge(host, check_mode=True, **RAW)
    out = converge(host, **RAW)
    assert host.standin.conf(201).endswith(LINES)
    assert [words[1] for words in host.changing()] == ["create", "start"]
    assert checked.result["changed_keys"] == out.result["changed_keys"]
    assert checked.diffs[0] == out.diffs[0]
    assert out.diffs[0]["after"].endswith(LINES)
    assert not converge(host).changed


def test_raw_lines_of_a_running_container_need_a_restart(host: Module) -> None:
    converge(host)
    before = host.standin.conf(201)
    assert refusal(host, **RAW).finding.code == "restart-needed"
    assert host.standin.conf(201) == before
    out = converge(host, allow_restart=True, memory=4096)
    assert host.standin.conf(201) == before.replace("memory: 8192", "memory: 4096") + LINES
    assert [words[1] for words in host.changing()] == ["set", "reboot"]
    assert out.result["restarted"]
    assert "+lxc.prlimit.memlock: unlimited" in diff_lines(out)
    assert not converge(host).changed


def test_raw_lines_fall_before_the_sections(host: Module) -> None:
    converge(host)
    add(host, SNAPSHOT)
    converge(host, allow_restart=True, **RAW)
    assert host.standin.conf(201).endswith(LINES + SNAPSHOT)


def test_a_line_at_the_end_of_a_file_with_a_snapshot_is_told_and_repaired(host: Module) -> None:
    converge(host)
    add(host, SNAPSHOT + "\nlxc.prlimit.memlock: unlimited\n")
    out = converge(host, check_mode=True, memlock="unlimited")
    (differs,) = [one for one in out.result["drift"] if one["severity"] == "error"]
    assert differs["line"] == "lxc.prlimit.memlock: unlimited"
    assert "stands in [before], where it has no effect" in differs["what"]
    assert codes(out, "warning") == ["conf-misplaced-line"]
    converge(host, allow_restart=True)
    main, _, rest = host.standin.conf(201).partition("\n[before]")
    assert main.endswith("lxc.prlimit.memlock: unlimited\n")
    assert rest


def test_what_pve_rewrites_is_no_drift(host: Module) -> None:
    converge(host, **RAW)
    add(host, "#Gro%C3%9F\n")
    host.standin.pct("set", "201", "--tags", "zz;rackwell")
    out = converge(host)
    assert (out.changed, codes(out, "error", "warning")) == (False, [])


def test_a_raw_line_that_pve_does_not_take_is_set_back(host: Module) -> None:
    converge(host)
    before = host.standin.conf(201)
    monkey = {"raw": ["lxc.rootfs.options: ro"]}
    assert refusal(host, allow_restart=True, **monkey).finding.code == "raw-invalid"
    host.standin.host.read = _without_drop(host)  # type: ignore[method-assign]
    error = refusal(host, raw=["lxc.cap.drop: sys_time"])
    assert (error.finding.code, host.standin.conf(201)) == ("raw-refused", before)


def _without_drop(host: Module) -> Any:
    read = host.standin.host.read

    def only(vmid: int) -> Any:
        conf = read(vmid)
        conf.main.lxc = [line for line in conf.main.lxc if line[0] != "lxc.cap.drop"]
        return conf

    return only


def test_with_a_list_of_raw_lines_others_are_drift_and_go(host: Module) -> None:
    converge(host)
    add(host, "lxc.cap.drop: sys_time\n")
    assert codes(converge(host), "note") == ["not-spoken-of"]
    out = converge(host, check_mode=True, raw=[])
    assert [(one["side"], one["line"]) for one in out.result["drift"]] == [("machine", "lxc.cap.drop: sys_time")]
    converge(host, allow_restart=True)
    assert "lxc.cap.drop" not in host.standin.conf(201)


def test_a_container_that_does_not_come_back_gets_its_raw_lines_back(host: Module) -> None:
    converge(host, memlock="1024")
    before = host.standin.conf(201)
    host.break_reboot = 1
    error = refusal(host, allow_restart=True, memlock="unlimited", memory=4096)
    assert (error.extra["rolled_back"], error.extra["rollback_verified"]) == (True, True)
    assert host.standin.conf(201) == before


def test_a_refused_set_takes_the_raw_lines_back(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    converge(host)
    before = host.standin.conf(201)

    def refuse(*_: Any, **__: Any) -> None:
        raise PctError("unable to hotplug memory")

    monkeypatch.setattr(Containers, "set", refuse)
    assert refusal(host, allow_restart=True, memory=4096, **RAW).finding.code == "set-failed"
    assert host.standin.conf(201) == before


@pytest.mark.parametrize("changed", [{"memory": 4096}, RAW], ids=["option", "raw"])
def test_a_file_that_somebody_changes_meanwhile_is_not_overwritten(
    host: Module, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    converge(host)
    conf = pve_cli.Pve.conf

    def then_edit(self: pve_cli.Pve, vmid: int) -> Any:
        found = conf(self, vmid)
        add(host, "nameserver: 10.9.9.9\n")
        return found

    monkeypatch.setattr(pve_cli.Pve, "conf", then_edit)
    assert refusal(host, allow_restart=True, **changed).finding.code == "conf-changed"
    assert "memory: 8192" in host.standin.conf(201)
    assert "lxc" not in host.standin.conf(201)


def test_a_lock_of_another_change_is_waited_for_and_then_told(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    converge(host)
    monkeypatch.setattr(pve_cli, "LOCK_WAIT_S", 0)
    with (Path(pve_cli.LOCKS) / "pve-config-201.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        finding = refusal(host, allow_restart=True, **RAW).finding
    assert (finding.code, "lxc" in host.standin.conf(201)) == ("busy", False)


def test_a_locked_container_is_told_and_not_touched(host: Module) -> None:
    converge(host)
    add(host, "lock: backup\n")
    assert not converge(host).changed
    finding = refusal(host, memory=4096).finding
    assert (finding.code, "vzdump" in finding.why, "pct unlock 201" in finding.fix) == ("locked", True, True)
    assert host.changing() == []
    out = converge(host, check_mode=True)
    assert "is locked (backup)" in out.warnings[-1]
    assert codes(out, "warning") == ["locked"]


def test_without_a_quorum_nothing_is_begun(host: Module) -> None:
    converge(host)
    Path(pve_cli.MEMBERS).write_text(json.dumps({"nodename": "pve1", "cluster": {"nodes": 3, "quorate": 0}}))
    assert not converge(host).changed
    finding = refusal(host, memory=4096).finding
    assert (finding.code, "pvecm status" in finding.fix, host.changing()) == ("no-quorum", True, [])
    assert "no quorum" in converge(host, check_mode=True).warnings[-1]
    host.standin.pct("destroy", "201", "--force", "1")
    assert refusal(host).finding.code == "no-quorum"


@pytest.mark.parametrize("text", ["cluster not ready - no quorum?", "unable to open file: Read-only file system"])
def test_a_quorum_that_is_lost_meanwhile_is_told(host: Module, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    converge(host)

    def refuse(*_: Any, **__: Any) -> None:
        raise PctError(text)

    monkeypatch.setattr(Containers, "set", refuse)
    assert refusal(host, memory=4096).finding.code == "no-quorum"


def test_a_file_system_that_refuses_the_file_is_told(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    converge(host)
    before = host.standin.conf(201)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pve_cli.os, "replace", refuse)
    finding = refusal(host, allow_restart=True, **RAW).finding
    assert (finding.code, "Permission denied" in finding.why) == ("no-quorum", True)
    assert host.standin.conf(201) == before
    assert [file.name for file in host.standin.host.configs.iterdir()] == ["201.conf"]


def test_raw_lines_without_which_it_was_started_need_a_restart(host: Module) -> None:
    converge(host, **RAW)
    started = Path(pve_cli.STARTED) / "201/config"
    started.write_text("lxc.arch = amd64\nlxc.cgroup2.cpuset.cpus = 0,1\n")
    out = converge(host, check_mode=True)
    assert out.result["pending"] == ["lxc.mount.entry", "lxc.prlimit.memlock"]
    assert out.result["restart_required"]
    assert codes(out, "warning") == ["pending", "pending"]
    started.write_text("".join(line.replace(": ", " = ", 1) + "\n" for line in LINES.splitlines()))
    assert not converge(host).changed


def test_a_template_of_another_checksum_makes_no_container(host: Module) -> None:
    right = hashlib.sha256(b"").hexdigest()
    finding = refusal(host, template_sha256="0" * 64).finding
    assert (finding.code, right in finding.why, host.changing()) == ("template-checksum", True, [])
    assert converge(host, template_sha256=right.upper()).result["created"]
    # a container that exists was made of what was there then
    assert not converge(host, template_sha256="0" * 64).changed


def test_gpus_of_another_running_container_are_not_taken(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    node = "/dev/full"
    gpu = pve_container.Gpu("0000:06:00.0", "GPU-1", 2, "RTX")
    monkeypatch.setattr(pve_container.Gpu, "node", property(lambda self: node))
    monkeypatch.setattr(pve_container, "read_gpus", lambda: [gpu])
    host.standin.put(202, f"hostname: other\narch: amd64\ndev4: {node},mode=0666\n", running=True)
    finding = refusal(host, gpus="all").finding
    assert (finding.code, "container 202 has /dev/full" in finding.why) == ("gpu-shared", True)
    host.standin.lxc.up.discard(202)
    assert converge(host).changed
    host.standin.lxc.up.add(202)
    out = converge(host)
    assert (out.changed, codes(out, "warning")) == (False, ["gpu-shared"])
    host.standin.put(202, f"hostname: other\nlxc.mount.entry: {node} dev/full none bind 0 0\n", running=True)
    assert codes(converge(host), "warning") == ["gpu-shared"]


@pytest.mark.parametrize("given", [[7], [0, 7]])
def test_a_numa_node_that_the_host_lacks_is_told(
    host: Module, monkeypatch: pytest.MonkeyPatch, given: list[int]
) -> None:
    monkeypatch.setattr(pve_container, "numa_nodes", lambda: {0: "0-1"})
    finding = refusal(host, numa_nodes=given).finding
    assert (finding.code, "it has: 0" in finding.why) == ("numa-missing", True)


def test_a_numa_node_pins_processors_and_memory(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pve_container, "numa_nodes", lambda: {0: "0-31,64-95", 1: "32-63"})
    monkeypatch.setattr(pve_container, "read_gpus", lambda: [pve_container.Gpu("0000:75:00.0", "GPU-1", 0, "RTX")])
    monkeypatch.setattr(pve_container.Gpu, "node", property(lambda self: "/dev/full"))
    monkeypatch.setattr(pve_container, "numa_of", lambda bus_id: 1)
    out = converge(host, numa_nodes=[0], gpus="all")
    assert "lxc.cgroup2.cpuset.cpus: 0-31,64-95\nlxc.cgroup2.cpuset.mems: 0\n" in host.standin.conf(201)
    assert "0000:75:00.0" in out.warnings[0]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cpuset": "a-b"}, "option-invalid"),
        ({"memlock": "lots"}, "option-invalid"),
        ({"shm_size": "1G,exec"}, "option-invalid"),
        ({"raw": "lxc.cap.drop: x"}, "option-invalid"),
        ({"raw": ["rootfs: /"]}, "raw-invalid"),
        ({"raw": ["lxc.cap.drop: a\nmemory: 1"]}, "raw-invalid"),
        ({"raw": ["lxc.prlimit.memlock: 1"], "memlock": "unlimited"}, "raw-invalid"),
        ({"options": {"memory": 5}}, "option-invalid"),
        ({"options": {"mp3": "local:x,mp=/y"}}, "option-invalid"),
        ({"net_options": {"mtu": "9000,ip=1.2.3.4/8"}}, "option-invalid"),
        ({"net_options": {"bridge": "x"}}, "option-invalid"),
        ({"devices": [{"path": "/etc/passwd"}]}, "option-invalid"),
        ({"devices": [{"path": "/dev/null", "owner": 3}]}, "option-invalid"),
        ({"mounts": [{"source": "/tmp", "target": "/a", "options": {"ro": 1}}]}, "option-invalid"),
    ],
)
def test_what_would_be_another_option_is_refused(host: Module, changed: dict[str, Any], code: str) -> None:
    assert refusal(host, **changed).finding.code == code
    assert host.changing() == []


def test_further_options_are_set_and_kept_and_taken_away(host: Module) -> None:
    converge(host, options={"startup": "order=3,up=30", "protection": True, "net1": "name=eth1,bridge=lo,ip=dhcp"})
    conf = host.standin.conf(201)
    assert "startup: order=3,up=30\n" in conf
    assert "protection: 1\n" in conf
    assert "net1: name=eth1,bridge=lo,hwaddr=BC:24:11:" in conf
    assert not converge(host).changed
    host.standin.pct("set", "201", "--startup", "order=4")
    out = converge(host, check_mode=True)
    assert [(one["key"], one["found"], one["declared"]) for one in out.result["drift"]] == [
        ("startup", "order=4", "order=3,up=30")
    ]
    converge(host, options={"startup": None, "protection": False})
    assert "startup" not in host.standin.conf(201)
    assert "protection: 0" in host.standin.conf(201)
    assert codes(converge(host), "note") == ["not-spoken-of"]
    assert not converge(host).changed


def test_a_removed_part_of_a_card_is_drift_when_it_was_declared(host: Module) -> None:
    converge(host, net_options={"firewall": True, "mtu": 1400})
    assert not converge(host).changed
    (line,) = [text for text in host.standin.conf(201).splitlines() if text.startswith("net0")]
    add(host, line.replace(",mtu=1400", ""), line)
    out = converge(host, check_mode=True)
    assert [(one["key"], one["code"]) for one in out.result["drift"]] == [("net0", "differs")]
    converge(host)
    (again,) = [text for text in host.standin.conf(201).splitlines() if text.startswith("net0")]
    # the address is the one that it had
    assert again == line


def test_an_adopted_container_needs_no_tag_and_gets_none(host: Module) -> None:
    converge(host)
    add(host, "tags: gpu", "tags: rackwell")
    assert "rackwell adopt HOST 201" in refusal(host).finding.fix
    out = converge(host, adopted=True)
    assert (out.changed, codes(out, "note")) == (False, ["no-tag"])
    assert "tags: gpu\n" in host.standin.conf(201)
    assert refusal(host, hostname="another").finding.code == "vmid-foreign"


def test_drift_is_told_when_the_run_is_refused_too(host: Module) -> None:
    converge(host)
    error = refusal(host, disk_size=9, memory=4096)
    told = error.extra["rackwell_result"]
    assert told["schema"] == "rackwell.container_drift/1"
    assert [one["code"] for one in told["drift"]] == ["differs", "read-only"]


def test_a_stopped_container_is_drift(host: Module) -> None:
    converge(host)
    host.standin.lxc.up.clear()
    assert codes(converge(host, check_mode=True), "error") == ["stopped"]


def test_a_change_that_is_pending_is_told_with_its_own_line(host: Module) -> None:
    converge(host, features={"nesting": True, "keyctl": True})
    host.standin.pct("set", "201", "--features", "nesting=1", "--delete", "dev1")
    out = converge(host, check_mode=True)
    lines = host.standin.conf(201).splitlines()
    told = {(one["code"], one["key"]): one for one in out.result["drift"]}
    # the running container has both as they are declared: taking them back needs no restart
    assert set(told) == {("differs", "features"), ("not-there", "dev1")}
    assert lines[told["differs", "features"]["number"] - 1] == "features: nesting=1"
    assert not out.result["restart_required"]
    converge(host)
    assert "[pve:pending]" not in host.standin.conf(201)
    assert not converge(host).changed
    host.standin.pct("set", "201", "--features", "fuse=1,nesting=1")
    out = converge(host, check_mode=True, features={"nesting": True, "fuse": True})
    (waits,) = [one for one in out.result["drift"] if one["severity"] == "warning"]
    assert (waits["code"], waits["found"]) == ("pending", "keyctl=1,nesting=1")
    assert "pct set VMID --revert features" in waits["fix"]
    assert out.result["restart_required"]
    host.standin.pct("set", "201", "--delete", "dev1,features")
    out = converge(host, check_mode=True, devices=["/dev/null"], features={})
    lines = host.standin.conf(201).splitlines()
    assert {(one["code"], lines[one["number"] - 1]) for one in out.result["drift"]} == {
        ("pending", "delete: dev1,features")
    }
