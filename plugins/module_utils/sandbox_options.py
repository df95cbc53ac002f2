# SPDX-License-Identifier: Apache-2.0
"""The sandbox of rackwell's units: what systemd is asked to keep from a service that works with GPUs.

Left out on purpose, since each hides the GPUs, breaks a JIT compiler, or cannot hold in an unprivileged container:
PrivateDevices, DevicePolicy and DeviceAllow; ProtectClock, which implies a DeviceAllow and so closes the device list;
MemoryDenyWriteExecute; ProtectKernelTunables; ProcSubset and ProtectProc, whose new /proc lacks what the container's
manager mounts over the old one (memory and processors of the container, /proc/driver/nvidia); ProtectControlGroups,
which was seen to do the same (systemd 252 in LXC); PrivateUsers, in which the owners of device nodes are nobody;
PrivateNetwork and IPAddressDeny; RemoveIPC, since several units share one user; and SystemCallFilter, which was never
tried with a real engine and would end it without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: the only place on the disk that a service of a release writes to
CACHES = "/var/cache/rackwell"
_HOMES = ("/home", "/root", "/run/user")
_PLAIN = re.compile(r"/[A-Za-z0-9_./:=,+@-]*")

Option = tuple[str, str]


class Group(NamedTuple):
    """Options that are tried together.

    Attributes:
        mounts: whether they need a mount namespace, which a container has with nesting only.
    """

    name: str
    mounts: bool
    options: tuple[Option, ...]


class Needs(NamedTuple):
    """What must stay possible.

    Attributes:
        user: who the service runs as. writable: directories beside `CACHES`. readable: what it must reach.
    """

    user: str
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()


def _word(path: str) -> str:
    """A path as one word of an option that takes several; a missing one is no failure. Raises ValueError."""
    if not path.startswith("/") or re.search(r"[\n\r\0]", path):
        raise ValueError(f"{path!r} is no absolute path that can stand in a unit file")
    if _PLAIN.fullmatch(path):
        return "-" + path
    return '"-' + path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def groups(needs: Needs) -> list[Group]:
    """What is asked for, the mildest first. Raises ValueError for a path that cannot stand in a unit file."""
    writable = (CACHES, *needs.writable)
    # a home is hidden, unless what the service needs lies there
    home = "read-only" if any(_below(path, _HOMES) for path in (*needs.writable, *needs.readable)) else "yes"
    return [
        Group(
            "privileges",
            False,
            (
                ("NoNewPrivileges", "yes"),
                ("CapabilityBoundingSet", ""),
                ("AmbientCapabilities", ""),
                ("RestrictSUIDSGID", "yes"),
                ("LockPersonality", "yes"),
                ("RestrictRealtime", "yes"),
                ("RestrictNamespaces", "yes"),
                ("SystemCallArchitectures", "native"),
                # netlink is how libraries list network interfaces
                ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
                ("UMask", "0077"),
                ("LimitCORE", "0"),
            ),
        ),
        Group(
            "files",
            True,
            (
                ("ProtectSystem", "strict"),
                ("ReadWritePaths", " ".join(_word(path) for path in writable)),
                ("ProtectHome", home),
                ("PrivateTmp", "yes"),
                ("PrivateMounts", "yes"),
            ),
        ),
        Group(
            "kernel",
            True,
            (
                ("ProtectKernelModules", "yes"),
                ("ProtectKernelLogs", "yes"),
                ("ProtectHostname", "yes"),
            ),
        ),
    ]


def lines(options: Sequence[Option]) -> list[str]:
    """As they stand in a unit file."""
    return [f"{name}={value}" for name, value in options]
