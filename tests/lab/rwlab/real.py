# SPDX-License-Identifier: Apache-2.0
"""A machine with NVIDIA GPUs: the laboratory passes the real nodes through and uses the real driver's libraries."""

from __future__ import annotations

import re
from pathlib import Path

from rwlab.paths import Cache

_VERSION = Path("/proc/driver/nvidia/version")


def present() -> bool:
    """Whether NVIDIA's kernel module runs here (and this is no container of a laboratory with a stand-in for it)."""
    return _VERSION.exists() and not _VERSION.with_name("rackwell-lab-gpus.json").exists()


def version() -> str:
    """The running kernel module's version."""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _VERSION.read_text())
    return found[1] if found else ""


def nodes() -> dict[str, tuple[int, int]]:
    """The real nodes: name below /dev -> (major, minor)."""
    import os
    import stat

    found = {}
    for path in sorted(Path("/dev").glob("nvidia*")):
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            found[path.name] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return found


def mounts() -> list[str]:
    return []


def driver(cache: Cache) -> Path | None:
    return None
