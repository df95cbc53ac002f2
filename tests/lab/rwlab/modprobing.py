# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: what a host's modprobe would have made of its files at a boot.

A module that lies in the initramfs is loaded there, with the options of the day on which the image was made; one that
does not is loaded later, with those of /etc/modprobe.d.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

#: a host that has this file has a kernel that would take the GPUs with nouveau
NOUVEAU = "etc/rackwell-lab-nouveau"


def text(root: Path, release: str) -> str:
    """The options that count for the driver's modules."""
    image = root / f"boot/initrd.img-{release}"
    try:
        packed = gzip.decompress(image.read_bytes()).decode("utf-8", "replace")
    except (OSError, EOFError):
        packed = ""
    if "nvidia-uvm.ko" in packed:
        # the headers between the files have no line that begins like one of modprobe's
        return packed
    return "\n".join(path.read_text(errors="replace") for path in sorted((root / "etc/modprobe.d").glob("*.conf")))


def refused(found: str) -> bool:
    """Whether nvidia is kept away at a boot."""
    return bool(
        re.search(r"^(blacklist nvidia|install nvidia /bin/\w+|options vfio-pci .*10de:.*)\s*$", found, re.MULTILINE)
    )


def nouveau(root: Path, found: str) -> bool:
    """Whether nouveau has the GPUs."""
    return (root / NOUVEAU).exists() and not re.search(r"^blacklist nouveau\s*$", found, re.MULTILINE)


def hmm(found: str) -> bool:
    """Whether nvidia_uvm has HMM on."""
    return not re.search(r"^options nvidia_uvm uvm_disable_hmm=1\s*$", found, re.MULTILINE)


def parameters(found: str) -> dict[str, str]:
    """NVreg_* of the options, as /proc/driver/nvidia/params names and shows them."""
    named = {}
    for name, quoted, plain in re.findall(r'^options nvidia NVreg_(\w+)=(?:"([^"]*)"|(\S+))\s*$', found, re.MULTILINE):
        named[name] = plain or (f'"{quoted}"' if name == "RegistryDwords" else quoted)
        if name == "RegistryDwords" and plain:
            named[name] = f'"{plain}"'
    return {
        name: str(int(value, 0)) if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", value) else value
        for name, value in named.items()
    }
