# SPDX-License-Identifier: Apache-2.0
"""The ports between root and GPU as the kernel shows them to root: links, error counters, and the ACS control bits.

Bits and offsets: PCI Express base specification, 7.5.3 (PCI Express capability) and 7.7.11 (ACS).
"""

from __future__ import annotations

import os
import re
import struct
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.gpu_host_read import names, text

DEVICES = "sys/bus/pci/devices"
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_CAPABILITIES_BIT, _FIRST_CAPABILITY, _EXPRESS = 0x10, 0x34, 0x10
_FIRST_EXTENDED, _ACS = 0x100, 0x000D
_KINDS = {4: "root", 5: "upstream", 6: "downstream"}
_AER = ("correctable", "nonfatal", "fatal")


def gpus(root: str) -> list[str]:
    """Bus ids of NVIDIA's display and 3D controllers, whether its driver has them or not."""
    found = []
    for name in names(os.path.join(root, DEVICES)) or []:
        place = os.path.join(root, DEVICES, name)
        display = (text(os.path.join(place, "class")) or "").startswith(_DISPLAY)
        if _BDF.fullmatch(name) and display and text(os.path.join(place, "vendor")) == _NVIDIA:
            found.append(name)
    return found


def path_of(root: str, bus_id: str) -> list[str]:
    """The devices on the way to a GPU, from the root port down to itself; empty when there is no such device."""
    place = os.path.join(root, DEVICES, bus_id)
    if not os.path.exists(place):
        return []
    parts: list[str] = []
    for part in reversed(os.path.realpath(place).split(os.sep)):
        if not _BDF.fullmatch(part):
            break
        parts.insert(0, part)
    return parts


def ports(root: str, paths: list[list[str]]) -> list[dict[str, Any]]:
    """Each device on the paths once: link (GT/s of a lane, lanes), ACS, error counters since boot."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for position, bdf in enumerate(path):
            if bdf not in found:
                found[bdf] = _port(root, bdf, position, len(path))
    return list(found.values())


def numa(root: str, bus_ids: list[str]) -> dict[str, int]:
    """NUMA node by bus id, where the firmware tells it."""
    told = {bus_id: text(os.path.join(root, DEVICES, bus_id, "numa_node")) or "" for bus_id in bus_ids}
    return {bus_id: int(node) for bus_id, node in told.items() if node.isdigit()}


def acs(config: bytes) -> Optional[dict[str, int]]:
    """Capability and control word of ACS; None when the device has none, or only its first bytes could be read."""
    offset, seen = _FIRST_EXTENDED, set()
    while offset >= _FIRST_EXTENDED and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):  # nothing there, or a device that no longer answers
            return None
        if header & 0xFFFF == _ACS:
            capability, control = struct.unpack_from("<HH", config, offset + 4)
            return {"cap": capability, "ctl": control}
        offset = header >> 20 & 0xFFC
    return None


def kind(config: bytes) -> Optional[str]:
    """``root``, ``upstream`` or ``downstream`` by the device's own words; None for others and when it says nothing."""
    if len(config) < 64 or not config[6] & _CAPABILITIES_BIT:
        return None
    offset, seen = config[_FIRST_CAPABILITY] & 0xFC, set()
    while offset >= 0x40 and offset + 4 <= len(config) and offset not in seen:
        seen.add(offset)
        if config[offset] == _EXPRESS:
            (flags,) = struct.unpack_from("<H", config, offset + 2)
            return _KINDS.get(flags >> 4 & 0xF)
        offset = config[offset + 1] & 0xFC
    return None


def _port(root: str, bdf: str, position: int, length: int) -> dict[str, Any]:
    place = os.path.join(root, DEVICES, bdf)
    config = _config(os.path.join(place, "config"))
    return {
        "bdf": bdf,
        "kind": kind(config) or _by_place(position, length),
        "acs": acs(config),
        "speed_gt_s": _speed(os.path.join(place, "current_link_speed")),
        "width": _width(os.path.join(place, "current_link_width")),
        "max_speed_gt_s": _speed(os.path.join(place, "max_link_speed")),
        "max_width": _width(os.path.join(place, "max_link_width")),
        "aer": _counters(place),
    }


def _by_place(position: int, length: int) -> str:
    """Below the root port each switch has an upstream and a downstream port."""
    if position == length - 1:
        return "gpu"
    if position == 0:
        return "root"
    return "upstream" if position % 2 else "downstream"


def _config(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read(4096)
    except OSError:
        return b""


def _speed(path: str) -> Optional[float]:
    """``32.0 GT/s PCIe`` -> 32.0."""
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", text(path) or "")
    return float(found.group(1)) if found else None


def _width(path: str) -> Optional[int]:
    """The kernel writes 0, 63 or 255 for a link that is not there."""
    found = text(path) or ""
    return int(found) if found.isdigit() and 0 < int(found) <= 32 else None


def _counters(place: str) -> Optional[dict[str, int]]:
    """Totals of the error counters; None unless the kernel keeps all of them."""
    found = {}
    for name in _AER:
        total = re.search(r"^TOTAL_ERR_\w+ (\d+)$", text(os.path.join(place, "aer_dev_" + name)) or "", re.MULTILINE)
        if total:
            found[name] = int(total.group(1))
    return found if len(found) == len(_AER) else None
