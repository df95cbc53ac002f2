# SPDX-License-Identifier: Apache-2.0
"""What a running container has of its limits, read inside of it: the file says what LXC was told, not what holds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_drift import MACHINE, WARNING, Drift
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import CPUS, MEMLOCK, MEMS, SHM, Line, cpu_set

if TYPE_CHECKING:
    from ansible_collections.rackwell.gpu.plugins.module_utils.pve_cli import Pve

# of its first process: what every other one inherits
_SCRIPT = (
    "grep -i 'max locked memory' /proc/1/limits; grep -E '^(Cpus|Mems)_allowed_list:' /proc/1/status; "
    'for place in / /dev/shm; do stat -f -c "space $place %S %b %a" $place; done'
)
# less than this is what container tools give by default, and where NCCL's and the engine's shared memory ends
SHM_LEAST = 1 << 30
# of the root file system: a release takes gigabytes, and a full disk takes the logs and the journal with it
ROOT_LEAST, ROOT_SHARE = 1 << 30, 0.05
_SHM_AT = "/dev/shm"  # noqa: S108 - a place in the container
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Inside:
    """What was read; None for what was not told.

    Attributes:
        memlock: hard limit in bytes; -1: none. cpus, mems: processors and memory nodes of its first process.
        space: mount point -> (bytes in all, bytes that are free).
    """

    memlock: Optional[int] = None
    cpus: Optional[frozenset[int]] = None
    mems: Optional[frozenset[int]] = None
    space: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


def read(pve: Pve, vmid: int) -> Inside:
    """Ask the running container; one command."""
    return parse(pve.inside(vmid, ["sh", "-c", _SCRIPT])[1])


def parse(text: str) -> Inside:
    """What :data:`_SCRIPT` printed."""
    limit = re.search(r"^Max locked memory\s+\S+\s+(\d+|unlimited)", text, re.MULTILINE | re.IGNORECASE)
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:\s*(\S+)", text, re.MULTILINE))
    space = {
        place: (int(size) * int(blocks), int(size) * int(free))
        for place, size, blocks, free in re.findall(r"^space (\S+) (\d+) (\d+) (\d+)$", text, re.MULTILINE)
    }
    return Inside(
        None if limit is None else -1 if limit.group(1) == "unlimited" else int(limit.group(1)),
        cpu_set(lists["Cpus"]) if "Cpus" in lists else None,
        cpu_set(lists["Mems"]) if "Mems" in lists else None,
        space,
    )


def drift(want: Mapping[str, Line], have: Inside, waiting: Iterable[str] = ()) -> list[Drift]:
    """Declared limits that do not hold, and room that runs out.

    Args:
        want: the declared lines by their name, as in :class:`RawWanted`.
        waiting: keys that wait for the next start, which are told already.
    """
    found = []
    later = set(waiting)
    for name, line in want.items():
        text = "" if line[0] in later else _wrong(name, line, have)
        if text:
            found.append(_lost(name, line, text))
    total, _ = have.space.get(_SHM_AT, (0, 0))
    if total and SHM not in want and total < SHM_LEAST:
        found.append(
            Drift(
                "shm-small",
                WARNING,
                MACHINE,
                "lxc.mount.entry",
                f"{_SHM_AT} has {_size(total)} in the container: NCCL and the engine's processes share memory there, "
                "and end with 'Bus error' or 'No space left on device' when it is full",
                _size(total),
                fix="declare pve_container_shm_size: 64G, then rackwell provision --allow-restart",
            )
        )
    total, free = have.space.get("/", (0, 0))
    if total and free < max(ROOT_SHARE * total, min(ROOT_LEAST, total / 2)):
        found.append(
            Drift(
                "disk-nearly-full",
                WARNING,
                MACHINE,
                "rootfs",
                f"the container's root file system has {_size(free)} left of {_size(total)}",
                _size(free),
                fix="rackwell gc removes releases that nothing needs; journalctl --vacuum-size=200M in the container; "
                "or pct resize VMID rootfs +32G on the host, and pve_container_disk_size",
            )
        )
    return found


def _wrong(name: str, line: Line, have: Inside) -> str:
    """What holds instead of a declared line; empty when it holds, or was not told."""
    value = line[1]
    if name == MEMLOCK and have.memlock is not None:
        wanted = value.rpartition(":")[2]
        # systemd raises its own limit as far as it may: more than was declared is no loss
        least = float("inf") if wanted == "unlimited" else float(wanted)
        return _size(have.memlock) if have.memlock != -1 and have.memlock < least else ""
    if name == SHM and _SHM_AT in have.space:
        declared, total = _declared_size(value), have.space[_SHM_AT][0]
        return _size(total) if declared and abs(total - declared) >= 1 << 16 else ""
    if name in (CPUS, MEMS):
        seen, declared_set = (have.cpus if name == CPUS else have.mems), cpu_set(value)
        # of the declared ones those that are offline are missing
        return _ranges(seen) if seen and declared_set and not seen <= declared_set else ""
    return ""


def _lost(name: str, line: Line, found: str) -> Drift:
    what = {MEMLOCK: "locked memory", SHM: "the size of /dev/shm", CPUS: "its processors", MEMS: "its NUMA nodes"}[name]
    declared = next((word[5:] for word in line[1].replace(",", " ").split() if word.startswith("size=")), line[1])
    return Drift(
        "not-in-effect",
        WARNING,
        MACHINE,
        line[0],
        f"{what} is not what is declared inside the running container, though its file says so: it was changed there "
        "since it started, or the host does not enforce it (cgroup v2 without the controller cpuset)",
        found,
        declared,
        fix="pct reboot VMID on the host; if it is so again after that: cat /sys/fs/cgroup/cgroup.controllers there",
    )


def _declared_size(value: str) -> int:
    """Bytes of a /dev/shm line; 0 for a share of the memory, which only the kernel knows."""
    match = re.search(r"size=(\d+)([KMG]?)(?=[,\s]|$)", value, re.IGNORECASE)
    return int(match.group(1)) * _UNITS[match.group(2).upper()] if match else 0


def _size(count: int) -> str:
    if count < 0:
        return "unlimited"
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count / least:.4g} {unit}"
    return f"{count} bytes"


def _ranges(numbers: Iterable[int]) -> str:
    """``0-3,8``"""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
