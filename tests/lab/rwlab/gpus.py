# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what NVIDIA's kernel modules show of eight GPUs, as files (see README.md).

As on a real machine of eight RTX PRO 6000 Blackwell Server Edition, the minor of a device node is not the index that
the tools count by. UUIDs are invented, and stay the same.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from rwlab import files
from rwlab.errors import LabError
from rwlab.nodes import Node
from rwlab.paths import SOURCE

DRIVER_VERSION = "595.58.03"
# the name says what it is wherever it is shown: a report of the laboratory must not pass for one of real GPUs
NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition (stand-in)"
STATE_FILE = "rackwell-lab-gpus.json"
# for the hosts' nvidia-modprobe: which nodes it cannot make
NODES_FILE = "rackwell-lab-nodes.json"
# for their dmesg
MESSAGES_FILE = "rackwell-lab-dmesg"
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


def check(state: dict[str, Any]) -> None:
    """Whether the kernel's side can be shown of this state.

    Raises:
        LabError: a GPU lacks its UUID, bus id or minor, or shares one with another.
    """
    for key, form in (
        ("uuid", r"GPU-[0-9a-f-]+"),
        ("bus_id", r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
        ("minor", r"\d+"),
    ):
        seen = [str(gpu.get(key, "")) for gpu in state["gpus"]]
        for index, value in enumerate(seen):
            if not re.fullmatch(form, value) or seen.count(value) > 1:
                why = f"{key} is {value!r}, and must be each GPU's own, of the form {form}"
                raise LabError("gpu-incomplete", f"GPU {index} cannot be shown", where=STATE_FILE, why=why, exit_code=2)


def swap_minors(state: dict[str, Any], before: dict[str, Any]) -> None:
    """Who had a minor that another GPU was given takes that one's: minors stay a permutation."""
    for gpu, old in zip(state["gpus"], before["gpus"], strict=False):
        if gpu.get("minor") == old.get("minor"):
            continue
        for other in state["gpus"]:
            if other is not gpu and other.get("minor") == gpu.get("minor"):
                other["minor"] = old.get("minor")


def uvm_major(state: dict[str, Any], taken: set[int]) -> int:
    """nvidia-uvm's major: dynamic, and nobody's among the character majors of the running kernel."""
    return int(state.get("uvm_major") or next(major for major in range(511, 383, -1) if major not in taken))


def nodes(state: dict[str, Any], taken_majors: set[int]) -> dict[str, Node]:
    """Device nodes below /dev of a host with these GPUs.

    Args:
        taken_majors: character majors of the running kernel.
    """
    uvm = uvm_major(state, taken_majors)
    found = {f"nvidia{gpu['minor']}": Node(_FIXED_MAJOR, int(gpu["minor"])) for gpu in state["gpus"]}
    found = dict(sorted(found.items()))
    found |= {"nvidiactl": Node(_FIXED_MAJOR, 255), "nvidia-modeset": Node(_FIXED_MAJOR, 254)}
    return found | {"nvidia-uvm": Node(uvm, 0), "nvidia-uvm-tools": Node(uvm, 1)}


def majors(state: dict[str, Any], taken: set[int], loaded: dict[str, bool]) -> list[tuple[int, str]]:
    """Lines of /proc/devices: those of the modules that are loaded."""
    found = [(_FIXED_MAJOR, "nvidia"), (_FIXED_MAJOR, "nvidiactl")] if loaded["nvidia"] else []
    found += [(_FIXED_MAJOR, "nvidia-modeset")] if loaded["nvidia_modeset"] else []
    return found + ([(uvm_major(state, taken), "nvidia-uvm")] if loaded["nvidia_uvm"] else [])


def character_majors(devices: str) -> set[int]:
    """Character majors in the text of /proc/devices."""
    part = devices.partition("Block devices:")[0]
    return {int(line.split()[0]) for line in part.splitlines() if line.strip()[:1].isdigit()}


def render(kernel: Path, state: dict[str, Any], settings: dict[str, Any], gone: set[str], kept_away: list[str]) -> None:
    """Write the tree that stands for /proc/driver and /sys/module. Only what differs is touched.

    Args:
        kernel: the directory; ``proc-driver`` and ``sys-module`` below it are bind-mounted, so they stay the same
            directories while their content changes.
        state: the GPU state file, or what it should become.
        settings: see :func:`kernel_settings`.
        gone: UUIDs of GPUs that the kernel did not find at its last start. kept_away: nodes that cannot be made.
    """
    driver = kernel / "proc-driver/nvidia"
    wanted = (
        {
            driver / name: text
            for name, text in _proc(without(state, gone), settings["options"] | settings["params"]).items()
        }
        if settings["loaded"]["nvidia"]
        else {}
    )
    files.write_json(driver / STATE_FILE, state)
    files.write_json(driver / NODES_FILE, {"kept_away": kept_away})
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
    wanted |= {kernel / "sys-module" / name / "initstate": "live\n" for name in settings["foreign"]}
    for path, text in wanted.items():
        files.write(path, text, 0o444)
    (kernel / "sys-module").mkdir(parents=True, exist_ok=True)
    _remove_others(driver, {*wanted, *(driver / name for name in (STATE_FILE, NODES_FILE, MESSAGES_FILE))})
    _remove_others(kernel / "sys-module", set(wanted))


def without(state: dict[str, Any], gone: set[str]) -> dict[str, Any]:
    """The state as a kernel sees it that did not find these GPUs (UUIDs)."""
    return {**state, "gpus": [gpu for gpu in state["gpus"] if gpu["uuid"] not in gone]}


def kernel_settings() -> dict[str, Any]:
    """What `lab.py set kernel` changes of the driver beside the version.

    ``hmm`` (true: HMM is on, the fault), loaded modules, ``params``: lines of /proc/driver/nvidia/params;
    ``options``: those that a boot found in modprobe's files; ``foreign``: other drivers' modules.
    """
    return {"hmm": False, "loaded": dict.fromkeys(MODULES, True), "params": {}, "options": {}, "foreign": []}


_PARAMS = {
    "ResmanDebugLevel": 4294967295,
    "ModifyDeviceFiles": 1,
    "DeviceFileUID": 0,
    "DeviceFileGID": 0,
    "DeviceFileMode": 438,
    "DmaRemapPeerMmio": 1,
    "EnableResizableBar": 1,
    "GrdmaPciTopoCheckOverride": 1,
    "RegistryDwords": '"ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2"',
    "OpenRmEnableUnsupportedGpus": 1,
}


def _proc(state: dict[str, Any], params: dict[str, Any]) -> dict[str, str]:
    """Files of /proc/driver/nvidia by relative path; texts as the open kernel modules print them."""
    version = state["driver_version"]
    found = {
        "version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (lab@lab)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n",
        "params": "".join(f"{name}: {value}\n" for name, value in (_PARAMS | params).items()),
    }
    for index, gpu in enumerate(state["gpus"]):
        found[f"gpus/{gpu['bus_id']}/information"] = (
            f"Model: \t\t {gpu.get('name', NAME)}\nIRQ:   \t\t {120 + index}\nGPU UUID: \t {gpu['uuid']}\n"
            "Video BIOS: \t 98.02.67.00.0a\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {gpu['bus_id']}\nDevice Minor: \t {gpu['minor']}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n"
        )
    return found


def _remove_others(root: Path, keep: set[Path]) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path in kept.parents for kept in keep):
                shutil.rmtree(path)
        elif path not in keep:
            path.unlink()
