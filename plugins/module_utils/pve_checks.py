# SPDX-License-Identifier: Apache-2.0
"""What a Proxmox VE host must show before its GPUs can go into containers; every check tells cause and fix."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import (
    Gpu,
    device_problem,
    kernel_version,
    make_node_command,
    read_gpus,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import Finding, PveError

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
# device node -> driver name in /proc/devices
_MAJOR_NAMES = {
    "nvidiactl": ("nvidiactl", "nvidia", "nvidia-frontend"),
    "nvidia-uvm": ("nvidia-uvm",),
    "nvidia-uvm-tools": ("nvidia-uvm",),
}


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the kernel shows things; tests give others."""

    proc: str = "/proc"
    sysfs: str = "/sys/module"
    dev: str = "/dev"

    @property
    def nvidia(self) -> str:
        """/proc/driver/nvidia"""
        return os.path.join(self.proc, "driver/nvidia")

    def node(self, path: str) -> str:
        """A path below /dev as it lies here."""
        return os.path.join(self.dev, path[len("/dev/") :])


def check(
    driver_version: str, gpus: int, modules: Sequence[str], disable_hmm: bool, places: Optional[Places] = None
) -> tuple[dict[str, Any], list[Finding]]:
    """(facts, everything that is wrong) in the order in which it should be mended."""
    at = places or Places()
    findings: list[Finding] = []
    loaded = {name: os.path.isdir(os.path.join(at.sysfs, name)) for name in modules}
    version, flavour = kernel_version(at.nvidia, at.sysfs)
    # without any driver that is the one problem to tell; its module is the cause, not a second one
    findings += [
        Finding(
            "module-not-loaded",
            f"kernel module {name} is not loaded",
            os.path.join(at.sysfs, name),
            "the directory is absent",
            f"modprobe {name}; echo {name} >> /etc/modules-load.d/nvidia.conf loads it after a reboot too",
        )
        for name in modules
        if not loaded[name] and (name != "nvidia" or version)
    ]
    found_gpus: list[Gpu] = []
    try:
        found_gpus = read_gpus(at.nvidia)
    except PveError as error:
        findings.append(error.finding)
    findings += _driver(version, flavour, driver_version, found_gpus, at)
    hmm, hmm_findings = _hmm(disable_hmm, at)
    findings += hmm_findings
    if len(found_gpus) != gpus:
        present = ", ".join(gpu.bus_id for gpu in found_gpus) or "none"
        findings.append(
            Finding(
                "gpu-count",
                f"{len(found_gpus)} GPUs where {gpus} are declared",
                os.path.join(at.nvidia, "gpus"),
                f"it shows: {present}",
                "find the missing ones: lspci -d 10de: -k; dmesg | grep -i -E 'nvrm|xid'. Or correct pve_host_gpus",
            )
        )
    nodes, node_findings = _nodes([*CONTROL_NODES, *(gpu.node for gpu in found_gpus)], at)
    findings += node_findings
    facts = {
        "driver_version": version,
        "flavour": flavour,
        "hmm_disabled": hmm,
        "modules": loaded,
        "gpus": [gpu.as_dict() for gpu in found_gpus],
        "nodes": nodes,
    }
    return facts, findings


def _driver(
    version: Optional[str], flavour: Optional[str], declared: str, gpus: Sequence[Gpu], at: Places
) -> list[Finding]:
    findings = []
    where = os.path.join(at.sysfs, "nvidia/version")
    if version is None:
        findings.append(
            Finding(
                "driver-missing",
                "no NVIDIA kernel module is loaded",
                where,
                f"nothing there; declared is {declared}",
                f"install the driver {declared} on the host (open kernel modules), then modprobe nvidia",
            )
        )
    elif version != declared:
        findings.append(
            Finding(
                "driver-version",
                f"the kernel module is {version}, declared is {declared}",
                where,
                "the user space in a container must be the very version of the module, and would not be",
                f"set pve_host_driver_version and nvidia_userspace_version to {version}; "
                f"or install {declared} on the host and reboot",
            )
        )
    blackwell = [gpu.model for gpu in gpus if "Blackwell" in gpu.model]
    if flavour == "proprietary" and blackwell:
        findings.append(
            Finding(
                "driver-flavour",
                "the proprietary kernel modules are loaded",
                os.path.join(at.nvidia, "version"),
                f"{blackwell[0]} is supported by the open modules only",
                "install the driver with --kernel-module-type=open (apt: nvidia-kernel-open-dkms), then reboot",
            )
        )
    return findings


