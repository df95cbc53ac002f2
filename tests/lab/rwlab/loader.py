# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what a boot loader starts the kernel with, on hosts that platform/seed-boot gave one.

The command line is what GRUB's own configuration holds, or what proxmox-boot-tool put on the partition: not what the
files say from which those are made. From its words comes what the IOMMU does, as an AMD machine's kernel reads them.
"""

from __future__ import annotations

from pathlib import Path

SEEDED = "etc/rackwell-lab-boot"
GRUB_CONFIG, ESP = "boot/grub/grub.cfg", "var/lib/rackwell-lab-esp/cmdline"


def cmdline(root: Path, release: str) -> str | None:
    """/proc/cmdline of the next start; None on a host without a boot loader of its own."""
    seeded = root / SEEDED
    if not seeded.is_file():
        return None
    if seeded.read_text().strip() == "systemd-boot":
        words = (root / ESP).read_text().split()
        return " ".join([rf"initrd=\EFI\proxmox\{release}\initrd.img-{release}", *words])
    for line in (root / GRUB_CONFIG).read_text().splitlines():
        parts = line.split()
        if parts[:1] == ["linux"] and "single" not in parts:
            return " ".join([f"BOOT_IMAGE=/boot/vmlinuz-{release}", *parts[2:]])
    return None


def iommu(line: str) -> str:
    """off, pt or translated."""
    values = {word.partition("=")[0]: word.partition("=")[2].split(",") for word in line.split() if "iommu" in word}
    if "off" in [*values.get("amd_iommu", []), *values.get("iommu", [])]:
        return "off"
    return "pt" if "pt" in values.get("iommu", []) or values.get("iommu.passthrough") == ["1"] else "translated"
