# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what NVIDIA's kernel modules show of eight GPUs, as files (see README.md).

As on a real machine of eight RTX PRO 6000 Blackwell Server Edition, the minor of a device node is not the index that
the tools count by. UUIDs are invented, and stay the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from rwlab import files
from rwlab.errors import LabError
from rwlab.paths import SOURCE

DRIVER_VERSION = "595.58.03"
# the name says what it is wherever it is shown: a report of the laboratory must not pass for one of real GPUs
NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition (stand-in)"
STATE_FILE = "rackwell-lab-gpus.json"
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset")

_FIXED_MAJOR = 195  # NV_MAJOR_DEVICE_NUMBER


def healthy(host: str) -> dict[str, Any]:
    """The state file of a host on which nothing is wrong: gpu/machine.json. gpu/README.md says what may stand in it."""
    state: dict[str, Any] = files.read_json(SOURCE / "gpu/machine.json")
    state["driver_version"] = DRIVER_VERSION
    for gpu in state["gpus"]:
        gpu.setdefault("name", NAME)
        if host != "pve1":
            gpu["uuid"] = uuid(host, gpu["bus_id"])
    return state


def uuid(host: str, bus_id: str) -> str:
    """An invented UUID: the same each time for a slot of a host, different between hosts."""
    return f"GPU-{uuid5(NAMESPACE_URL, f'rackwell-lab/{host}/{bus_id}')}"


def nodes(state: dict[str, Any], taken_majors: set[int]) -> dict[str, tuple[int, int]]:
    """Device nodes of a host with these GPUs: name below /dev -> (major, minor).

    Args:
        taken_majors: character majors of the running kernel. nvidia-uvm's is dynamic, and must be nobody's.
    """
    free = next(major for major in range(511, 383, -1) if major not in taken_majors)
    uvm = int(state.get("uvm_major") or free)
    found = {f"nvidia{gpu['minor']}": (_FIXED_MAJOR, int(gpu["minor"])) for gpu in state["gpus"]}
    found = dict(sorted(found.items()))
    found |= {"nvidiactl": (_FIXED_MAJOR, 255), "nvidia-modeset": (_FIXED_MAJOR, 254)}
    return found | {"nvidia-uvm": (uvm, 0), "nvidia-uvm-tools": (uvm, 1)}


def character_majors(devices: str) -> set[int]:
    """Character majors in the text of /proc/devices."""
    part = devices.partition("Block devices:")[0]
    return {int(line.split()[0]) for line in part.splitlines() if line.strip()[:1].isdigit()}


def render(kernel: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write the tree that stands for /proc/driver and /sys/module. Only what differs is touched.

    Args:
        kernel: the directory; ``proc-driver`` and ``sys-module`` below it are bind-mounted, so they stay the same
            directories while their content changes.
        state: the GPU state file, or what it should become.
        settings: see :func:`kernel_settings`.

    Raises:
        LabError: a GPU of the state has no bus id, minor or UUID.
    """
    driver = kernel / "proc-driver/nvidia"
    wanted = (
        {driver / name: text for name, text in _proc(state, state["driver_version"]).items()}
        if settings["loaded"]["nvidia"]
        else {}
    )
    files.write_json(driver / STATE_FILE, state)
    for name in MODULES:
        if not settings["loaded"][name]:
            continue
        module = kernel / "sys-module" / name
        wanted |= {
            module / "version": state["driver_version"] + "\n",
            module / "initstate": "live\n",
            module / "refcnt": "0\n",
        }
    if settings["loaded"]["nvidia_uvm"]:
        parameters = kernel / "sys-module/nvidia_uvm/parameters"
        wanted[parameters / "uvm_disable_hmm"] = "N\n" if settings["hmm"] else "Y\n"
    for path, text in wanted.items():
        files.write(path, text, 0o444)
    (kernel / "sys-module").mkdir(parents=True, exist_ok=True)
    _remove_others(driver, {*wanted, driver / STATE_FILE})
    _remove_others(kernel / "sys-module", set(wanted))


def kernel_settings() -> dict[str, Any]:
    """What `lab.py set kernel` changes beside the version: hmm (true: HMM is on, the fault), loaded modules."""
    return {"hmm": False, "loaded": dict.fromkeys(MODULES, True)}


def _proc(state: dict[str, Any], version: str) -> dict[str, str]:
    """Files of /proc/driver/nvidia by relative path; texts as the open kernel modules print them."""
    found = {
        "version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (lab@lab)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n",
        "params": "".join(
            f"{name}: {value}\n"
            for name, value in (
                ("ResmanDebugLevel", 4294967295),
                ("ModifyDeviceFiles", 1),
                ("DeviceFileUID", 0),
                ("DeviceFileGID", 0),
                ("DeviceFileMode", 438),
                ("DmaRemapPeerMmio", 1),
                ("EnableResizableBar", 1),
                ("GrdmaPciTopoCheckOverride", 1),
                ("RegistryDwords", '"ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2"'),
                ("OpenRmEnableUnsupportedGpus", 1),
            )
        ),
    }
    for index, gpu in enumerate(state["gpus"]):
        try:
            found[f"gpus/{gpu['bus_id']}/information"] = (
                f"Model: \t\t {gpu.get('name', NAME)}\nIRQ:   \t\t {120 + index}\nGPU UUID: \t {gpu['uuid']}\n"
                "Video BIOS: \t 98.02.67.00.0a\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
                f"Bus Location: \t {gpu['bus_id']}\nDevice Minor: \t {gpu['minor']}\n"
                f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n"
            )
        except KeyError as error:
            raise LabError("gpu-incomplete", f"GPU {index} has no {error}", where=STATE_FILE, exit_code=2) from error
    return found


def _remove_others(root: Path, keep: set[Path]) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path in kept.parents for kept in keep):
                shutil.rmtree(path)
        elif path not in keep:
            path.unlink()
