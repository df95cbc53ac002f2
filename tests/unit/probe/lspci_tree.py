# SPDX-License-Identifier: Apache-2.0
"""Makes a /sys/bus/pci of files from what `lspci -vvv` prints: links, NUMA nodes and configuration bytes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_TYPES = {"Root Port": 4, "Upstream Port": 5, "Downstream Port": 6, "Legacy Endpoint": 1, "Endpoint": 0}
_EXTENDED_IDS = {"Advanced Error Reporting": 0x01, "Virtual Channel": 0x02, "Access Control Services": 0x0D}


class Device:
    """One block of the text."""

    def __init__(self, block: str) -> None:
        first, *_ = block.splitlines()
        self.bdf = "0000:" + first.split()[0]
        self.bridge, self.gpu = "PCI bridge" in first, "NVIDIA" in first
        self.block = block
        buses = re.search(r"primary=(\w+), secondary=(\w+)", block)
        self.secondary = buses.group(2) if buses else None

    @property
    def bus(self) -> str:
        return self.bdf[5:7]

    def acs(self) -> tuple[int, int] | None:
        words = [re.search(rf"ACS{kind}:\t(.*)", self.block) for kind in ("Cap", "Ctl")]
        if not all(words):
            return None
        capability, control = (
            sum(1 << bit for bit, name in enumerate(_ACS_BITS) if f"{name}+" in word.group(1)) for word in words if word
        )
        return capability, control

    def config(self) -> bytes:
        """4096 bytes: the chains of capabilities as lspci walked them, with the PCIe type and ACS filled in."""
        data = bytearray(4096)
        found = re.findall(r"^\tCapabilities: \[(\w+)(?: v(\d))?\] (.*)$", self.block, re.MULTILINE)
        plain = [(int(offset, 16), name) for offset, version, name in found if not version]
        extended = [(int(offset, 16), int(version), name) for offset, version, name in found if version]
        if plain:
            data[6] |= 0x10
            data[0x34] = plain[0][0]
        for (offset, name), (following, _) in zip(plain, [*plain[1:], (0, "")], strict=False):
            data[offset], data[offset + 1] = (0x10 if name.startswith("Express") else 0x09), following
            for label, number in _TYPES.items():
                if name.startswith("Express") and label in name:
                    struct.pack_into("<H", data, offset + 2, 2 | number << 4)
                    break
        for (offset, version, name), (following, *_) in zip(extended, [*extended[1:], (0, 0, "")], strict=False):
            number = next((n for label, n in _EXTENDED_IDS.items() if name.startswith(label)), 0x0B)
            struct.pack_into("<I", data, offset, number | version << 16 | following << 20)
            words = self.acs()
            if number == 0x0D and words:
                struct.pack_into("<HH", data, offset + 4, *words)
        return bytes(data)


def build(root: Path, text: str) -> list[Device]:
    """Write the tree below ``root``; counters of errors are all 0."""
    devices = [Device(block) for block in re.split(r"\n(?=\w\w:\w\w\.\d )", text.strip("\n"))]
    above = {device.secondary: device for device in devices if device.secondary}
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    for device in devices:
        way = [device]
        while way[0].bus in above:
            way.insert(0, above[way[0].bus])
        place = root / f"sys/devices/pci0000:{way[0].bus}" / "/".join(step.bdf for step in way)
        place.mkdir(parents=True, exist_ok=True)
        (links / device.bdf).symlink_to(place)
        for name, content in _files(device).items():
            (place / name).write_text(content + "\n")
        (place / "config").write_bytes(device.config())
    return devices


def _files(device: Device) -> dict[str, str]:
    files = {
        "vendor": "0x10de" if device.gpu else "0x1000",
        "class": "0x060400" if device.bridge else "0x030200",
    }
    node = re.search(r"NUMA node: (\d+)", device.block)
    files["numa_node"] = node.group(1) if node else "-1"
    for name, label in (("current", "LnkSta"), ("max", "LnkCap")):
        link = re.search(rf"\t{label}:\t.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", device.block)
        if link:
            speed = link.group(1) if "." in link.group(1) else link.group(1) + ".0"
            files[f"{name}_link_speed"], files[f"{name}_link_width"] = f"{speed} GT/s PCIe", link.group(2)
    if "Advanced Error Reporting" in device.block:
        files["aer_dev_correctable"] = "RxErr 0\nBadTLP 0\nTOTAL_ERR_COR 0"
        files["aer_dev_nonfatal"] = "Undefined 0\nTOTAL_ERR_NONFATAL 0"
        files["aer_dev_fatal"] = "Undefined 0\nTOTAL_ERR_FATAL 0"
    return files
