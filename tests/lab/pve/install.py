# SPDX-License-Identifier: Apache-2.0
"""Puts the stand-ins `pct` and `pvesh` into the root filesystem of a container that plays a Proxmox VE host.

    from install import install; install(Path("…/rootfs"), python=Path("….venv/bin/python"))

``python`` is an interpreter that has the PyPI package fakepve: the schema of the API is taken from it here.
The root filesystem needs the Debian packages in :data:`PACKAGES`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("lxc", "uidmap", "zstd", "openssh-client", "python3", "iproute2")
HERE = Path(__file__).resolve().parent
PLACE = "usr/share/rackwell-lab/pve"


def install(rootfs: Path, python: Path | None = None) -> None:
    """Copy the programs and allow the ids of unprivileged containers. Runs again over what is there."""
    place = rootfs / PLACE
    place.mkdir(parents=True, exist_ok=True)
    schema = place / "api_schema.json.partial"
    extract = HERE / "lib/labpve/extract_schema.py"
    subprocess.run([str(python or sys.executable), str(extract), str(schema)], check=True)
    schema.rename(place / "api_schema.json")
    ignore = shutil.ignore_patterns("__pycache__", "extract_schema.py")
    shutil.copytree(HERE / "lib/labpve", place / "labpve", dirs_exist_ok=True, ignore=ignore)
    for tool in ("pct", "pvesh"):
        new = rootfs / f"usr/sbin/.{tool}.new"
        shutil.copyfile(HERE / "bin" / tool, new)
        new.chmod(0o755)
        new.rename(rootfs / "usr/sbin" / tool)
    for name in ("subuid", "subgid"):
        file = rootfs / "etc" / name
        lines = file.read_text().splitlines() if file.exists() else []
        if "root:100000:65536" not in lines:
            file.write_text("".join(line + "\n" for line in [*lines, "root:100000:65536"]))
    # LXC's own bridge and boot-time starter would get in the way: Proxmox VE has neither
    for unit in ("lxc-net.service", "lxc.service"):
        link = rootfs / "etc/systemd/system" / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to("/dev/null")


if __name__ == "__main__":
    install(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
