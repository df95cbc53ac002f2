# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: how many processors a host seems to have, and who made them.

/proc/cpuinfo is the machine's own but for the maker, which is AMD's as the board's. `set kernel cpus=384` has the
kernel tell of so many, and without an IOMMU of those that it left out, as kernels do that have no interrupt remapping.
"""

from __future__ import annotations

import re

USABLE = 255
VENDOR = "AuthenticAMD"


def info(of_machine: str) -> str:
    """/proc/cpuinfo."""
    return re.sub(r"^(vendor_id\s*:\s*)\S+", rf"\g<1>{VENDOR}", of_machine, flags=re.MULTILINE)


def present(count: int) -> str:
    """/sys/devices/system/cpu/present."""
    return f"0-{count - 1}\n" if count > 1 else "0\n"


def offline(count: int, iommu: str) -> str:
    """/sys/devices/system/cpu/offline."""
    if iommu != "off" or count <= USABLE:
        return "\n"
    return f"{USABLE}-{count - 1}\n" if count > USABLE + 1 else f"{USABLE}\n"


def messages(count: int, iommu: str) -> list[str]:
    """What the kernel says at its start of processors that it leaves out."""
    if iommu != "off" or count <= USABLE:
        return []
    return [
        "x2apic: IRQ remapping doesn't support X2APIC mode",
        "x2apic disabled",
        f"smp: Brought up 2 nodes, {USABLE} CPUs",
    ]
