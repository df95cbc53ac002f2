# SPDX-License-Identifier: Apache-2.0
"""The container's configuration on the host, read as the file that it is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from testinfra.host import Host

from rackwell.acceptance.suite import devices
from rackwell.acceptance.suite.asking import output, read
from rackwell.acceptance.suite.claims import Claims

Want = dict[str, Any]
#: option of the file -> what it is when it is absent
_ABSENT = {"unprivileged": "0", "onboot": "0", "swap": "512", "memory": "512", "cores": "None", "hostname": "None"}
_GPU = re.compile(r"^/dev/nvidia(\d+)$")


@pytest.fixture(scope="module")
def lines(pve: Host, want: Want) -> list[tuple[str, str]]:
    """Options of the current section, in order; sections of snapshots and of what is pending come after it."""
    found = []
    for line in read(pve, f"/etc/pve/lxc/{want['lxc']['vmid']}.conf").splitlines():
        if line.startswith("["):
            break
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            found.append((key.strip(), value.strip()))
    return found


def _parts(value: str) -> dict[str, str]:
    """``/dev/x,mode=0666`` -> {"": "/dev/x", "mode": "0666"}."""
    return {
        key if equals else "": rest if equals else key
        for key, equals, rest in (part.partition("=") for part in value.split(","))
    }


def test_runs(pve: Host, want: Want, claim: Claims) -> None:
    """The container runs, and nothing of its configuration waits for a restart."""
    vmid = str(want["lxc"]["vmid"])
    state = output(pve, "pct status %s", vmid)
    claim(state == "status: running", expected="status: running", found=state, fix=f"pct start {vmid}")
    pending = "[pve:pending]" in read(pve, f"/etc/pve/lxc/{vmid}.conf").splitlines()
    fix = f"pct reboot {vmid} when its server may be down, or take the change back"
    claim(not pending, expected="nothing pending", found="a pending section" if pending else "", fix=fix)


def test_options(lines: list[tuple[str, str]], pve: Host, want: Want, claim: Claims) -> None:
    """Hostname, privileges, cores, memory, swap and start at boot are the declared ones."""
    there = dict(lines)
    wrong: list[tuple[str, str, str]] = []
    right: list[tuple[str, str, str]] = []
    for name, absent in _ABSENT.items():
        value = want["lxc"][name]
        wanted = str(int(value)) if isinstance(value, bool) else str(value)
        found = there.get(name, absent)
        (right if found == wanted else wrong).append((name, wanted, found))
    claim(
        not wrong,
        expected=[f"{name} {wanted}" for name, wanted, _ in wrong or right],
        found=[f"{name} {found}" for name, _, found in wrong or right],
        fix=want["commands"]["provision"],
    )


def test_network(lines: list[tuple[str, str]], pve: Host, want: Want, claim: Claims) -> None:
    """The first network interface has the declared bridge and address."""
    net = _parts(dict(lines).get("net0", ""))
    wanted = {"bridge": want["lxc"]["bridge"], "ip": want["lxc"]["ip"], "gw": want["lxc"]["gateway"]}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    found = {name: net.get(name) for name in wanted}
    claim(
        found == wanted,
        expected=[f"{name}={value}" for name, value in wanted.items()],
        found=[f"{name}={value}" for name, value in found.items()],
        fix=want["commands"]["provision"],
    )


def test_devices(lines: list[tuple[str, str]], pve: Host, want: Want, claim: Claims) -> None:
    """The GPUs and controls that are passed in are the declared ones, with the declared modes."""
    passed = {
        parts[""]: parts.get("mode") for key, value in lines if re.fullmatch(r"dev\d+", key) if (parts := _parts(value))
    }
    raw = [value for key, value in lines if key == "lxc.mount.entry" and "/dev/nvidia" in value]
    seen = devices.look(pve)
    gpus = want["lxc"]["gpus"]
    minors = [
        gpu["minor"]
        for bus, gpu in seen["gpus"].items()
        if gpus == "all" or bus.lower() in map(_long, gpus) or gpu["uuid"] in gpus
    ]
    mode = want["lxc"]["device_mode"]
    wanted = {f"/dev/nvidia{minor}": mode for minor in minors}
    wanted |= {device["path"]: device["mode"] or mode for device in want["lxc"]["devices"]}
    by_hand = {path for path in wanted if any(line.split()[0] == path for line in raw)}
    wrong = [
        f"{path} {'is not passed in' if path not in passed else f'has mode {passed[path]}'}"
        for path, mode in wanted.items()
        if path not in by_hand and passed.get(path) != mode
    ]
    wrong += [f"{path} is not declared" for path in passed if _GPU.match(path) and path not in wanted]
    found = wrong or f"{len(minors)} GPUs and {len(wanted) - len(minors)} controls"
    claim(not wrong, expected=f"{len(wanted)} nodes, mode {mode}", found=found, fix=want["commands"]["provision"])


def _long(bus_id: str) -> str:
    """A bus id with four digits of its domain, as the driver's directory is named."""
    head, _, tail = bus_id.lower().rpartition(":")
    domain, _, bus = head.rpartition(":")
    return f"{(domain or '0')[-4:]:0>4}:{bus or head}:{tail}"


def test_majors(lines: list[tuple[str, str]], pve: Host, want: Want, claim: Claims) -> None:
    """The device numbers that raw lines of the file allow are those that the drivers have in this boot."""
    allowed = [value for key, value in lines if key in {"lxc.cgroup2.devices.allow", "lxc.cgroup.devices.allow"}]
    raw = [value for key, value in lines if key == "lxc.mount.entry" and "/dev/nvidia" in value]
    if not raw:
        claim.note("no raw lines of GPUs: Proxmox VE allows what dev lines name, by the numbers of the nodes")
        return
    majors = devices.look(pve)["majors"]
    numbers = {match[1] for value in allowed if (match := re.match(r"c\s+(\d+|\*):", value))}
    wanted = {str(number) for name, number in majors.items() if name in {"nvidia", "nvidia-frontend", "nvidia-uvm"}}
    missing = sorted(wanted - numbers) if "*" not in numbers else []
    found = f"allowed are {', '.join(sorted(numbers)) or 'none'}"
    fix = "the number of nvidia-uvm changes between boots: declare nodes in pve_container_devices, not by raw lines"
    claim(not missing, expected=f"majors {', '.join(sorted(wanted))}", found=found, fix=fix)


def test_mounts(lines: list[tuple[str, str]], pve: Host, want: Want, claim: Claims) -> None:
    """The declared directories of the host are mounted, read-only where that is declared."""
    if not want["lxc"]["mounts"]:
        pytest.skip("no mounts are declared")
    there = {
        parts.get("mp"): (parts.get(""), parts.get("ro") == "1")
        for key, value in lines
        if re.fullmatch(r"mp\d+", key) and (parts := _parts(value))
    }
    wrong = [
        mount["target"]
        for mount in want["lxc"]["mounts"]
        if there.get(mount["target"]) != (mount["source"], mount["read_only"])
    ]
    expected = [f"{mount['source']} at {mount['target']}" for mount in want["lxc"]["mounts"]]
    found = [f"{target}: {there.get(target, 'not mounted')}" for target in wrong] or expected
    claim(not wrong, expected=expected, found=found, fix=want["commands"]["provision"])
