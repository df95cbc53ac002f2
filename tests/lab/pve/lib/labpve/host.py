# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). The Proxmox VE host: where things lie, its storages, its containers' files, locks."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from . import config
from .errors import PveError, missing_config

VERSION = "9.1.4"
RELEASE = "9.1"
# the user ids of an unprivileged container start here, 65536 of them, as on Proxmox VE
SHIFT, SHIFT_SIZE = 100000, 65536
LOCK_WAIT_S = 10


@dataclasses.dataclass(frozen=True)
class Storage:
    """One entry of storage.cfg. Only ``dir`` storages work here."""

    name: str
    path: Path
    content: tuple[str, ...]

    def space(self) -> dict[str, int]:
        """Bytes: total, used, avail."""
        found = os.statvfs(self.path)
        total, avail = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        return {"total": total, "used": total - found.f_bfree * found.f_frsize, "avail": avail}


class Host:
    """The files of the host below ``root`` (``/``; tests give a directory)."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.node = socket.gethostname().split(".")[0]
        self.configs = root / "etc/pve/lxc"
        self.lxc = root / "var/lib/lxc"
        self.run = root / "run/pve"
        self.locks = root / "run/lock/lxc"

    def require_root(self) -> None:
        """Both tools are root's."""
        if os.geteuid() != 0:
            raise PveError("please run as root")

    # storages ------------------------------------------------------------

    def storages(self) -> list[Storage]:
        """What storage.cfg says; ``local`` when it is absent."""
        file = self.root / "etc/pve/storage.cfg"
        local = Storage("local", self.root / "var/lib/vz", ("iso", "vztmpl", "backup", "rootdir", "snippets"))
        if not file.exists():
            return [local]
        found = []
        for block in re.split(r"\n(?=\S)", file.read_text().strip()):
            head = re.match(r"dir:\s*(\S+)", block)
            path, content = (
                re.search(r"^\s+path\s+(\S+)", block, re.MULTILINE),
                re.search(r"^\s+content\s+(\S+)", block, re.MULTILINE),
            )
            if head and path:
                place = self.root / path[1].lstrip("/")
                found.append(Storage(head[1], place, tuple((content[1] if content else "rootdir").split(","))))
        return found

    def storage(self, name: str) -> Storage:
        """A storage by its name."""
        for storage in self.storages():
            if storage.name == name:
                return storage
        raise PveError(f"storage '{name}' does not exist")

    def template(self, volume: str) -> Path:
        """The archive behind ``local:vztmpl/NAME.tar.zst``."""
        match = re.fullmatch(r"([A-Za-z][\w.-]*):vztmpl/([^/]+)", volume)
        if not match:
            raise PveError(f"unable to parse volume ID '{volume}'")
        file = self.storage(match[1]).path / "template/cache" / match[2]
        if not file.exists():
            raise PveError(f"volume '{volume}' does not exist")
        return file

    # containers' files -----------------------------------------------------

    def vmids(self) -> list[int]:
        """Every container of this node."""
        return sorted(int(file.stem) for file in self.configs.glob("*.conf") if file.stem.isdigit())

    def content(self, vmid: int) -> bytes:
        """A container's file as it lies there."""
        try:
            return (self.configs / f"{vmid}.conf").read_bytes()
        except FileNotFoundError:
            raise missing_config(self.node, vmid) from None

    def read(self, vmid: int) -> config.Config:
        """A container's configuration."""
        return config.parse(self.content(vmid).decode())

    def check_quorum(self) -> None:
        """pmxcfs takes no change while the cluster has no quorum; a single host, without .members here, has one."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            known = json.loads((self.root / "etc/pve/.members").read_text())
            if str((known.get("cluster") or {}).get("quorate", 1)) == "0":
                raise PveError("cluster not ready - no quorum?")

    def write(self, vmid: int, conf: config.Config) -> None:
        """Replace the file at once."""
        self.check_quorum()
        self.configs.mkdir(parents=True, exist_ok=True)
        new = self.configs / f".{vmid}.conf.new"
        new.write_text(conf.write())
        new.replace(self.configs / f"{vmid}.conf")

    def remove(self, vmid: int) -> None:
        """The container is no more."""
        (self.configs / f"{vmid}.conf").unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, vmid: int) -> Iterator[None]:
        """One change of a container at a time, as PVE's flock does it."""
        self.locks.mkdir(parents=True, exist_ok=True)
        file = self.locks / f"pve-config-{vmid}.lock"
        with file.open("a") as handle:
            # other processes must not inherit the lock: the container's monitor lives on
            os.set_inheritable(handle.fileno(), False)
            deadline = time.monotonic() + LOCK_WAIT_S
            said = False
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not said:
                        print("trying to acquire lock...", flush=True)
                        said = True
                    if time.monotonic() > deadline:
                        raise PveError(f"can't lock file '{file}' - got timeout") from None
                    time.sleep(0.1)
            yield
