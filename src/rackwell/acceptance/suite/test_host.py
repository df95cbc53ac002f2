# SPDX-License-Identifier: Apache-2.0
"""The Proxmox VE host."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from testinfra.host import Host

from rackwell.acceptance.suite import devices
from rackwell.acceptance.suite.asking import UnansweredError, output, read, run, show
from rackwell.acceptance.suite.claims import Claims

Want = dict[str, Any]
#: events after which a GPU or its link is not to be trusted; others are told of programs that did something wrong
_GRAVE_XID = re.compile(r"Xid \((?:PCI:)?([^)]*)\): (48|62|64|74|79|92|95|109|110|119|120|136|140|143|154)\b")
_CLOCK_S = 60


@pytest.fixture(scope="module")
def seen(pve: Host) -> dict[str, Any]:
    return devices.look(pve)


def test_driver(seen: dict[str, Any], pve: Host, want: Want, claim: Claims) -> None:
    """The loaded kernel module is the declared driver, with open modules."""
    version = want["pve"]["driver_version"]
    fix = f"install driver {version} on {want['host']}, or correct pve_host_driver_version"
    claim(seen["version"] == version, expected=version, found=seen["version"] or "no NVIDIA driver is loaded", fix=fix)
    fix = "install the driver with its open kernel modules: Blackwell has no others"
    claim(seen["open"], expected="open kernel modules", found="open" if seen["open"] else "proprietary ones", fix=fix)


def test_modules(pve: Host, want: Want, claim: Claims) -> None:
    """The declared kernel modules are loaded."""
    wanted = [name.replace("-", "_") for name in want["pve"]["modules"]]
    loaded = [name for name in wanted if run(pve, "test -d /sys/module/%s", name)[0] == 0]
    missing = [name for name in wanted if name not in loaded]
    fix = f"modprobe {' '.join(missing)} on {want['host']}; name them in /etc/modules-load.d for the next boot"
    claim(not missing, expected=wanted, found=loaded, fix=fix)


def test_gpus(seen: dict[str, Any], pve: Host, want: Want, claim: Claims) -> None:
    """The host shows as many GPUs as are declared, and nvidia-smi answers for each."""
    count = int(want["pve"]["gpus"])
    fix = "look at dmesg for a GPU that fell off the bus, and at lspci; else correct pve_host_gpus"
    claim(len(seen["gpus"]) == count, expected=f"{count} GPUs", found=f"{len(seen['gpus'])} GPUs", fix=fix)
    versions = [row[0] for row in devices.smi(pve, claim, "driver_version")]
    wanted = [want["pve"]["driver_version"]] * count
    fix = "user space and kernel module of the host differ: install the driver anew"
    claim(versions == wanted, expected=f"{count} times {wanted[0]}", found=sorted(set(versions)), fix=fix)


def test_nodes(seen: dict[str, Any], pve: Host, want: Want, claim: Claims) -> None:
    """Every GPU and the driver's controls have their device nodes, with the driver's numbers, open to all."""
    gpus = [f"/dev/nvidia{gpu['minor']}" for gpu in seen["gpus"].values()]
    wanted: dict[str, str | None] = dict.fromkeys([*gpus, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])
    wrong = devices.wrong_nodes(seen["nodes"], seen["majors"], wanted)
    fix = f"systemctl restart rackwell-gpu-nodes.service on {want['host']}, or nvidia-modprobe -u -c=N"
    claim(not wrong, expected="nodes of the driver's numbers", found=wrong or f"{len(wanted)} nodes", fix=fix)


def test_hmm(pve: Host, want: Want, claim: Claims) -> None:
    """nvidia_uvm has HMM off, where that is declared."""
    if not want["pve"]["disable_hmm"]:
        pytest.skip("pve_host_disable_hmm is false")
    found = read(pve, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    fix = (
        "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, update-initramfs -u, then reboot or load the module "
        "anew with nothing on the GPUs"
    )
    claim(found in {"Y", "y", "1"}, expected="uvm_disable_hmm=Y", found=f"uvm_disable_hmm={found or 'absent'}", fix=fix)


def test_persistence(pve: Host, want: Want, claim: Claims) -> None:
    """The driver keeps the GPUs initialised (persistence mode)."""
    off = [index for index, mode in devices.smi(pve, claim, "index", "persistence_mode") if mode != "Enabled"]
    fix = f"systemctl enable --now nvidia-persistenced on {want['host']}, or nvidia-smi -pm 1"
    claim(not off, expected="on for every GPU", found=f"off for GPU {', '.join(off)}" if off else "on", fix=fix)


def test_power_limit(pve: Host, want: Want, claim: Claims) -> None:
    """Every GPU has the declared power limit."""
    watts = int(want["pve"]["power_limit"] or 0)
    if not watts:
        pytest.skip("pve_host_power_limit is not declared")
    limits = {row[0]: row[1] for row in devices.smi(pve, claim, "index", "power.limit")}
    wrong = [f"GPU {index}: {limit}" for index, limit in limits.items() if abs(float(limit.split()[0]) - watts) > 1]
    fix = f"{want['commands']['provision']}, or nvidia-smi -pl {watts}"
    claim(not wrong, expected=f"{watts} W", found=wrong or f"{watts} W", fix=fix)


def test_iommu(pve: Host, want: Want, claim: Claims) -> None:
    """The IOMMU is as declared: off, or passing the GPUs through untranslated."""
    policy = want["pve"]["iommu"]
    if policy not in {"off", "pt"}:
        pytest.skip("pve_host_iommu is not declared")
    told = output(
        pve,
        'for d in /sys/bus/pci/devices/*; do [ "$(cat "$d/vendor" 2>/dev/null)" = 0x10de ] || continue; '
        '[ -e "$d/iommu_group/type" ] && cat "$d/iommu_group/type"; done; true',
    )
    types = set(told.split())
    good = not types if policy == "off" else types == {"identity"}
    expected = "no IOMMU group" if policy == "off" else "identity"
    fix = "see docs/host.md: the kernel command line and the board's settings; a reboot"
    claim(good, expected=expected, found=types or "no IOMMU group", fix=fix)


def test_kernel(pve: Host, want: Want, claim: Claims) -> None:
    """The kernel that is pinned with the driver runs, and is pinned."""
    kernel = want["pve"]["kernel"]
    if not kernel:
        pytest.skip("no kernel is declared with the driver")
    running = read(pve, "/proc/sys/kernel/osrelease")
    fix = f"{want['commands']['provision']}, with consent to a reboot (pve_host_allow_reboot)"
    claim(running == kernel, expected=kernel, found=f"{running} runs", fix=fix)
    pinned = read(pve, "/etc/kernel/proxmox-boot-pin")
    fix = f"proxmox-boot-tool kernel pin {kernel}"
    claim(pinned == kernel, expected=kernel, found=f"{pinned or 'none'} is pinned", fix=fix)


def test_kernels(pve: Host, want: Want, claim: Claims) -> None:
    """Every installed kernel would load the declared driver."""
    if not want["pve"]["manage_driver"]:
        pytest.skip("pve_host_manage_driver is false")
    told = output(
        pve,
        'for k in /boot/vmlinuz-*; do [ -e "$k" ] || continue; k=${k#/boot/vmlinuz-}; '
        'echo "$k $(modinfo --set-version "$k" --field version nvidia 2>/dev/null)"; done',
    )
    found = dict(line.partition(" ")[::2] for line in told.splitlines())
    version = want["pve"]["driver_version"]
    wrong = [f"{kernel}: {has or 'no module'}" for kernel, has in found.items() if has != version]
    fix = f"{want['commands']['provision']}, or dkms autoinstall -k KERNEL with its headers installed"
    claim(bool(found) and not wrong, expected=f"{version} in each", found=wrong or list(found), fix=fix)


def test_nodes_unit(pve: Host, want: Want, claim: Claims) -> None:
    """The unit that makes the device nodes before the guests start is enabled, and did so in this boot."""
    if not want["pve"]["nodes_unit"]:
        pytest.skip("pve_host_nodes_unit is false")
    unit = show(pve, "rackwell-gpu-nodes.service", "ActiveState", "UnitFileState", "Before")
    state = f"{unit['ActiveState']}, {unit['UnitFileState'] or 'not there'}"
    good = unit["ActiveState"] == "active" and unit["UnitFileState"] == "enabled"
    claim(good, expected="active, enabled", found=state, fix=want["commands"]["provision"])
    before = "pve-guests.service" in unit["Before"].split()
    claim(before, expected="before pve-guests.service", found=unit["Before"], fix=want["commands"]["provision"])


def test_clock(pve: Host, want: Want, claim: Claims) -> None:
    """The clock is that of this machine, within a minute."""
    began = time.time()
    theirs = float(output(pve, "date +%s"))
    off = theirs - (began + time.time()) / 2
    fix = f"see chronyc tracking or timedatectl on {want['host']} and here: one of the two clocks is wrong"
    claim(abs(off) <= _CLOCK_S, expected=f"within {_CLOCK_S} s", found=f"{off:+.0f} s", fix=fix)


def test_kernel_log(pve: Host, want: Want, claim: Claims) -> None:
    """The kernel log of this boot tells of no GPU that failed."""
    code, told = run(pve, "dmesg 2>&1 | grep -a NVRM | tail -n 2000; true")
    if code or "Operation not permitted" in told:
        raise UnansweredError(f"dmesg: {told[:200]}")
    grave = [line for line in told.splitlines() if _GRAVE_XID.search(line)]
    fix = f"rackwell diagnose explains it; then reset the GPU or reboot {want['host']}, which ends its guests"
    claim(not grave, expected="no grave Xid", found=grave[-1] if grave else "none", fix=fix)
