# SPDX-License-Identifier: Apache-2.0
"""What can be seen around the driver without calling it: nodes, modules, versions, libraries. Never hangs: nothing is
opened that the driver serves, only looked at.

A node's minor number tells which GPU it is only together with /proc/driver/nvidia/gpus, which names the bus id of
each minor; it is never taken for an index.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.probe.sysfs import text

CTL, UVM, UVM_TOOLS = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
_GPU_NODE = re.compile(r"nvidia\d+$")
_LIBRARY_DIRECTORIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib")


@dataclasses.dataclass(frozen=True)
class Node:
    """A device node as this user sees it. ``device``: it is a character device; ``major_ok``: of the right driver."""

    path: str
    present: bool
    usable: bool = False  # may be opened for reading and writing, going by its mode
    mode: str = ""
    major: int = 0
    minor: int = 0
    device: bool = False
    major_ok: bool = True


@dataclasses.dataclass(frozen=True)
class DriverGpu:
    """A GPU that the kernel module has: /proc/driver/nvidia/gpus/<bus id>/information."""

    bus_id: str
    uuid: str | None = None
    minor: int | None = None


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """All that was seen.

    Attributes:
        kernel_module_version: from /sys/module/nvidia/version, e.g. ``595.58.03``; None = not loaded or not visible.
        library_version: of libcuda in the container's own directories; None = not found.
        hmm: True when nvidia_uvm runs with HMM, False when not, None when it does not say.
        uvm_loaded: whether the kernel has nvidia_uvm; None where its modules are not visible.
        uvm_major: the major number that the kernel serves nvidia-uvm with, when it says.
        gpus: what the kernel module has, passed into this container or not.
        compat: directories with CUDA's forward-compatibility libraries that the loader looks into.
        visible_devices: CUDA_VISIBLE_DEVICES, None = not set.
        iommu: ``off``, ``pt``, ``translated`` or ``unknown``, from the groups' types.
        machine: kernel, boot_id, board, product, bios_version; None where not told.
        findings: short names, the conditions of :mod:`rackwell.probe.errors`.
    """

    nodes: tuple[Node, ...]
    kernel_module_version: str | None
    hmm: bool | None
    uvm_major: int | None
    findings: frozenset[str]
    library_version: str | None = None
    gpus: tuple[DriverGpu, ...] = ()
    compat: tuple[str, ...] = ()
    visible_devices: str | None = None
    iommu: str = "unknown"
    uvm_loaded: bool | None = None
    machine: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the report."""
        parts = dataclasses.asdict(self)
        lists = {name: list(parts[name]) for name in ("nodes", "gpus", "compat")}
        return {**parts, **lists, "machine": dict(self.machine), "findings": sorted(self.findings)}

    def node(self, path: str) -> Node:
        """The node of that path, present or not."""
        return next((node for node in self.nodes if node.path == path), Node(path, present=False))

    @property
    def gpu_nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if _GPU_NODE.match(Path(node.path).name))

    def without_node(self) -> tuple[DriverGpu, ...]:
        """GPUs that the kernel module has and whose node is not here."""
        minors = {int(Path(node.path).name[6:]) for node in self.gpu_nodes if node.present}
        return tuple(gpu for gpu in self.gpus if gpu.minor is not None and gpu.minor not in minors)