def _hmm(disable: bool, at: Places) -> tuple[Optional[bool], list[Finding]]:
    file = os.path.join(at.sysfs, "nvidia_uvm/parameters/uvm_disable_hmm")
    try:
        with open(file, encoding="utf-8") as handle:
            value = handle.read().strip()
    except OSError:
        return None, []  # the module was built without HMM, or is not loaded, which is told already
    off = value in ("Y", "y", "1")
    if off or not disable:
        return off, []
    return off, [
        Finding(
            "hmm-enabled",
            "nvidia_uvm has HMM on",
            file,
            f"found '{value}': CUDA then fails in containers with CUDA_ERROR_NOT_INITIALIZED, and peer copies can hang",
            "echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/nvidia-uvm.conf; "
            "update-initramfs -u -k all; reboot (the option is read when the module is loaded)",
        )
    ]


def _majors(at: Places) -> dict[str, int]:
    try:
        with open(os.path.join(at.proc, "devices"), encoding="utf-8") as handle:
            text = handle.read().partition("Block devices:")[0]
    except OSError:
        return {}
    pairs = [line.split(None, 1) for line in text.splitlines() if line.strip()[:1].isdigit()]
    return {pair[1].strip(): int(pair[0]) for pair in pairs if len(pair) == 2}


def _mode(at: Places) -> Optional[int]:
    """The mode that the driver gives its nodes; None when it leaves them alone, or does not tell."""
    try:
        with open(os.path.join(at.nvidia, "params"), encoding="utf-8") as handle:
            told = dict(line.strip().split(": ", 1) for line in handle if ": " in line)
        return int(told["DeviceFileMode"]) if told.get("ModifyDeviceFiles") == "1" else None
    except (OSError, KeyError, ValueError):
        return None


def _nodes(paths: Sequence[str], at: Places) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    nodes: dict[str, dict[str, Any]] = {}
    findings = []
    majors = _majors(at)
    wanted = _mode(at)
    for path in paths:
        place = at.node(path)
        wrong = device_problem(place)
        if wrong:
            findings.append(
                Finding(
                    "device-missing",
                    f"device node {path} is not usable",
                    path,
                    wrong,
                    f"{make_node_command(path)}; a unit ordered before pve-guests.service makes it after a reboot too",
                )
            )
            continue
        found = os.stat(place)
        major = os.major(found.st_rdev)
        nodes[path] = {"major": major, "minor": os.minor(found.st_rdev), "mode": f"{stat.S_IMODE(found.st_mode):04o}"}
        names = _MAJOR_NAMES.get(os.path.basename(path), ("nvidia", "nvidia-frontend"))
        expected = next((majors[name] for name in names if name in majors), None)
        if expected is not None and expected != major:
            findings.append(
                Finding(
                    "device-stale",
                    f"device node {path} has a major number that is not the driver's",
                    path,
                    f"the node is {major}:{os.minor(found.st_rdev)}, /proc/devices says {expected}",
                    f"rm {path}; {make_node_command(path)}; then restart the containers that have it: they keep the "
                    "node of their start",
                )
            )
        elif wanted is not None and stat.S_IMODE(found.st_mode) != wanted:
            findings.append(
                Finding(
                    "device-mode",
                    f"device node {path} has another mode than the driver gives it",
                    path,
                    f"found {stat.S_IMODE(found.st_mode):04o}, the driver's is {wanted:04o}: programs of the host that "
                    "are not root cannot open it (a container's node has a mode of its own)",
                    f"chmod {wanted:04o} {path}; rackwell provision does it. What resets it? grep -r nvidia "
                    "/etc/udev/rules.d /etc/tmpfiles.d",
                )
            )
    return nodes, findings
