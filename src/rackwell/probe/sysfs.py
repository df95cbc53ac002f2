# SPDX-License-Identifier: Apache-2.0
"""The PCI tree from /sys/bus/pci/devices: every port between a root port and a GPU, its link, its counters, its ACS.

The place of a device is the real path behind its link there, e.g.
``…/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:03.0/0000:06:00.0``. Nothing here calls the NVIDIA driver; a file that
is absent or says something else is None. ACS stands beyond the first 64 bytes of a device's configuration, which only
root of the host may read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

from rackwell.probe.topology import Gpu, Port, Topology

_DEVICES = "sys/bus/pci/devices"
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_EXTENDED, _ACS_ID = 0x100, 0x000D  # PCI Express base specification 6.0, 7.7.11 (ACS extended capability)
_AER = {"correctable": "aer_dev_correctable", "nonfatal": "aer_dev_nonfatal", "fatal": "aer_dev_fatal"}


def read(root: Path = Path("/"), bus_ids: Iterable[str] | None = None) -> Topology:
    """The tree above the GPUs ``bus_ids``, or above all of NVIDIA's; indices in the order of the bus ids."""
    wanted = sorted(nvidia_gpus(root) if bus_ids is None else {bus_id.lower() for bus_id in bus_ids})
    gpus, ports = [], {}
    for index, bus_id in enumerate(wanted):
        place = root / _DEVICES / bus_id
        path = path_of(place)
        gpus.append(Gpu(index, bus_id, path, _numa(place)))
        for position, bdf in enumerate(path):
            if bdf not in ports:
                ports[bdf] = port(root / _DEVICES / bdf, bdf, _kind(position, len(path)))
    return Topology(tuple(gpus), ports, {}, numa_nodes(root))


def nvidia_gpus(root: Path = Path("/")) -> list[str]:
    """Bus ids of NVIDIA's display and 3D controllers, whether the driver has them or not."""
    try:
        entries = sorted((root / _DEVICES).iterdir())
    except OSError:
        return []
    found = []
    for entry in entries:
        is_display = (text(entry / "class") or "").startswith(_DISPLAY)
        if _BDF.match(entry.name) and is_display and text(entry / "vendor") == _NVIDIA:
            found.append(entry.name)
    return found


def path_of(place: Path) -> tuple[str, ...]:
    """Bus ids from the root port to the device; only itself where no tree is there."""
    parts: list[str] = []
    for part in reversed(place.resolve().parts):
        if not _BDF.match(part):
            break
        parts.append(part)
    return tuple(reversed(parts)) if place.exists() else (place.name,)


def port(place: Path, bdf: str, kind: str) -> Port:
    """One device's link, counters and ACS."""
    return Port(
        bdf,
        kind,
        _speed(place / "current_link_speed"),
        _width(place / "current_link_width"),
        _speed(place / "max_link_speed"),
        _width(place / "max_link_width"),
        acs(_bytes(place / "config")),
        aer(place),
    )


def acs(config: bytes) -> dict[str, int] | None:
    """Capability and control word of ACS; None where there is none, or the configuration is cut off."""
    offset, seen = _EXTENDED, set()
    while offset >= _EXTENDED and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_ID:
            capability, control = struct.unpack_from("<HH", config, offset + 4)
            return {"cap": capability, "ctl": control}
        offset = header >> 20
    return None


def aer(place: Path) -> dict[str, int] | None:
    """Totals of the error counters since boot; None where the kernel keeps none."""
    found = {}
    for kind, name in _AER.items():
        lines = [line.split() for line in (text(place / name) or "").splitlines()]
        counts = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
        if counts:
            totals = [count for name_, count in counts.items() if name_.startswith("TOTAL")]
            found[kind] = totals[0] if totals else sum(counts.values())
    return found or None


def numa_nodes(root: Path = Path("/")) -> int:
    """How many NUMA nodes the machine has; 0 where it is not told."""
    try:
        return sum(1 for entry in (root / "sys/devices/system/node").iterdir() if re.match(r"node\d+$", entry.name))
    except OSError:
        return 0


def text(path: Path) -> str | None:
    """What a small file says, without the white space around; None when absent, empty or not to be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _kind(position: int, length: int) -> str:
    if position == length - 1:
        return "gpu"
    return "root" if position == 0 else ("upstream" if position % 2 else "downstream")


def _numa(place: Path) -> int | None:
    found = text(place / "numa_node") or ""
    return int(found) if found.isdigit() else None  # the kernel writes -1 where the firmware does not say


def _speed(path: Path) -> float | None:
    """``32.0 GT/s PCIe`` -> 32.0."""
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", text(path) or "")
    return float(found.group(1)) if found else None


def _width(path: Path) -> int | None:
    found = text(path) or ""
    return int(found) if found.isdigit() and 0 < int(found) <= 32 else None  # 0 and 255 stand for "no link"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