def look(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Surroundings:
    """Look at the machine below ``root``."""
    dev = root / "dev"
    gpus = sorted((p for p in dev.glob("nvidia*") if _GPU_NODE.match(p.name)), key=lambda p: int(p.name[6:]))
    majors = _majors(root)
    paths = [root / path[1:] for path in (CTL, UVM, UVM_TOOLS)]
    nodes = tuple(_node(path, root, majors) for path in (*paths, *gpus))
    version = text(root / "sys/module/nvidia/version")
    disabled = text(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    major = majors.get("nvidia-uvm")
    hmm = None if disabled is None else disabled != "Y"
    compat = _compat(root, environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    found = _findings(nodes, version, hmm, compat, visible)
    return Surroundings(
        nodes,
        version,
        hmm,
        major,
        found,
        _library_version(root),
        _driver_gpus(root),
        compat,
        visible,
        _iommu(root),
        _uvm_loaded(root, majors),
        machine(root),
    )


def machine(root: Path = Path("/")) -> dict[str, str | None]:
    """What names a machine and its boot."""
    dmi = root / "sys/class/dmi/id"
    return {
        "kernel": text(root / "proc/sys/kernel/osrelease"),
        "boot_id": text(root / "proc/sys/kernel/random/boot_id"),
        "board": text(dmi / "board_name"),
        "product": text(dmi / "product_name"),
        "bios_version": text(dmi / "bios_version"),
    }


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


def _node(path: Path, root: Path, majors: Mapping[str, int]) -> Node:
    shown = "/" + str(path.relative_to(root))
    try:
        seen = path.stat()
    except OSError:
        return Node(shown, present=False)
    is_device = stat.S_ISCHR(seen.st_mode)
    # /proc/devices lists every driver that has a major; where it names none, nothing can be said against the node
    served = majors.get("nvidia-uvm" if "uvm" in path.name else "nvidia")
    major = os.major(seen.st_rdev) if is_device else 0
    return Node(
        shown,
        present=True,
        usable=os.access(path, os.R_OK | os.W_OK),
        mode=f"{stat.S_IMODE(seen.st_mode):04o}",
        major=major,
        minor=os.minor(seen.st_rdev) if is_device else 0,
        device=is_device,
        major_ok=not is_device or served is None or major == served,
    )


def _majors(root: Path) -> dict[str, int]:
    """Majors of the character devices, by driver: /proc/devices up to ``Block devices``."""
    found: dict[str, int] = {}
    for line in (text(root / "proc/devices") or "").partition("Block devices")[0].splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit():
            found.setdefault(words[1], int(words[0]))
    return found


def _uvm_loaded(root: Path, majors: Mapping[str, int]) -> bool | None:
    if "nvidia-uvm" in majors or (root / "sys/module/nvidia_uvm").is_dir():
        return True
    return False if (root / "sys/module/nvidia").is_dir() else None


def _driver_gpus(root: Path) -> tuple[DriverGpu, ...]:
    found = []
    for entry in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        lines = (text(entry / "information") or "").splitlines()
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        minor = facts.get("Device Minor", "")
        uuid = facts.get("GPU UUID", "")
        known = uuid if re.match(r"GPU-[0-9a-f]{8}-", uuid) else None  # "GPU-????????-…" until the first client
        found.append(DriverGpu(entry.name.lower(), known, int(minor) if minor.isdigit() else None))
    return tuple(found)


def _library_version(root: Path) -> str | None:
    for directory in _LIBRARY_DIRECTORIES:
        versions = {version_of(path) for path in (root / directory).glob("libcuda.so.[0-9]*.*")} - {None}
        if len(versions) == 1:
            return versions.pop()
    return None


def _compat(root: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Directories named in LD_LIBRARY_PATH or the loader's configuration that hold CUDA's compat libraries."""
    places = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    for file in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        places += (text(file) or "").split()
    named = [place for place in dict.fromkeys(places) if place.startswith("/") and "compat" in place]
    return tuple(place for place in named if any((root / place[1:]).glob("libcuda.so*")))


def _iommu(root: Path) -> str:
    """Domain types of the groups: ``identity`` = passed through, ``DMA`` and ``DMA-FQ`` = translated."""
    groups = root / "sys/kernel/iommu_groups"
    if not groups.is_dir():
        return "unknown"
    types = {text(group / "type") for group in groups.glob("*")}
    if not types:
        return "off"
    if any((kind or "").startswith("DMA") for kind in types):
        return "translated"
    return "pt" if "identity" in types else "unknown"


def _findings(
    nodes: tuple[Node, ...], version: str | None, hmm: bool | None, compat: tuple[str, ...], visible: str | None
) -> frozenset[str]:
    by_path = {node.path: node for node in nodes}
    gpus = [node for node in nodes if _GPU_NODE.match(Path(node.path).name)]
    ctl, uvm = by_path[CTL], by_path[UVM]
    holds = {
        "ctl-node-missing": not ctl.present,
        "ctl-node-denied": ctl.present and not ctl.usable,
        "uvm-node-missing": not uvm.present,
        "uvm-node-denied": uvm.present and not uvm.usable,
        "uvm-node-stale": uvm.present and uvm.device and not uvm.major_ok,
        "node-not-device": any(node.present and not node.device for node in (ctl, uvm, *gpus)),
        "gpu-node-missing": not gpus,
        "gpu-node-denied": any(not node.usable for node in gpus),
        "module-missing": version is None,
        "hmm-on": hmm is True,
        "hmm-off": hmm is False,
        "visible-devices-set": visible is not None,
        "compat-libraries": bool(compat),
    }
    return frozenset(name for name, true in holds.items() if true)
