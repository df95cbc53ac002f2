# SPDX-License-Identifier: Apache-2.0
"""The raw ``lxc.*`` lines of a container: those that are declared, and what of the file's has to change for them.

Proxmox VE has no option for them: they stand in the file, root edits them there, and the next start takes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Change
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem

CPUS, MEMS = "lxc.cgroup2.cpuset.cpus", "lxc.cgroup2.cpuset.mems"
MEMLOCK, MOUNT = "lxc.prlimit.memlock", "lxc.mount.entry"
SHM = f"{MOUNT} dev/shm"
# Proxmox VE leaves these out with a warning, or makes them itself
_REFUSED = ("lxc.rootfs.path", "lxc.rootfs.options")
_LINE = re.compile(r"(lxc\.[A-Za-z0-9_.-]+?)\s*(?::|=)\s*(.*?)\s*")
MEMLOCK_VALUE = re.compile(r"(unlimited|\d+)(:(unlimited|\d+))?")
SIZE_VALUE = re.compile(r"\d+[KMGkmg%]?")

Line = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class RawWanted:
    """The declared lines.

    Attributes:
        typed: name -> line, for what has an option of its own (cpuset, memlock, /dev/shm).
        lines: all others that the container has; None: those are the operator's and stay.
    """

    typed: dict[str, Line]
    lines: Optional[list[Line]] = None

    def all_lines(self) -> list[Line]:
        """The lines of a new container."""
        return [*self.typed.values(), *(self.lines or [])]


def parse_line(text: str) -> Line:
    """``lxc.key: value`` or ``lxc.key = value`` as its parts.

    Raises:
        ValueError: it is neither, or a line that Proxmox VE does not take.
    """
    match = _LINE.fullmatch(text.strip())
    if not match or not text.strip().isprintable():
        raise ValueError("it is no line of the form 'lxc.key: value'")
    if match.group(1) in _REFUSED:
        raise ValueError("Proxmox VE makes this line itself")
    return _key(match.group(1)), match.group(2)


def _key(key: str) -> str:
    """The name that Proxmox VE writes."""
    return key.replace("lxc.limit.", "lxc.prlimit.", 1) if key.startswith("lxc.limit.") else key


def text_of(line: Line) -> str:
    """The line as Proxmox VE writes it."""
    return f"{line[0]}: {line[1]}".rstrip() if line[1] else f"{line[0]}: "


def name_of(line: Line) -> str:
    """What a line is, when an option of its own can declare it; empty for all others."""
    if line[0] in (CPUS, MEMS, MEMLOCK):
        return line[0]
    words = line[1].split()
    return SHM if line[0] == MOUNT and len(words) > 1 and words[1].strip("/") == "dev/shm" else ""


def shm_line(size: str) -> Line:
    """A /dev/shm of this size."""
    return MOUNT, f"tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,mode=1777,size={size} 0 0"


def wanted_raw(args: Mapping[str, Any], nodes: Mapping[int, str]) -> RawWanted:
    """The declared lines.

    Args:
        nodes: NUMA node of the host -> its processors, as the kernel writes them.

    Raises:
        PveError: a node that the host does not have; a raw line that is none, or that has an option of its own.
    """
    typed: dict[str, Line] = {}
    numa = [int(node) for node in args.get("numa_nodes") or []]
    missing = [str(node) for node in numa if node not in nodes]
    if missing:
        raise problem(
            "numa-missing",
            f"the host has no NUMA node {', '.join(missing)}",
            "pve_container_numa_nodes",
            f"it has: {', '.join(map(str, sorted(nodes))) or 'none'}",
            "correct pve_container_numa_nodes; lscpu on the host shows the nodes, nvidia-smi topo -m those of the GPUs",
        )
    _values(args)
    cpus = args.get("cpuset") or ",".join(nodes[node] for node in sorted(set(numa)))
    if cpus:
        typed[CPUS] = (CPUS, str(cpus))
    if numa:
        typed[MEMS] = (MEMS, ",".join(str(node) for node in sorted(set(numa))))
    if args.get("memlock"):
        typed[MEMLOCK] = (MEMLOCK, str(args["memlock"]))
    if args.get("shm_size"):
        typed[SHM] = shm_line(str(args["shm_size"]))
    given = args.get("raw")
    if given in (None, "keep"):
        return RawWanted(typed)
    if not isinstance(given, (list, tuple)):
        raise _invalid("raw", given, "the word keep, or a list of lines")
    return RawWanted(typed, [_declared(str(text), typed) for text in given])


def _values(args: Mapping[str, Any]) -> None:
    """Raises PveError: a value would be another line, or none that LXC can read."""
    for option, good, expected in (
        ("cpuset", lambda text: bool(cpu_set(text)), "processors like 0-31,64-95"),
        ("memlock", MEMLOCK_VALUE.fullmatch, "unlimited, or a number of bytes"),
        ("shm_size", SIZE_VALUE.fullmatch, "a size like 64G, or a share of the memory like 50%"),
    ):
        value = args.get(option)
        if value and not good(str(value)):
            raise _invalid(option, value, expected)


def _invalid(option: str, value: Any, expected: str) -> PveError:
    return problem(
        "option-invalid",
        f"pve_container_{option} cannot be declared so",
        f"pve_container_{option}",
        f"found {value!r}, expected {expected}",
        "correct it there",
    )


def _declared(text: str, typed: Mapping[str, Line]) -> Line:
    try:
        line = parse_line(text)
        if name_of(line) in typed:
            raise ValueError("an option of its own declares it already")
    except ValueError as error:
        raise problem(
            "raw-invalid",
            "a raw line cannot be declared so",
            "pve_container_raw",
            f"{text!r}: {error}",
            "write 'lxc.key: value', one entry a line; cpuset, memlock and /dev/shm have options of their own",
        ) from None
    return line


def cpu_set(text: str) -> Optional[frozenset[int]]:
    """``0-3,8`` as its numbers; None when it is no such list."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if not match:
            return None
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        found.update(range(first, last + 1))
    return frozenset(found)


