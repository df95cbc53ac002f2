# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what a start of a host makes of its pinned kernel, its driver, and its boot loader.

LXC runs it at every start, also when the host reboots by itself: python3 -m rwlab.booting HOST-DIRECTORY ROOT. A host
without a pin and without a boot loader keeps the laboratory's settings, so that `set kernel` alone decides.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rwlab import files, gpus, kernel, loader, modprobing
from rwlab.paths import HostPaths

PIN, NEXT = "etc/kernel/proxmox-boot-pin", "etc/kernel/next-boot-pin"


def module_version(root: Path, release: str) -> str | None:
    """Version of the nvidia module that a kernel would load; None when it has none."""
    file = root / "lib/modules" / release / "updates/dkms/nvidia.ko"
    found = re.search(rb"\0?version=([0-9.]+)\0", file.read_bytes()) if file.is_file() else None
    return found[1].decode() if found else None


def boot(paths: HostPaths, root: Path) -> str:
    """Show the pinned kernel and its driver, and what the boot loader started it with; what was done, in words."""
    told = [_loader(paths, root), _pin(paths, root)]
    return "; ".join(filter(None, told)) or "no pin: nothing was changed"


def _loader(paths: HostPaths, root: Path) -> str:
    """The command line and the IOMMU; the firmware turns ACS on again where the state says that it does."""
    new, state = kernel.settings(paths), files.read_json(kernel.state_file(paths))
    line = loader.cmdline(root, new["kernel"]["release"])
    if line is None:
        return ""
    new["kernel"]["booted"] = line
    state["iommu"] = loader.iommu(f"{line} {new['kernel']['cmdline']}")
    kernel.change(paths, new, state)
    return f"started with {line}"


def _pin(paths: HostPaths, root: Path) -> str:
    pin, once = root / PIN, root / NEXT
    if not pin.is_file():
        return ""
    release = pin.read_text().strip()
    if once.is_file():
        release = once.read_text().strip()
        once.unlink()
    version = module_version(root, release)
    new, state = kernel.settings(paths), files.read_json(kernel.state_file(paths))
    new["kernel"]["release"] = release
    options = modprobing.text(root, release)
    foreign = ["nouveau"] if modprobing.nouveau(root, options) else []
    if modprobing.refused(options) or foreign:
        version = None
    new["kernel"]["loaded"] = dict.fromkeys(gpus.MODULES, version is not None)
    new["kernel"]["foreign"] = foreign
    new["kernel"]["options"] = modprobing.parameters(options)
    new["kernel"]["hmm"] = modprobing.hmm(options)
    for gpu in state["gpus"]:
        # neither lasts over a load of the driver
        gpu.pop("power_limit_w", None)
        gpu["persistence_mode"] = 0
    if version is not None:
        state["driver_version"] = version
    kernel.change(paths, new, state)
    return f"kernel {release}, driver {version or 'none'}"


if __name__ == "__main__":
    print(boot(HostPaths(Path(sys.argv[1])), Path(sys.argv[2])))
