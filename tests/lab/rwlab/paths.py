# SPDX-License-Identifier: Apache-2.0
"""Where the laboratory keeps things: one directory an instance, one cache for all."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

from rwlab.errors import LabError

SOURCE = Path(__file__).resolve().parent.parent
REPO = SOURCE.parent.parent


def cache_root() -> Path:
    """``RACKWELL_LAB_CACHE``, or /var/cache/rackwell-lab."""
    return Path(os.environ.get("RACKWELL_LAB_CACHE") or "/var/cache/rackwell-lab").absolute()


def state_parent() -> Path:
    """``RACKWELL_LAB_STATE``, or /var/lib/rackwell-lab."""
    return Path(os.environ.get("RACKWELL_LAB_STATE") or "/var/lib/rackwell-lab").absolute()


@dataclasses.dataclass(frozen=True)
class Cache:
    """What all instances share; everything in it can be made again."""

    root: Path

    def base(self, suite: str) -> Path:
        return self.root / "base" / suite

    def layer(self, recipe: str) -> Path:
        return self.root / "layer" / f"pve-{recipe}"

    def template(self, suite: str) -> Path:
        number = {"bookworm": 12, "trixie": 13}[suite]
        return self.root / "templates" / f"debian-{number}-lab_amd64.tar.zst"

    @property
    def driver(self) -> Path:
        return self.root / "driver"

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def logs(self) -> Path:
        return self.root / "log"


@dataclasses.dataclass(frozen=True)
class HostPaths:
    """One outer container's directory."""

    root: Path

    @property
    def upper(self) -> Path:
        return self.root / "upper"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def rootfs(self) -> Path:
        """Where the root filesystem is: a mount point for the overlay, or the copy itself."""
        return self.root / "rootfs"

    @property
    def tree(self) -> Path:
        """Files that the laboratory puts into the host, laid out as in the host."""
        return self.root / "tree"

    @property
    def kernel(self) -> Path:
        """The stand-in for what the kernel shows: proc-driver/, sys-module/."""
        return self.root / "kernel"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def shared(self, name: str) -> Path:
        """A directory that is bind-mounted into the host (vz, lxc, pve, images)."""
        return self.root / name


@dataclasses.dataclass(frozen=True)
class Instance:
    """One laboratory: its name and its directory."""

    name: str
    state: Path

    @classmethod
    def of(cls, name: str) -> Instance:
        """The instance of that name; the name must do as part of a path and of a host name."""
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", name):
            raise LabError(
                "name-invalid",
                f"{name!r} cannot name a laboratory",
                why="names are a-z, 0-9 and -, begin with a letter and have at most 20 characters",
                exit_code=2,
            )
        return cls(name, state_parent() / name)

    @property
    def record(self) -> Path:
        return self.state / "lab.json"

    @property
    def lock(self) -> Path:
        """Beside the directory, so that ``down --purge`` can remove the directory under the lock."""
        return self.state.parent / f".{self.name}.lock"

    @property
    def site(self) -> Path:
        return self.state / "site"

    @property
    def lxc(self) -> Path:
        return self.state / "lxc"

    def host(self, name: str) -> HostPaths:
        return HostPaths(self.state / "hosts" / name)
