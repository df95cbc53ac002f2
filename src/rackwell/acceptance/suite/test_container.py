# SPDX-License-Identifier: Apache-2.0
"""The container, from inside."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from testinfra.host import Host

from rackwell.acceptance.suite import devices
from rackwell.acceptance.suite.asking import output, python, read, run, show
from rackwell.acceptance.suite.claims import Claims

Want = dict[str, Any]
GATE = "/run/rackwell/gate.json"
_DISK = "import json, os; s = os.statvfs('/'); print(json.dumps([s.f_frsize * s.f_blocks, s.f_frsize * s.f_bavail]))"
_SHM = "import json, os; s = os.statvfs('/dev/shm'); print(json.dumps(s.f_frsize * s.f_blocks))"
_LIBRARIES = """
import glob, json, os, re
found = {}
for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"):
    for path in glob.glob(folder + "/lib[cn]*.so.*.*"):
        match = re.search(r"/lib(?:cuda|nvidia-[a-z-]+)\\.so\\.(\\d{3}\\.\\d+(?:\\.\\d+)?)$", path)
        if match and not os.path.islink(path):
            found.setdefault(match[1], []).append(path)
print(json.dumps(found))
"""
_ACCOUNT = """
import json, pwd, grp, sys
try:
    entry = pwd.getpwnam(json.loads(sys.argv[1])[0])
except KeyError:
    print("null")
else:
    groups = [g.gr_name for g in grp.getgrall() if entry.pw_name in g.gr_mem or g.gr_gid == entry.pw_gid]
    print(json.dumps({"uid": entry.pw_uid, "shell": entry.pw_shell, "groups": groups}))
"""


def test_driver(pve: Host, lxc: Host, want: Want, claim: Claims) -> None:
    """The driver's user space is the declared one, equals the host's kernel module, and no other is there."""
    declared = want["driver"]
    module = devices.look(pve)["version"]
    found: dict[str, list[str]] = python(lxc, _LIBRARIES)
    fix = want["commands"]["provision"]
    claim(declared in found, expected=f"libraries of {declared}", found=sorted(found) or "no libraries", fix=fix)
    others = [path for version, paths in found.items() if version != declared for path in paths]
    fix = f"remove what is left of another driver: {', '.join(others[:3])}"
    claim(not others, expected=f"none but {declared}", found=others or declared, fix=fix)
    fix = f"bring host and container to one version: the host has {module}; see docs/driver.md"
    claim(module == declared, expected=f"{declared}, as the host's module", found=f"the host has {module}", fix=fix)


def test_gpus(lxc: Host, want: Want, claim: Claims) -> None:
    """nvidia-smi inside sees the declared GPUs with the declared driver."""
    gpus = want["lxc"]["gpus"]
    count = int(want["pve"]["gpus"]) if gpus == "all" else len(gpus)
    rows = devices.smi(lxc, claim, "index", "driver_version")
    fix = f"{want['commands']['verify']} tells which are missing"
    claim(len(rows) == count, expected=f"{count} GPUs", found=f"{len(rows)} GPUs", fix=fix)
    versions = {row[1] for row in rows}
    claim(versions == {want["driver"]}, expected=want["driver"], found=versions, fix=want["commands"]["provision"])


def test_nodes(lxc: Host, want: Want, claim: Claims) -> None:
    """The device nodes inside have the drivers' numbers of now, and the declared modes."""
    seen = devices.look(lxc)
    mode = want["lxc"]["device_mode"]
    wanted: dict[str, str | None] = {device["path"]: device["mode"] or mode for device in want["lxc"]["devices"]}
    gpus = [path for path in seen["nodes"] if re.fullmatch(r"/dev/nvidia\d+", path)]
    count = int(want["pve"]["gpus"]) if want["lxc"]["gpus"] == "all" else len(want["lxc"]["gpus"])
    wrong = devices.wrong_nodes(seen["nodes"], seen["majors"], {**wanted, **dict.fromkeys(gpus, mode)})
    if len(gpus) != count:
        wrong.append(f"{len(gpus)} GPUs have a node")
    fix = (
        f"pct reboot {want['lxc']['vmid']} makes them anew; a number that changed: systemctl restart "
        f"rackwell-gpu-nodes.service on {want['host']} before"
    )
    claim(not wrong, expected=f"{count} GPUs, mode {mode}", found=wrong or f"{len(gpus)} GPUs, mode {mode}", fix=fix)


