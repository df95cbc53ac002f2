# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs as the kernel module shows them on the host: bus id, UUID, and the number of the device node.

The number in /dev/nvidia<N> is the *minor*, which is neither the index of nvidia-smi nor the order on the bus.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Sequence
from typing import Any, Optional, Union

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import problem

PROC = "/proc/driver/nvidia"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU: ``bus_id`` like 0000:06:00.0, ``node`` like /dev/nvidia2."""

    bus_id: str
    uuid: str
    minor: int
    model: str

    @property
    def node(self) -> str:
        """The device node."""
        return f"/dev/nvidia{self.minor}"

    def as_dict(self) -> dict[str, Union[str, int]]:
        """The parts by name, the node among them."""
        return {**dataclasses.asdict(self), "node": self.node}


def read_gpus(proc: str = PROC) -> list[Gpu]:
    """Every GPU that the kernel module has, by bus id; empty when it is not loaded."""
    directory = os.path.join(proc, "gpus")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    found = []
    for name in names:
        file = os.path.join(directory, name, "information")
        if not os.path.exists(file):
            continue
        text = _read(file) or ""
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
        minor = fields.get("Device Minor", "")
        if not re.fullmatch(r"[0-9]{1,9}", minor):
            raise problem(
                "gpu-unreadable",
                f"the kernel module shows no device minor for GPU {name}",
                file,
                f"found 'Device Minor: {minor}'",
                "dmesg | grep -i -E 'nvrm|xid' says why the GPU did not come up",
            )
        found.append(
            Gpu(
                fields.get("Bus Location", name).lower(),
                fields.get("GPU UUID", ""),
                int(minor),
                fields.get("Model", ""),
            )
        )
    return sorted(found, key=lambda gpu: gpu.bus_id)


def choose(wanted: Any, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The declared GPUs (``all``, or bus ids and UUIDs), by bus id.

    Raises:
        PveError: one of them is not there, or there are none at all.
    """
    present = ", ".join(f"{gpu.bus_id} ({gpu.uuid})" for gpu in gpus) or "none"
    if wanted == "all":
        if not gpus:
            raise problem(
                "gpu-missing",
                "the host shows no GPU",
                PROC + "/gpus",
                "the container declares gpus: all, the kernel module shows none",
                "load the driver (modprobe nvidia; nvidia-smi -L); or declare pve_container_gpus: []",
            )
        return list(gpus)
    if isinstance(wanted, str):
        wanted = [wanted]
    if not isinstance(wanted, (list, tuple)) or not all(isinstance(name, str) for name in wanted):
        raise problem(
            "gpus-invalid",
            "the declared GPUs are no list",
            "pve_container_gpus",
            f"found {wanted!r}",
            "declare the word all, or a list of PCI bus ids (0000:01:00.0) and GPU UUIDs",
        )
    found = []
    for name in wanted:
        match = next((gpu for gpu in gpus if name.lower() in (gpu.uuid.lower(), gpu.bus_id, *_short(gpu.bus_id))), None)
        if match is None:
            raise problem(
                "gpu-missing",
                f"the host has no GPU {name}",
                "pve_container_gpus",
                f"it has: {present}",
                "declare one of these bus ids or UUIDs, or find out why the GPU is gone (nvidia-smi -L; dmesg)",
            )
        found.append(match)
    return sorted(set(found), key=lambda gpu: gpu.bus_id)


def _short(bus_id: str) -> tuple[str, str]:
    """The spellings without the domain, and with the eight digits of nvidia-smi."""
    domain, _, rest = bus_id.partition(":")
    return rest, f"{domain:0>8}:{rest}"


def kernel_version(proc: str = PROC, sysfs: str = "/sys/module") -> tuple[Optional[str], Optional[str]]:
    """(full version, flavour ``open`` or ``proprietary``) of the loaded kernel module; None for what cannot be read."""
    version = _read(os.path.join(sysfs, "nvidia", "version"))
    text = _read(os.path.join(proc, "version")) or ""
    flavour = None
    line = re.search(r"NVRM version:\s*(.*)", text)
    if line:
        flavour = "open" if "Open Kernel Module" in line.group(1) else "proprietary"
        inside = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", line.group(1).replace("x86_64", ""))
        version = version or (inside.group(1) if inside else None)
    return version, flavour


def device_problem(path: str) -> Optional[str]:
    """What is wrong with a device node; None when it is a device."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.strerror or "cannot be read"
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        return None
    return "it is not a device"


def make_node_command(path: str) -> str:
    """The command that makes a missing NVIDIA device node (a second client of the driver makes it as well)."""
    name = os.path.basename(path)
    if re.match(r"nvidia\d+$", name):
        return f"nvidia-modprobe -c {name[6:]}"
    known = {
        "nvidiactl": "nvidia-modprobe -c 0",
        "nvidia-uvm": "nvidia-modprobe -c 0 -u",
        "nvidia-uvm-tools": "nvidia-modprobe -c 0 -u",
        "nvidia-modeset": "nvidia-modprobe -m",
    }
    return known.get(name, f"load the driver that makes {path}")


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None
