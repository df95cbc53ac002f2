# SPDX-License-Identifier: Apache-2.0
"""Small things that several parsers need: numbers with units, bus ids, and the text of a matrix."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def plain(text: str) -> str:
    """Text without the escapes that colour and underline it; nvidia-smi writes them into files, too."""
    return _ESCAPE.sub("", text).replace("\r\n", "\n")


def bus_id(text: str) -> str:
    """A PCI address as sysfs writes it, from any tool's form (``00000000:06:00.0``, ``06:00.0``); "" if it is none."""
    found = _BDF.fullmatch(text.strip())
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


def whole(text: str | None) -> int | None:
    """The whole number that `text` begins with (``16x``, ``0 KB/s``, ``0x0``); None for ``N/A`` and the like."""
    found = re.match(r"\s*(0x[0-9a-fA-F]+|-?\d+)", text or "")
    return int(found[1], 0) if found else None


def real(text: str | None) -> float | None:
    """The number that `text` begins with; None for ``N/A`` and the like."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text or "")
    return float(found[1]) if found else None


def count_bytes(text: str | None) -> int | None:
    """``97887 MiB`` in bytes."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B)?\s*$", text or "", re.IGNORECASE)
    if found is None:
        return None
    unit = (found[2] or "B").lower()
    unit = unit if unit in _UNITS else f"{unit[0]}ib"
    return int(float(found[1]) * _UNITS[unit])


def numbers(text: str) -> list[int]:
    """A list of CPUs such as ``0-63,128-191``."""
    found: list[int] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return []
        found += range(int(first), min(int(last or first), int(first) + 65536) + 1)
    return found
