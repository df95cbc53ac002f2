# SPDX-License-Identifier: Apache-2.0
"""Who would be disturbed: guests that a reboot of the host ends, and processes that hold the GPUs."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host

_CONTAINER = re.compile(r"(?:^|/)lxc(?:\.payload\.|/)(\d+)(?:/|\n|$)")
_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process with one of the driver's device nodes open. ``container``: its number, empty for the host's own."""

    pid: int
    name: str
    container: str


@dataclasses.dataclass(frozen=True)
class Use:
    """What runs on the host: ``guests`` like ``container 201 (glm5-01)``, and who holds the GPUs."""

    guests: tuple[str, ...]
    holders: tuple[Holder, ...]

    def told(self) -> str:
        """One line: what a reboot ends."""
        parts = ["it ends " + _some(self.guests) if self.guests else "no guest runs"]
        if self.holders:
            names = [
                "%s (pid %d%s)" % (h.name, h.pid, h.container and ", container " + h.container) for h in self.holders
            ]
            parts.append("the GPUs are in use by " + _some(names))
        return "; ".join(parts)


def look(host: Host) -> Use:
    """Ask ``pct`` and ``qm``, and look through the open files of all processes."""
    guests = []
    for tool, kind in (("pct", "container"), ("qm", "virtual machine")):
        if host.tool(tool) is None:
            continue
        for line in host.run([tool, "list"]).stdout.splitlines()[1:]:
            words = line.split()
            if words and words[0].isdigit() and "running" in words:
                name = words[1] if kind != "container" else words[-1]
                guests.append("%s %s (%s)" % (kind, words[0], name))
    return Use(tuple(guests), tuple(holders(host)))


def holders(host: Host) -> list[Holder]:
    """Every process that has a node of the driver open."""
    found = []
    proc = host.at("/proc")
    for name in sorted((n for n in os.listdir(proc) if n.isdigit()), key=int):
        if not _holds(os.path.join(proc, name, "fd")):
            continue
        told = host.read("/proc/%s/comm" % name).strip() or "?"
        container = _CONTAINER.search(host.read("/proc/%s/cgroup" % name))
        found.append(Holder(int(name), told, container.group(1) if container else ""))
    return found


def _holds(directory: str) -> bool:
    try:
        for name in os.listdir(directory):
            if os.readlink(os.path.join(directory, name)).startswith("/dev/nvidia"):
                return True
    except OSError:
        # it ended, or is a kernel's own
        return False
    return False


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (" and %d more" % more if more > 0 else "")
