# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device nodes and drivers' numbers, read anew on the machine itself."""

from __future__ import annotations

from typing import Any

from testinfra.host import Host

from rackwell.acceptance.suite.asking import python, run
from rackwell.acceptance.suite.claims import Claims

_LOOK = """
import glob, json, os, re, stat
majors = {}
for line in open("/proc/devices"):
    if line.startswith("Block"):
        break
    parts = line.split()
    if len(parts) == 2 and parts[0].isdigit():
        majors.setdefault(parts[1], int(parts[0]))
nodes = {}
for path in glob.glob("/dev/nvidia*"):
    told = os.lstat(path)
    if stat.S_ISDIR(told.st_mode):
        continue
    nodes[path] = {"char": stat.S_ISCHR(told.st_mode), "mode": "0%o" % stat.S_IMODE(told.st_mode),
                   "major": os.major(told.st_rdev), "minor": os.minor(told.st_rdev)}
gpus = {}
for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
    text = open(path).read()
    minor = re.search(r"Device Minor:\\s*(\\d+)", text)
    uuid = re.search(r"GPU UUID:\\s*(\\S+)", text)
    gpus[path.split("/")[-2]] = {"minor": int(minor[1]) if minor else None, "uuid": uuid[1] if uuid else ""}
try:
    version = open("/proc/driver/nvidia/version").read()
except OSError:
    version = ""
found = re.search(r"Module\\s(?:for \\S+\\s+)?(?:\\s*)(\\d+\\.\\d+(?:\\.\\d+)?)", version)
print(json.dumps({"majors": majors, "nodes": nodes, "gpus": gpus, "version": found[1] if found else "",
                  "open": "Open Kernel Module" in version}))
"""


def look(host: Host) -> dict[str, Any]:
    """``majors`` by driver, ``nodes`` by path, ``gpus`` by bus id, ``version`` and ``open`` of the loaded module."""
    found: dict[str, Any] = python(host, _LOOK)
    return found


def smi(host: Host, claim: Claims, *fields: str) -> list[list[str]]:
    """What nvidia-smi says, a row a GPU. That it says something is claimed."""
    code, told = run(host, "nvidia-smi --query-gpu=%s --format=csv,noheader", ",".join(fields))
    fix = "user space and kernel module differ, or a GPU fails: rackwell verify and dmesg tell which"
    claim(code == 0, expected="an answer of nvidia-smi", found=told if code else "", fix=fix)
    return [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]


def wrong_nodes(
    nodes: dict[str, Any], majors: dict[str, int], wanted: dict[str, str | None], exact: bool = True
) -> list[str]:
    """What is wrong with nodes: one that is missing, is none, has a number of no driver, or another mode.

    Args:
        wanted: path -> mode, or None for any. exact: whether the mode must be that, and not only allow as much.
    """
    found = []
    for path, mode in wanted.items():
        node = nodes.get(path)
        if node is None:
            found.append(f"{path} is missing")
            continue
        name = path.removeprefix("/dev/")
        driver = "nvidia-uvm" if name.startswith("nvidia-uvm") else "nvidia"
        major = majors.get(driver, majors.get("nvidia-frontend") if driver == "nvidia" else None)
        if not node["char"]:
            found.append(f"{path} is no device node")
        elif major is not None and node["major"] != major:
            found.append(f"{path} has major {node['major']}, the driver {driver} has {major}")
        elif mode is not None and (
            int(node["mode"], 8) != int(mode, 8) if exact else int(mode, 8) & ~int(node["mode"], 8)
        ):
            found.append(f"{path} has mode {node['mode']}, not {mode}")
    return found
