# SPDX-License-Identifier: Apache-2.0
"""What can be seen around the driver without calling it: nodes, modules, versions. Never hangs: nothing is opened
that the driver serves, only looked at.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CTL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
_GPU_NODE = re.compile(r"nvidia\d+$")


@dataclasses.dataclass(frozen=True)
class Node:
    """A device node as this user sees it."""

    path: str
    present: bool
    usable: bool = False  # may be opened for reading and writing, going by its mode
    mode: str = ""
    major: int = 0
    minor: int = 0


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """All that was seen.

    Attributes:
        kernel_module_version: from /sys/module/nvidia/version, e.g. ``595.58.03``; None = not loaded or not visible.
        hmm: True when nvidia_uvm runs with HMM, False when not, None when it does not say.
        uvm_major: the major number that the kernel serves nvidia-uvm with, when it says.
        findings: short names, the conditions of :mod:`rackwell.probe.errors`.
    """

    nodes: tuple[Node, ...]
    kernel_module_version: str | None
    hmm: bool | None
    uvm_major: int | None
    findings: frozenset[str]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {**dataclasses.asdict(self), "findings": sorted(self.findings)}

    def node(self, path: str) -> Node:
        """The node of that path, present or not."""
        return next((node for node in self.nodes if node.path == path), Node(path, present=False))


def look(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Surroundings:
    """Look at the machine below ``root``."""
    dev = root / "dev"
    gpus = sorted((p for p in dev.glob("nvidia*") if _GPU_NODE.match(p.name)), key=lambda p: int(p.name[6:]))
    paths = [dev / "nvidiactl", dev / "nvidia-uvm", dev / "nvidia-uvm-tools", *gpus]
    nodes = tuple(_node(path, root) for path in paths)
    version = _text(root / "sys/module/nvidia/version")
    disabled = _text(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    major = _uvm_major(root)
    hmm = None if disabled is None else disabled != "Y"
    return Surroundings(nodes, version, hmm, major, _findings(nodes, version, hmm, major, environ))


def version_of(library: Path) -> str | None:
    """The driver version in the real file name of one of its libraries: ``libcuda.so.595.58.03``."""
    match = re.search(r"\.so\.(\d{3}\.\d+(?:\.\d+)?)$", library.resolve().name)
    return match.group(1) if match else None


def loaded_library(name: str) -> Path | None:
    """Where this process has loaded ``name`` (e.g. ``libcuda.so``) from."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.partition("/")[2]
        if path and Path(path).name.startswith(name):
            return Path("/" + path)
    return None


def _node(path: Path, root: Path) -> Node:
    shown = "/" + str(path.relative_to(root))
    try:
        seen = path.stat()
    except OSError:
        return Node(shown, present=False)
    return Node(
        shown,
        present=True,
        usable=os.access(path, os.R_OK | os.W_OK),
        mode=f"{stat.S_IMODE(seen.st_mode):04o}",
        major=os.major(seen.st_rdev),
        minor=os.minor(seen.st_rdev),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _uvm_major(root: Path) -> int | None:
    found = re.search(r"^\s*(\d+) nvidia-uvm$", _text(root / "proc/devices") or "", re.MULTILINE)
    return int(found.group(1)) if found else None


def _findings(
    nodes: tuple[Node, ...], version: str | None, hmm: bool | None, major: int | None, environ: Mapping[str, str]
) -> frozenset[str]:
    by_path = {node.path: node for node in nodes}
    gpus = [node for node in nodes if _GPU_NODE.match(Path(node.path).name)]
    ctl, uvm = by_path[CTL], by_path[UVM]
    holds = {
        "ctl-node-missing": not ctl.present,
        "ctl-node-denied": ctl.present and not ctl.usable,
        "uvm-node-missing": not uvm.present,
        "uvm-node-denied": uvm.present and not uvm.usable,
        "uvm-node-stale": uvm.present and major is not None and uvm.major != major,
        "gpu-node-missing": not gpus,
        "gpu-node-denied": any(not node.usable for node in gpus),
        "module-missing": version is None,
        "hmm-on": hmm is True,
        "hmm-off": hmm is False,
        "visible-devices-set": "CUDA_VISIBLE_DEVICES" in environ,
    }
    return frozenset(name for name, true in holds.items() if true)
