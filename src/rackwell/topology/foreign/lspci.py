# SPDX-License-Identifier: Apache-2.0
"""``lspci -vvv``: ports, links, ACS and errors. Without root it prints no capabilities, so that these stay None."""

from __future__ import annotations

import re

from rackwell.topology.foreign import text as texts
from rackwell.topology.foreign.results import Lspci, PciDevice

_HEAD = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (\S.*)$", re.MULTILINE)
_PORTS = (
    ("Root Port", "root"),
    ("Upstream Port", "upstream"),
    ("Downstream Port", "downstream"),
    ("Root Complex Integrated Endpoint", "endpoint"),
    ("Endpoint", "endpoint"),
    ("PCI-Express to PCI", "bridge"),
)
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "": 1}


def find(text: str) -> list[Lspci]:
    """The devices in `text`, as one result; none when it is no output of lspci with capabilities."""
    plain = texts.plain(text)
    starts = list(_HEAD.finditer(plain))
    ends = [start.start() for start in starts[1:]] + [len(plain)] * bool(starts)
    devices = [_device(start[1], start[2], plain[start.end() : end]) for start, end in zip(starts, ends, strict=True)]
    return [Lspci(devices=devices)] if any(device.port for device in devices) else []


def _device(bdf: str, what: str, body: str) -> PciDevice:
    capability = re.search(r"Capabilities: \[\w+\] Express \(v\d+\) ([^,\n]+)", body)
    buses = re.search(r"Bus: primary=\w+, secondary=(\w+), subordinate=(\w+)", body)
    numa = re.search(r"NUMA node:\s*(\d+)", body)
    most, now = _link(body, "LnkCap"), _link(body, "LnkSta")
    return PciDevice(
        bdf=texts.bus_id(bdf),
        what=what.partition(" (prog-if")[0],
        port=next((port for words, port in _PORTS if capability and words in capability[1]), ""),
        numa=int(numa[1]) if numa else None,
        secondary=int(buses[1], 16) if buses else None,
        subordinate=int(buses[2], 16) if buses else None,
        max_speed_gt_s=most[0],
        max_width=most[1],
        speed_gt_s=now[0],
        width=now[1],
        acs_cap=_flags(body, "ACSCap"),
        acs_ctl=_flags(body, "ACSCtl"),
        errors=[f"{name}:{flag}" for name in ("UESta", "CESta") for flag in _flags(body, name) or []],
        bar_bytes=max(_regions(body), default=None),
    )


def _link(body: str, name: str) -> tuple[float | None, int | None]:
    found = re.search(rf"{name}:\s.*?Speed ([\d.]+)GT/s[^,\n]*, Width x(\d+)", body)
    return (float(found[1]), int(found[2])) if found else (None, None)


def _flags(body: str, name: str) -> list[str] | None:
    """The flags of a register that are set; None when there is no such register."""
    found = re.search(rf"^\s*{name}:\s*(.*)$", body, re.MULTILINE)
    return [flag[:-1] for flag in found[1].split() if flag.endswith("+")] if found else None


def _regions(body: str) -> list[int]:
    found = re.findall(r"Region \d+: Memory at .*\[size=(\d+)([KMGT]?)\]", body)
    return [int(size) * _SIZES[unit] for size, unit in found]
