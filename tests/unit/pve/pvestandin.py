# SPDX-License-Identifier: Apache-2.0
"""A stand-in Proxmox VE host below a directory, and what the tests' GPUs are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[2] / "lab/pve/lib"
sys.path.insert(0, str(LIB))

from labpve import extract_schema  # noqa: E402
from labpve.containers import Containers  # noqa: E402
from labpve.host import Host  # noqa: E402
from labpve.lxc import Lxc  # noqa: E402
from labpve.pct import Pct  # noqa: E402
from labpve.pvesh import Pvesh  # noqa: E402
from labpve.pvesm import Pvesm  # noqa: E402

# bus id -> minor, as on a real machine: the minor is not the order on the bus
MINORS = {"0000:06:00.0": 2, "0000:07:00.0": 3, "0000:75:00.0": 0, "0000:f4:00.0": 4}


def uuid(bus_id: str) -> str:
    """The UUID that the tests' GPU of this bus id has."""
    return "GPU-00000000-0000-4000-8000-" + bus_id.replace(":", "").replace(".", "").zfill(12)


class FakeLxc(Lxc):
    """The stand-in's LXC without processes: remembers what runs and what was plugged in."""

    def __init__(self, host: Host, properties: dict[str, Any]) -> None:
        super().__init__(host, properties)
        self.up: set[int] = set()
        self.plugged: list[str] = []

    def pid(self, vmid: int) -> int | None:
        return 1 if vmid in self.up else None

    def write_config(self, vmid: int, keys: dict[str, str], raw: list[tuple[str, str]]) -> Path:
        return self.directory(vmid) / "config"

    def start(self, vmid: int, file: Path) -> None:
        self.up.add(vmid)

    def kill(self, vmid: int) -> None:
        self.up.discard(vmid)

    def shut_down(self, vmid: int, timeout: int, force: bool) -> None:
        self.up.discard(vmid)

    def unmount_devices(self, vmid: int) -> None:
        pass

    def plug_device(self, vmid: int, device: dict[str, str], unprivileged: bool) -> None:
        self.plugged.append(device["path"])

    def plug_mount(self, vmid: int, mount: dict[str, str], unprivileged: bool) -> None:
        self.plugged.append(mount["mp"])


class Standin:
    """A stand-in host: ``pct(...)`` and ``pvesh(...)`` give the exit code, ``conf(vmid)`` the file."""

    def __init__(self, root: Path) -> None:
        self.host = Host(root)
        self.host.node = "pve1"
        self.host.require_root = lambda: None  # type: ignore[method-assign]
        tables = extract_schema.extract()
        self.lxc = FakeLxc(self.host, tables["create"])
        self.containers = Containers(self.host, tables, self.lxc)
        (root / "etc/pve/lxc").mkdir(parents=True)
        (root / "var/lib/vz/template/cache").mkdir(parents=True)

    def pct(self, *words: str) -> int:
        return Pct(self.containers).run(list(words))

    def pvesh(self, *words: str) -> int:
        return Pvesh(self.containers).run(list(words))

    def pvesm(self, *words: str) -> int:
        return Pvesm(self.host).run(list(words))

    def conf(self, vmid: int) -> str:
        return (self.host.configs / f"{vmid}.conf").read_text()

    def put(self, vmid: int, text: str, running: bool = False) -> None:
        """A container with this file."""
        (self.host.configs / f"{vmid}.conf").write_text(text)
        self.lxc.directory(vmid).mkdir(parents=True, exist_ok=True)
        if running:
            self.lxc.up.add(vmid)
