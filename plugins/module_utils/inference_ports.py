# SPDX-License-Identifier: Apache-2.0
"""Who listens on a port: read from /proc, without any tool."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable
from typing import NamedTuple

_LISTEN = "0A"
_MAPPED = "::ffff:"


class Listener(NamedTuple):
    """A listening TCP socket of this network namespace."""

    address: str
    port: int
    inode: int


class Owner(NamedTuple):
    """A process that holds a listening socket; pid 0 when it cannot be seen from here."""

    pid: int
    command: str
    cgroups: tuple[str, ...]

    def belongs_to(self, unit: str) -> bool:
        """Whether the process runs in the control group of a unit."""
        return any(unit in path.split("/") for path in self.cgroups)


def _address(text: str) -> str:
    """The address of a line of /proc/net/tcp or tcp6: words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    packed = b"".join(words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    address = socket.inet_ntop(family, packed)
    return address.removeprefix(_MAPPED)


def parse_listeners(table: str) -> list[Listener]:
    """The listening sockets in the text of /proc/net/tcp or /proc/net/tcp6."""
    found = []
    for line in table.splitlines()[1:]:
        parts = line.split()
        if len(parts) > 9 and parts[3] == _LISTEN:
            address, _, port = parts[1].rpartition(":")
            found.append(Listener(_address(address), int(port, 16), int(parts[9])))
    return found


def is_any(host: str) -> bool:
    """Whether an address stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def in_the_way(listeners: Iterable[Listener], host: str, port: int) -> list[Listener]:
    """Those that keep a server from binding to ``host`` and ``port``."""
    return [
        one
        for one in listeners
        if one.port == port and (is_any(host) or is_any(one.address) or one.address == host or host == "localhost")
    ]


def listeners() -> list[Listener]:
    """All listening TCP sockets."""
    found: list[Listener] = []
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, encoding="ascii") as table:
                found += parse_listeners(table.read())
        except OSError:
            continue
    return found


def read_proc(path: str) -> str:
    """The text of a file below /proc; empty when it cannot be read, as of a process that is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _owner(pid: int) -> Owner:
    command = read_proc(f"/proc/{pid}/cmdline").replace("\0", " ").strip() or read_proc(f"/proc/{pid}/comm").strip()
    groups = tuple(
        line.split(":", 2)[2] for line in read_proc(f"/proc/{pid}/cgroup").splitlines() if line.count(":") >= 2
    )
    return Owner(pid, command[:200], groups)


def owners(inodes: Iterable[int]) -> list[Owner]:
    """Processes that hold one of these sockets; a single one with pid 0 when none can be seen."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if not wanted:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            links = os.listdir(f"/proc/{entry}/fd")
        except OSError:
            continue
        for link in links:
            try:
                if os.readlink(f"/proc/{entry}/fd/{link}") in wanted:
                    found.append(_owner(int(entry)))
                    break
            except OSError:
                continue
    return found or [Owner(0, "a process that cannot be seen from here", ())]


def port_owners(host: str, port: int) -> list[Owner]:
    """Who keeps a server from binding to ``host`` and ``port``; empty when nobody does."""
    return owners(one.inode for one in in_the_way(listeners(), host, port))


def is_local(host: str) -> bool:
    """Whether a server can bind to this address here."""
    try:
        info = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(info[0], socket.SOCK_STREAM) as probe:
            probe.bind(info[4])
    except socket.gaierror:
        return False
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
