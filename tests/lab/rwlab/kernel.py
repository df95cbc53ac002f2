# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: a host's kernel side of the driver, kept in the host's directory and changed by `set`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rwlab import files, gpus
from rwlab.paths import HostPaths


def settings(paths: HostPaths) -> dict[str, Any]:
    """What `lab.py set` left: kernel settings and the device nodes that are taken away."""
    return files.read_json(paths.root / "kernel.json") or {"kernel": gpus.kernel_settings(), "missing": []}


def state_file(paths: HostPaths) -> Path:
    """The GPU state file; containers see it as /proc/driver/nvidia/rackwell-lab-gpus.json."""
    return paths.kernel / "proc-driver/nvidia" / gpus.STATE_FILE


def prepare(paths: HostPaths, host: str) -> None:
    """Make the stand-in's files where they are absent; what tests changed stays changed until `reset`."""
    state = files.read_json(state_file(paths)) or gpus.healthy(host)
    gpus.render(paths.kernel, state, settings(paths)["kernel"])


def change(paths: HostPaths, new: dict[str, Any], state: dict[str, Any]) -> None:
    """Keep new settings and a new GPU state, and show them."""
    files.write_json(paths.root / "kernel.json", new)
    gpus.render(paths.kernel, state, new["kernel"])


def mounts(paths: HostPaths) -> list[str]:
    """``lxc.mount.entry`` values that put the stand-in in the place of the kernel's own files."""
    return [
        f"{paths.kernel}/proc-driver proc/driver none rbind 0 0",
        f"{paths.kernel}/sys-module sys/module none rbind 0 0",
    ]


def nodes(paths: HostPaths) -> dict[str, tuple[int, int]]:
    """Device nodes of the host, without those that were taken away."""
    taken = gpus.character_majors(Path("/proc/devices").read_text())
    missing = settings(paths)["missing"]
    found = gpus.nodes(files.read_json(state_file(paths)), taken)
    return {name: number for name, number in found.items() if name not in missing}
