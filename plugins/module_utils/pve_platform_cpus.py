# SPDX-License-Identifier: Apache-2.0
"""The host's processors, and how many of them an IOMMU that is off costs.

Interrupts reach a processor whose APIC id is above 254 in x2APIC mode only, and the kernel uses that mode only with
interrupt remapping, which is the IOMMU's. Without it those processors are not started.
"""

from __future__ import annotations

import dataclasses
import re

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_words as words
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host

#: 255 is the broadcast
USABLE = 255
_VENDORS = {"AuthenticAMD": words.AMD, "HygonGenuine": words.AMD, "GenuineIntel": words.INTEL}
_TOLD = re.compile(r"x2apic: IRQ remapping doesn't support X2APIC|x2apic disabled|x2apic.*not supported", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Processors:
    """``vendor``: amd, intel or empty. ``present``, ``offline``: how many. ``high``: with an APIC id above 254.

    ``offline_list``: as the kernel writes it. ``told``: what the kernel said of x2APIC at its start.
    """

    vendor: str
    present: int
    offline: int
    high: int
    offline_list: str = ""
    told: str = ""

    @property
    def lost_without_iommu(self) -> int:
        """How many would not start with the IOMMU off."""
        return max(self.present - USABLE, self.high, 0)


def look(host: Host) -> Processors:
    """Read them."""
    text = host.read("/proc/cpuinfo")
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    ids = [int(found) for found in re.findall(r"^apicid\s*:\s*(\d+)", text, re.MULTILINE)]
    offline = host.read("/sys/devices/system/cpu/offline").strip()
    present = _count(host.read("/sys/devices/system/cpu/present").strip())
    lines = host.run(["dmesg"], 20.0).stdout.splitlines()
    told = next((line.strip() for line in lines if _TOLD.search(line)), "")
    return Processors(
        _VENDORS.get(vendor[1], "") if vendor else "",
        present or len(re.findall(r"^processor\s*:", text, re.MULTILINE)),
        _count(offline),
        len([found for found in ids if found >= USABLE]),
        offline,
        told,
    )


def _count(ranges: str) -> int:
    """How many ``0-238,240-255`` are."""
    total = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            total += int(last or first) - int(first) + 1
    return total