def test_nodes_usable(lxc: Host, want: Want, claim: Claims) -> None:
    """The service user may open every node."""
    user = want["server"]["user"]
    told = output(
        lxc,
        "runuser -u %s -- sh -c 'for n in /dev/nvidia*; do [ -c $n ] || continue; "
        "[ -r $n ] && [ -w $n ] || echo $n; done'",
        user,
    )
    fix = 'pve_container_device_mode: "0666", then rackwell provision'
    claim(not told, expected=f"all open to {user}", found=f"closed: {told}" if told else f"all open to {user}", fix=fix)


def test_hostname(lxc: Host, want: Want, claim: Claims) -> None:
    """The container is called as declared."""
    found = read(lxc, "/proc/sys/kernel/hostname")
    wanted = want["lxc"]["hostname"].split(".")[0]
    claim(found.split(".")[0] == wanted, expected=wanted, found=found, fix=want["commands"]["provision"])


def test_units(lxc: Host, want: Want, claim: Claims) -> None:
    """systemd is up, and none of rackwell's units failed."""
    code, state = run(lxc, "systemctl is-system-running")
    good = state in {"running", "degraded", "starting"}
    claim(good, expected="running", found=f"{state} ({code})", fix=f"pct reboot {want['lxc']['vmid']}")
    told = output(lxc, "systemctl list-units --failed --no-legend --plain 'rackwell*' nginx.service | cut -d' ' -f1")
    fix = f"journalctl -u {told.split()[0] if told else 'UNIT'} in {want['container']} says why"
    claim(not told, expected="no failed unit", found=told.split() or state, fix=fix)


def test_service_user(lxc: Host, want: Want, claim: Claims) -> None:
    """The service user is a system account without password, shell and rights."""
    user = want["server"]["user"]
    account = python(lxc, _ACCOUNT, user)
    fix = want["commands"]["provision"]
    claim(
        account is not None, expected=f"the user {user}", found=f"uid {account['uid']}" if account else "none", fix=fix
    )
    fix = f"usermod --shell /usr/sbin/nologin {user}"
    good = account["shell"].rsplit("/", 1)[-1] in {"nologin", "false"}
    claim(good, expected="no shell", found=account["shell"], fix=fix)
    wrong = sorted({"root", "sudo", "adm", "docker", "lxd", "shadow"} & set(account["groups"]))
    good = account["uid"] != 0 and not wrong
    fix = f"gpasswd -d {user} {wrong[0] if wrong else 'GROUP'}"
    claim(good, expected="no rights", found=wrong or f"groups {', '.join(account['groups'])}", fix=fix)
    password = output(lxc, "getent shadow %s", user).split(":")[1][:1]
    claim(
        password in {"!", "*"},
        expected="no password",
        found="" if password in {"!", "*"} else "a password",
        fix=f"passwd -l {user}",
    )


