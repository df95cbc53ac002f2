# SPDX-License-Identifier: Apache-2.0
"""A Proxmox VE host as a directory: kernels, headers, the laboratory's dkms and proxmox-boot-tool, the real modinfo."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "lab" / "host"
NEW, OLD = "6.17.13-2-pve", "6.17.4-1-pve"

_QUERY = """#!/bin/sh
[ ! -e "$RACKWELL_LAB_ROOT/no-meta" ] && echo installed || exit 1
"""
_GUESTS = """#!/bin/sh
printf 'VMID       Status     Lock         Name\\n201        running                 glm5-01\\n'
printf '202        stopped                 glm5-02\\n'
"""
_MODPROBE = """#!/bin/sh
# "loads" what modinfo names
[ -e "$RACKWELL_LAB_ROOT/locked" ] || exit 0
echo "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
exit 1
"""


@dataclasses.dataclass
class PveMachine:
    """The directory."""

    root: Path

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, text: str = "") -> Path:
        file = self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def kernel(self, release: str, *, headers: bool = True) -> None:
        """Install a kernel, with its headers or without."""
        self.put(f"/boot/vmlinuz-{release}")
        self.put(f"/boot/initrd.img-{release}", "old\n")
        modules = self.at(f"/lib/modules/{release}")
        modules.mkdir(parents=True, exist_ok=True)
        for name in ("modules.order", "modules.builtin"):
            (modules / name).write_text("")
        link = modules / "build"
        if not link.is_symlink():
            link.symlink_to(f"/usr/src/linux-headers-{release}")
        if headers:
            self.put(f"/usr/src/linux-headers-{release}/Makefile")

    def loaded(self, version: str, *, flavour: str = "Open Kernel Module for x86_64", hmm: bool = False) -> None:
        """Have this module loaded."""
        self.put("/sys/module/nvidia/version", version + "\n")
        self.put("/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {flavour}  {version}  Release Build\n")
        self.put("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n" if hmm else "Y\n")

    def initramfs(self, release: str) -> str:
        """What modprobe reads in an image."""
        packed = gzip.decompress(self.at(f"/boot/initrd.img-{release}").read_bytes())
        return packed.decode("utf-8", "replace")

    def boot(self) -> None:
        """What a boot does: the pinned kernel, and the module that it finds."""
        pin = self.at("/etc/kernel/proxmox-boot-pin")
        kernel = pin.read_text().strip() if pin.exists() else self.at("/proc/sys/kernel/osrelease").read_text().strip()
        self.put("/proc/sys/kernel/osrelease", kernel + "\n")
        file = self.at(f"/lib/modules/{kernel}/updates/dkms/nvidia.ko")
        told = subprocess.run(["modinfo", "-F", "version", str(file)], capture_output=True, text=True, check=True)
        self.loaded(told.stdout.strip())

    def faults(self, version: str, **kernels: str) -> None:
        """Have dkms fail for a version: {kernel with _ for . and -: fault}."""
        names = {release.replace(".", "_").replace("-", "_"): release for release in (NEW, OLD)}
        told = {version: {names[name[1:]]: fault for name, fault in kernels.items()}}
        self.put("/etc/rackwell-lab-dkms.json", json.dumps(told))


def make(root: Path) -> PveMachine:
    """A host with two kernels that never had the driver; the newer one runs."""
    machine = PveMachine(root)
    for folder in ("tmp", "var/tmp", "var/lib", "var/log", "usr/lib/x86_64-linux-gnu", "proc", "sys/module", "dev"):
        machine.at(folder).mkdir(parents=True, exist_ok=True)
    machine.at("/lib").symlink_to("usr/lib")
    machine.put("/proc/sys/kernel/osrelease", NEW + "\n")
    machine.kernel(OLD)
    machine.kernel(NEW)
    programs = machine.at("/programs")
    programs.mkdir()
    for name in ("dkms", "proxmox-boot-tool", "update-initramfs"):
        (programs / name).symlink_to(LAB / name)
    for name, text in (("dpkg-query", _QUERY), ("pct", _GUESTS), ("modprobe", _MODPROBE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return machine
