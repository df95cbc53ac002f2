# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what a host's kernel shows, kept in the host's directory and changed by `set`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rwlab import cpus, files, gpus, machine, nodes, pci, shown
from rwlab.paths import HostPaths

# single files stay the same ones: a bind mount of a file does not see another that took its name
_FILES = {"devices": "proc/devices", "cmdline": "proc/cmdline", "osrelease": "proc/sys/kernel/osrelease"}
_CPU_FILES = {
    "cpuinfo": "proc/cpuinfo",
    "cpu-present": "sys/devices/system/cpu/present",
    "cpu-offline": "sys/devices/system/cpu/offline",
}


def defaults() -> dict[str, Any]:
    """Settings of a host on which nothing is wrong.

    ``kernel``: see gpus.kernel_settings and machine.settings. ``nodes``: name -> fault. ``at_boot``: the laboratory
    makes the nodes when the host starts. ``gone``: UUIDs of GPUs that were not found at its last start.
    ``containers``: vmid -> {node: fault} of what was put into running containers.
    """
    kernel = {**gpus.kernel_settings(), **machine.settings()}
    return {"kernel": kernel, "nodes": {}, "at_boot": True, "gone": [], "containers": {}}


def settings(paths: HostPaths) -> dict[str, Any]:
    """What `lab.py set` left."""
    found, kept = defaults(), files.read_json(paths.root / "kernel.json") or {}
    found["kernel"] |= kept.pop("kernel", {})
    # as earlier versions of the laboratory kept it
    found["nodes"] |= dict.fromkeys(kept.pop("missing", []), False)
    return found | kept


def state_file(paths: HostPaths) -> Path:
    """The GPU state file; containers see it as /proc/driver/nvidia/rackwell-lab-gpus.json."""
    return paths.kernel / "proc-driver/nvidia" / gpus.STATE_FILE


def prepare(paths: HostPaths, host: str) -> None:
    """Make the stand-in's files where they are absent; what tests changed stays changed until `reset`."""
    state = files.read_json(state_file(paths)) or gpus.healthy(host)
    _show(paths, settings(paths), state)


def boot(paths: HostPaths) -> None:
    """What a start of the kernel changes: a GPU that fell off the bus is not found again, and minors are given anew."""
    new, state = settings(paths), files.read_json(state_file(paths))
    minors: dict[str, int] = new.pop("minors", None) or {gpu["uuid"]: gpu["minor"] for gpu in state["gpus"]}
    gone = [gpu["uuid"] for gpu in state["gpus"] if gpu.get("fell_off")]
    lost = sorted(minors.get(uuid, gpu["minor"]) for gpu in state["gpus"] if (uuid := gpu["uuid"]) in gone)
    last = len(state["gpus"]) - len(lost)
    for gpu in state["gpus"]:
        minor = minors.get(gpu["uuid"], gpu["minor"])
        # the rest close the gap; a lost one's number is that of a node which does not exist
        gpu["minor"] = last + lost.index(minor) if gpu["uuid"] in gone else minor - sum(n < minor for n in lost)
    new["gone"] = gone
    if gone:
        new["minors"] = minors
    change(paths, new, state)


def change(paths: HostPaths, new: dict[str, Any], state: dict[str, Any]) -> None:
    """Keep new settings and a new GPU state, and show them.

    Raises:
        LabError: what cannot be shown; then nothing was changed.
    """
    gpus.check(state)
    machine.iommu(state)
    pci.devices(state)
    files.write_json(paths.root / "kernel.json", new)
    _show(paths, new, state)


def _show(paths: HostPaths, new: dict[str, Any], state: dict[str, Any]) -> None:
    kernel, root = new["kernel"], paths.kernel
    kept_away = sorted(name for name, fault in new["nodes"].items() if fault is False)
    gpus.render(root, state, kernel, set(new["gone"]), kept_away)
    seen = gpus.without(state, set(new["gone"]))
    shown.show(root / "sys-bus-pci", pci.tree(seen, machine.groups(seen)))
    shown.show(root / "sys-iommu-groups", machine.iommu_groups(seen))
    shown.show(root / "sys-class", machine.classes(seen, kernel, machine.classes_of_machine()))
    memory = machine.memory_kib(Path("/proc/meminfo").read_text())
    # those that were found at the last start do not change the board
    shown.show(root / "sys-node", machine.numa(state, os.cpu_count() or 1, memory))
    of_machine = Path("/proc/devices").read_text()
    taken = gpus.character_majors(of_machine)
    files.rewrite(root / "devices", machine.devices(of_machine, gpus.majors(state, taken, kernel["loaded"])))
    files.rewrite(root / "cmdline", machine.cmdline(state, kernel))
    files.rewrite(root / "osrelease", f"{kernel['release']}\n")
    files.write(root / "proc-driver/nvidia" / gpus.MESSAGES_FILE, machine.messages(kernel, machine.iommu(state)), 0o644)
    files.rewrite(root / "cpuinfo", cpus.info(Path("/proc/cpuinfo").read_text()))
    count = int(kernel["cpus"]) or os.cpu_count() or 1
    files.rewrite(root / "cpu-present", cpus.present(count))
    files.rewrite(root / "cpu-offline", cpus.offline(count, machine.iommu(state)))


def mounts(paths: HostPaths) -> list[str]:
    """``lxc.mount.entry`` values that put the stand-in in the place of the kernel's own files.

    A machine without a board (most virtual ones) has no directory to put one's names into: there the whole of
    /sys/class is replaced by links to its own classes.
    """
    places = {"proc-driver": "proc/driver", "sys-module": "sys/module"}
    optional = {"sys-bus-pci": "sys/bus/pci", "sys-iommu-groups": "sys/kernel/iommu_groups"}
    optional |= {"sys-node": "sys/devices/system/node"}
    if machine.lacks_board():
        optional["sys-class"] = "sys/class"
    else:
        optional |= {"sys-class/dmi/id": "sys/devices/virtual/dmi/id", "sys-class/iommu": "sys/class/iommu"}
    return [
        *(f"{paths.kernel}/{source} {target} none rbind 0 0" for source, target in places.items()),
        *(f"{paths.kernel}/{source} {target} none rbind,optional 0 0" for source, target in optional.items()),
        *(f"{paths.kernel}/{source} {target} none bind 0 0" for source, target in _FILES.items()),
        *(f"{paths.kernel}/{source} {target} none bind,optional 0 0" for source, target in _CPU_FILES.items()),
    ]


def healthy_nodes(new: dict[str, Any], state: dict[str, Any]) -> dict[str, nodes.Node]:
    """The nodes of a host whose kernel found these GPUs."""
    taken = gpus.character_majors(Path("/proc/devices").read_text())
    return gpus.nodes(gpus.without(state, set(new["gone"])), taken)


def wanted_nodes(paths: HostPaths) -> dict[str, nodes.Node]:
    """Device nodes of the host, with the faults that were set."""
    new, state = settings(paths), files.read_json(state_file(paths))
    return nodes.wanted(healthy_nodes(new, state), new["nodes"])


def nodes_at_boot(paths: HostPaths) -> dict[str, nodes.Node]:
    """What the laboratory itself makes when the host starts: all, or nothing where the host's own unit does it."""
    return wanted_nodes(paths) if settings(paths)["at_boot"] else {}
