# SPDX-License-Identifier: Apache-2.0
"""A PCI tree as sysfs shows it: eight GPUs, two a switch, two switches a socket, and what else such a machine has."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from simulated import PLACES

SPEEDS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


def config(acs_control: int | None, size: int = 4096) -> bytes:
    """A configuration space: AER at 0x100, then ACS at 0x2a0 unless ``acs_control`` is None."""
    space = bytearray(4096)
    following = 0x2A0 if acs_control is not None else 0
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | following << 20)
    if acs_control is not None:
        struct.pack_into("<IHH", space, 0x2A0, 0x000D | 1 << 16, 0x005F, acs_control)
    return bytes(space[:size])


def device(
    root: Path,
    path: Sequence[str],
    kind: str,
    numa: int,
    *,
    speed: str = SPEEDS[5],
    width: str = "16",
    acs_control: int | None = 0x11,
    config_size: int = 4096,
) -> None:
    """One device at the end of ``path``, with its link in /sys/bus/pci/devices."""
    domain_bus = path[0].rpartition(":")[0]
    place = root / "sys/devices" / f"pci{domain_bus}" / "/".join(path)
    place.mkdir(parents=True, exist_ok=True)
    texts = {
        "current_link_speed": speed,
        "current_link_width": width,
        "max_link_speed": SPEEDS[5],
        "max_link_width": "16",
        "numa_node": str(numa),
        "vendor": "0x10de" if kind == "gpu" else "0x1000",
        "class": "0x030200" if kind == "gpu" else "0x060400",
        "aer_dev_correctable": "RxErr 0\nBadTLP 3\nBadDLLP 0\nTOTAL_ERR_COR 3",
        "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
        "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 1",
    }
    for name, text in texts.items():
        (place / name).write_text(text + "\n")
    (place / "config").write_bytes(config(acs_control, config_size))
    link = root / "sys/bus/pci/devices" / path[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../../../devices") / f"pci{domain_bus}" / "/".join(path))


def eight_gpus(root: Path) -> Path:
    """The whole machine below ``root``."""
    made: set[str] = set()
    for bus, port, up, down, numa in PLACES:
        path = (port, up, down, bus)
        for length, kind in enumerate(("root", "upstream", "downstream", "gpu"), start=1):
            if path[length - 1] not in made:
                made.add(path[length - 1])
                acs = None if kind in ("upstream", "gpu") else 0x11
                speed = SPEEDS[1] if kind in ("gpu", "downstream") else SPEEDS[5]
                device(root, path[:length], kind, numa, acs_control=acs, speed=speed)
    device(root, ("0000:50:03.3", "0000:51:00.0"), "bridge", 0)
    for node in (0, 1):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    return root
