# SPDX-License-Identifier: Apache-2.0
"""What a host says of itself: ``numactl -H``, ``lscpu``, the kernel's command line, and the driver's files in /proc."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from rackwell.topology.foreign import text as texts
from rackwell.topology.foreign.results import Cmdline, Cpus, DriverVersion, Majors, Nodes, Numa, Params

_NODE = re.compile(r"^(c[rwxsStT-]{9})\S*\s+\d+\s+\S+\s+\S+\s+(\d+),\s+(\d+)\s.*\s(\S*nvidia\S*)$")


def find_numa(text: str) -> list[Numa]:
    """``numactl -H``."""
    if not re.search(r"^available: \d+ nodes? \(", text, re.MULTILINE):
        return []
    cpus = {
        int(node): [int(cpu) for cpu in each.split()]
        for node, each in re.findall(r"^node (\d+) cpus:((?: +\d+)*) *$", text, re.MULTILINE)
    }
    memory = {
        int(node): int(size) << 20 for node, size in re.findall(r"^node (\d+) size: (\d+) MB$", text, re.MULTILINE)
    }
    rows = re.findall(r"^ *(\d+): +((?:\d+ *)+)$", text, re.MULTILINE)
    return [Numa(cpus=cpus, memory=memory, distances=[[int(cell) for cell in row.split()] for _, row in rows])]


def find_cpus(text: str) -> list[Cpus]:
    """``lscpu``."""
    if not re.search(r"^Architecture:\s", text, re.MULTILINE):
        return []
    fields = {key.strip(): value.strip() for line in text.splitlines() for key, _, value in [line.partition(":")]}
    numa = {
        int(found[1]): texts.numbers(value)
        for key, value in fields.items()
        if (found := re.fullmatch(r"NUMA node(\d+) CPU\(s\)", key))
    }
    return [
        Cpus(
            model=fields.get("Model name", ""),
            vendor=fields.get("Vendor ID", ""),
            sockets=texts.whole(fields.get("Socket(s)")),
            count=texts.whole(fields.get("CPU(s)")),
            offline=texts.numbers(fields.get("Off-line CPU(s) list", "")),
            numa=numa,
        )
    ]


def find_cmdline(text: str) -> list[Cmdline]:
    """A line that a boot loader gives to the kernel."""
    found = []
    for line in text.splitlines():
        words = _split(line.strip())
        if not words or not any(word.startswith("root=") for word in words):
            continue
        if words[0].startswith(("BOOT_IMAGE=", "initrd=", "root=")) or "ro" in words or "rw" in words:
            values: dict[str, list[str]] = {}
            for word in words:
                name, _, value = word.partition("=")
                values.setdefault(name, []).append(value)
            found.append(Cmdline(text=line.strip(), words=values))
    return found


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def find_driver(text: str) -> Iterator[Majors | Nodes | Params | DriverVersion]:
    """``/proc/devices``, nodes as ``ls -l`` lists them, the module's parameters and its version."""
    majors = {name: int(major) for major, name in re.findall(r"^ *(\d+) (nvidia\S*)$", text, re.MULTILINE)}
    if majors:
        yield Majors(majors=majors)
    nodes = {
        found[4]: (int(found[2]), int(found[3]), found[1]) for found in map(_NODE.match, text.splitlines()) if found
    }
    if nodes:
        yield Nodes(nodes=nodes)
    if re.search(r"^ResmanDebugLevel: \d", text, re.MULTILINE):
        values = re.findall(r"^([A-Z]\w+): (\"[^\"\n]*\"|\d+)$", text, re.MULTILINE)
        yield Params(values={name: value.strip('"') for name, value in values})
    version = re.search(r"^NVRM version: NVIDIA UNIX (.*?)Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    if version:
        yield DriverVersion(version=version[2], flavour="open" if "Open" in version[1] else "proprietary")