def test_gate(lxc: Host, want: Want, claim: Claims) -> None:
    """The boot gate is enabled, and its verdict of this boot lets the server run."""
    if not want["gate"]:
        pytest.skip("gpu_probe_gate is false")
    unit = show(lxc, "rackwell-gpu-gate.service", "UnitFileState", "ActiveState")
    fix = want["commands"]["provision"]
    good = unit["UnitFileState"] == "enabled"
    claim(good, expected="enabled", found=unit["UnitFileState"] or "the unit is not there", fix=fix)
    text = read(lxc, GATE)
    fix = want["commands"]["release_gate"]
    claim(bool(text), expected="a verdict of this boot", found="a verdict" if text else f"no {GATE}", fix=fix)
    verdict = json.loads(text)
    boot = read(lxc, "/proc/sys/kernel/random/boot_id")
    told = str((verdict.get("report") or {}).get("boot_id") or verdict.get("boot_id") or "")
    claim(told in {"", boot}, expected=f"boot {boot}", found=f"boot {told or boot}", fix=fix)
    held = bool(verdict.get("held"))
    claim(
        not held,
        expected="not held",
        found=verdict.get("line") or verdict.get("verdict"),
        fix=f"mend it, then {fix}",
        held=held,
    )


def test_gate_is_asked(lxc: Host, want: Want, claim: Claims) -> None:
    """The server's unit asks the boot gate before each start."""
    if not want["gated"]:
        pytest.skip("inference_server_gate or gpu_probe_gate is false")
    unit = show(lxc, want["server"]["unit"], "ExecCondition", "After")
    fix = want["commands"]["provision"]
    good = "rackwell.probe" in unit["ExecCondition"] and GATE in unit["ExecCondition"]
    claim(
        good, expected=f"ExecCondition with {GATE}", found="asked" if good else unit["ExecCondition"] or "none", fix=fix
    )
    good = "rackwell-gpu-gate.service" in unit["After"].split()
    claim(good, expected="after the gate", found="after the gate" if good else unit["After"], fix=fix)


def test_model(lxc: Host, want: Want, claim: Claims) -> None:
    """The model's files are there, and the service user can read them."""
    path, user = want["model"]["path"], want["server"]["user"]
    for name in want["model"]["files"]:
        code, told = run(lxc, "runuser -u %s -- head -c 1 -- %s >/dev/null", user, f"{path}/{name}")
        fix = (
            f"bring the model to {path} (model.repository in the profile, or pve_container_mounts), readable for {user}"
        )
        claim(code == 0, expected=f"{path}/{name}, readable", found=f"{name} is read" if code == 0 else told, fix=fix)


def test_memlock(lxc: Host, want: Want, claim: Claims) -> None:
    """The container may lock as much memory as is declared."""
    if want["lxc"]["memlock"] is None:
        pytest.skip("pve_container_memlock is not declared")
    limits = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", read(lxc, "/proc/1/limits"), re.MULTILINE)
    found = limits.groups() if limits else ("unknown", "unknown")
    soft, _, hard = want["lxc"]["memlock"].partition(":")
    wanted = (soft, hard or soft)
    fix = f"{want['commands']['provision']} --allow-restart"
    claim(found == wanted, expected=":".join(wanted), found=":".join(found), fix=fix)


def test_shm(lxc: Host, want: Want, claim: Claims) -> None:
    """/dev/shm is as large as declared."""
    size = want["lxc"]["shm_size"]
    if size is None or size.endswith("%"):
        pytest.skip("pve_container_shm_size is not declared in bytes")
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1].upper(), 1)
    wanted = int(size.rstrip("KMGkmg")) * factor
    found = int(python(lxc, _SHM))
    fix = f"{want['commands']['provision']} --allow-restart"
    claim(abs(found - wanted) <= 1 << 20, expected=f"{wanted >> 20} MiB", found=f"{found >> 20} MiB", fix=fix)


def test_disk(lxc: Host, want: Want, claim: Claims) -> None:
    """There is room on the container's disk: a gigabyte and five percent."""
    size, free = python(lxc, _DISK)
    fix = f"rackwell gc {want['container']}, or a larger pve_container_disk_size and pct resize"
    good = free >= max(10**9, size * 0.05)
    claim(good, expected="1 GB and 5 % free", found=f"{free / 1e9:.1f} of {size / 1e9:.1f} GB free", fix=fix)
