# SPDX-License-Identifier: Apache-2.0
"""The way from the root ports to the GPUs: ACS on its ports, and whether each link is what both its ends can.

Bits: PCI Express base specification, 7.5.3.18 (Link Status), 7.5.3.19 (Link Control 2), 7.7.11.3 (ACS Control).
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from typing import Any, Callable, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_host_pci as pci
from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host

#: of the ACS control word: what sends a peer's request up to the root, or has it refused
REDIRECTS = 0x01 | 0x04 | 0x08 | 0x20
_ACS_NAMES = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_PORTS = ("root", "downstream")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_EXPRESS, _LINK_CONTROL_2, _STAYS = 0x10, 0x30, 0x20
#: per cent from which a GPU is at work, and its link has to be up
BUSY = 5
#: how often a busy GPU's slow link is looked at, and seconds between: a link comes up in milliseconds
LOOKS, PAUSE_S = 4, 0.4
_FIELDS = ("pci.bus_id", "utilization.gpu", "pcie.link.gen.current", "pcie.link.width.current")


def tree(root: str) -> dict[str, Any]:
    """``paths`` by GPU, and ``ports``: each device on them, with the port's own ``target`` and ``stays``."""
    paths = {bus_id: pci.path_of(root, bus_id) for bus_id in pci.gpus(root)}
    ports = pci.ports(root, list(paths.values()))
    for port in ports:
        port["target"], port["stays"] = _link_control(os.path.join(root, pci.DEVICES, port["bdf"], "config"))
    return {"paths": paths, "ports": ports}


def controls(seen: dict[str, Any]) -> dict[str, int]:
    """The ACS control word of each root and downstream port on the GPUs' ways that has one."""
    return {p["bdf"]: int(p["acs"]["ctl"]) for p in seen["ports"] if p["acs"] and p["kind"] in _PORTS}


def redirecting(seen: dict[str, Any]) -> dict[str, int]:
    """Those of them that redirect."""
    return {bdf: control for bdf, control in controls(seen).items() if control & REDIRECTS}


def flags(control: int) -> str:
    """As ``lspci -vvv`` writes a control word."""
    return " ".join(name + ("+" if control >> bit & 1 else "-") for bit, name in enumerate(_ACS_NAMES))


def _link_control(path: str) -> tuple[Optional[int], bool]:
    """Target Link Speed as a generation, and whether Hardware Autonomous Speed Disable is set."""
    try:
        with open(path, "rb") as stream:
            config = stream.read(256)
    except OSError:
        return None, False
    if len(config) < 256 or not config[6] & 0x10:
        return None, False
    offset, seen = config[0x34] & 0xFC, set()
    while 0x40 <= offset <= 256 - 0x34 and offset not in seen:
        seen.add(offset)
        if config[offset] == _EXPRESS:
            (control,) = struct.unpack_from("<H", config, offset + _LINK_CONTROL_2)
            return (control & 0xF) or None, bool(control & _STAYS)
        offset = config[offset + 1] & 0xFC
    return None, False


def links(host: Host, seen: dict[str, Any], pause: Callable[[float], None] = time.sleep) -> list[dict[str, Any]]:
    """Each link below a root port, once: ``generation`` and ``width`` now, and the most that both ends can.

    ``busy``: whether a GPU behind it is at work, None when that is not known. An idle GPU's link is slow by itself, so
    its generation tells something only when it is busy; then it is NVML's, looked at more than once.
    """
    devices = {port["bdf"]: port for port in seen["ports"]}
    behind: dict[tuple[str, str], list[str]] = {}
    for bus_id, path in seen["paths"].items():
        for above, below in itertools.pairwise(path):
            # inside a switch there is no link
            if (devices[above]["kind"], devices[below]["kind"]) != ("upstream", "downstream"):
                behind.setdefault((above, below), []).append(bus_id)
    found = [_link(devices[above], devices[below], gpus) for (above, below), gpus in behind.items()]
    load = _load(host)
    for _ in range(LOOKS):
        _busy(found, load)
        if not any(link["busy"] and _slow(link) for link in found):
            break
        pause(PAUSE_S)
        load = _best(load, _load(host))
    return found


def _link(above: dict[str, Any], below: dict[str, Any], gpus: list[str]) -> dict[str, Any]:
    speeds = [_GENERATIONS.get(port["max_speed_gt_s"]) for port in (above, below)]
    widths = [port["max_width"] for port in (above, below)]
    return {
        "above": above["bdf"],
        "below": below["bdf"],
        "gpu": below["kind"] == "gpu",
        "gpus": gpus,
        "generation": _GENERATIONS.get(below["speed_gt_s"]),
        "width": below["width"],
        "most_generation": min(filter(None, speeds), default=None),
        "most_width": min(filter(None, widths), default=None),
        # the port above decides which speeds are offered
        "target": above["target"],
        "stays": bool(above["stays"] or below["stays"]),
        "busy": None,
    }


def _slow(link: dict[str, Any]) -> bool:
    return bool(link["generation"] and link["most_generation"] and link["generation"] < link["most_generation"])


def _busy(found: list[dict[str, Any]], load: dict[str, dict[str, int]]) -> None:
    """What NVML tells of each link: the kernel's files tell it too, as of the moment at which they are read."""
    for link in found:
        told = [load[bus_id] for bus_id in link["gpus"] if bus_id in load]
        link["busy"] = any(one["busy"] >= BUSY for one in told) if told else None
        if link["gpu"] and told and told[0]["generation"]:
            link["generation"] = told[0]["generation"]


def _best(before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The faster of two looks: one that caught a link between two copies is no fault; idle at either is idle."""
    return {
        bus_id: {
            "busy": min(before[bus_id]["busy"], told["busy"]),
            "generation": max(before[bus_id]["generation"], told["generation"]),
        }
        for bus_id, told in now.items()
        if bus_id in before
    }


def _load(host: Host) -> dict[str, dict[str, int]]:
    """Work and generation of each GPU by bus id, as nvidia-smi tells them; empty when it does not answer."""
    try:
        done = host.run(["nvidia-smi", "--query-gpu=" + ",".join(_FIELDS), "--format=csv,noheader,nounits"], 20.0)
    except DeadlineError:
        return {}
    found = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(_FIELDS) and parts[1].isdigit() and parts[2].isdigit():
            # nvidia-smi writes the domain with eight digits
            domain, _, rest = parts[0].lower().partition(":")
            found["%s:%s" % (domain[-4:], rest)] = {"busy": int(parts[1]), "generation": int(parts[2])}
    return found