def same(one: Line, other: Line) -> bool:
    """Whether two lines say the same."""
    if _key(one[0]) != _key(other[0]):
        return False
    if one[0] in (CPUS, MEMS) and cpu_set(one[1]) is not None:
        return cpu_set(one[1]) == cpu_set(other[1])
    return one[1].split() == other[1].split()


@dataclasses.dataclass(frozen=True)
class Kept:
    """A line of the file after the change: ``at`` is its number among those before it, None for a new one."""

    at: Optional[int]
    line: Line


def settled(have: Sequence[Line], want: RawWanted) -> list[Kept]:
    """The lines after the change: what is right keeps its place, what differs is replaced in it, new ones follow.

    Of lines that have no option of their own the order matters within one key, not between keys.
    """
    left = dict(want.typed)
    queues: dict[str, list[Line]] = {}
    for line in want.lines or []:
        queues.setdefault(line[0], []).append(line)
    # with a list of lines every line belongs to the declaration, those of options that are not given as well
    exact = want.lines is not None
    found: list[Kept] = []
    seen: set[str] = set()
    for at, line in enumerate(have):
        name = name_of(line)
        if name in want.typed:
            if name not in seen:
                found.append(Kept(at, line if same(line, want.typed[name]) else want.typed[name]))
                left.pop(name, None)
            seen.add(name)
        elif not exact:
            found.append(Kept(at, line))
        elif queues.get(_key(line[0])):
            declared = queues[_key(line[0])].pop(0)
            found.append(Kept(at, line if same(line, declared) else declared))
    rest = [line for line in (want.lines or []) if _pending(line, queues)]
    return [*found, *(Kept(None, line) for line in [*left.values(), *rest])]


def _pending(line: Line, queues: dict[str, list[Line]]) -> bool:
    """Whether this line is still to be placed; takes it."""
    queue = queues.get(line[0], [])
    if any(entry is line for entry in queue):
        queue.remove(line)
        return True
    return False


def raw_changes(have: Sequence[Line], after: Sequence[Kept]) -> list[Change]:
    """The differences, for people and for the result: a line a change, always at the next start."""
    found = []
    kept = {entry.at: entry.line for entry in after if entry.at is not None}
    for at, line in enumerate(have):
        if at not in kept:
            found.append(Change(line[0], line[1], None, True))
        elif kept[at] != line:
            found.append(Change(line[0], line[1], kept[at][1], True))
    return found + [Change(entry.line[0], None, entry.line[1], True) for entry in after if entry.at is None]
