# SPDX-License-Identifier: Apache-2.0
"""The Proxmox host: IOMMU, ACS, HMM, registry keys, Xids; from gpu_host where it ran, else as far as seen from here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.probe.findings import Finding, listed, make
from rackwell.probe.judge.context import Context
from rackwell.probe.topology import SAME_SWITCH

#: of the ACS control word: request redirect, completion redirect, egress control (PCIe base specification 7.7.11.3)
ACS_REDIRECT = 0x4 | 0x8 | 0x20
#: Xids that a program makes by itself: its own faults, its end, a limit that it set
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def iommu(context: Context) -> Iterator[Finding]:
    told = (context.host_facts or {}).get("iommu") or {}
    mode = told.get("mode") if told.get("mode") not in (None, "unknown") else context.surroundings.iommu
    if mode == "translated" and context.through_pcie:
        evidence = told.get("evidence")
        what = "the IOMMU translates what GPUs send to each other" + (f" ({evidence})" if evidence else "")
        yield make("iommu-translated", what, _host(context))


def acs(context: Context) -> Iterator[Finding]:
    """Ports on the way to the GPUs with redirection on; GPUs behind them."""
    on = [(bdf, ctl) for bdf, ctl in acs_controls(context).items() if ctl & ACS_REDIRECT]
    if on and context.through_pcie:
        ports = sorted(bdf for bdf, _ in on)
        gpus = [gpu.index for gpu in context.topology.gpus if set(gpu.path) & set(ports)]
        what = f"ACS redirects at {listed([f'{bdf} (ACSCtl {ctl:#06x})' for bdf, ctl in sorted(on)])}"
        command = "; ".join(f"setpci -s {bdf} ECAP_ACS+0x6.w=0000" for bdf in ports[:4])
        fix = f"on the Proxmox host `{command}`" + (" and the others likewise" if len(ports) > 4 else "")
        fix += "; at each boot before guests start (rackwell: pve_host)"
        yield make("acs-on", what, ", ".join(ports[:8]), fix=fix, gpus=gpus)


def acs_controls(context: Context) -> dict[str, int]:
    """ACSCtl of the ports on the GPUs' paths, where somebody may read it."""
    on_path = {bdf for gpu in context.topology.gpus for bdf in gpu.path}
    found = {bdf: port.acs["ctl"] for bdf, port in context.topology.ports.items() if port.acs}
    for port in (context.host_facts or {}).get("ports") or ():
        if port.get("acs") and (port["bdf"] in on_path or not on_path):
            found[port["bdf"]] = int(port["acs"]["ctl"])
    return {bdf: ctl for bdf, ctl in found.items() if bdf in on_path or not on_path}


def hmm(context: Context) -> Iterator[Finding]:
    """On though CUDA starts: said for P2P's sake."""
    if context.hmm:
        yield make("hmm-enabled", "HMM is on in nvidia_uvm (uvm_disable_hmm is N)", _host(context))


def registry_keys(context: Context) -> Iterator[Finding]:
    """Only where the symptom is there: kernels wait for remote memory between GPUs of different root ports."""
    params = ((context.host_facts or {}).get("driver") or {}).get("params")
    if not isinstance(params, Mapping) or "ForceP2P" in str(params.get("RegistryDwords") or ""):
        return
    slow = [
        (entry["src"], entry["dst"])
        for entry in context.p2p.get("latency") or ()
        if entry.get("kind") == "remote-read" and (entry.get("us") or 0) > context.floors.latency(_pair(entry))
    ]
    direct = [pair for pair in slow if context.topology.link_class(*pair) != SAME_SWITCH]
    if direct and len(direct) == len(slow) and context.through_pcie:
        what = "RegistryDwords has no ForceP2P, and kernels read remote memory through a detour"
        yield make("registry-keys", what, _host(context), pairs=direct)


def xids(context: Context) -> Iterator[Finding]:
    found: dict[str, set[int]] = {}
    lines = (context.host_facts or {}).get("dmesg") or ()
    for line in lines:
        match = _XID.search(line)
        if match and int(match.group(2)) not in _OF_PROGRAMS:
            found.setdefault(match.group(1).lower(), set()).add(int(match.group(2)))
    if found:
        told = [f"Xid {', '.join(map(str, sorted(numbers)))} of {bus}" for bus, numbers in sorted(found.items())]
        gpus = [gpu.index for gpu in context.topology.gpus if any(gpu.bus_id.startswith(bus) for bus in found)]
        last = [line for line in lines if _XID.search(line)][-1].strip()
        yield make("xid-since-boot", listed(told), _host(context), why=f"the kernel log says: {last[:200]}", gpus=gpus)


def _host(context: Context) -> str:
    return str((context.host_facts or {}).get("host") or f"the host of {context.host}")


def _pair(entry: Mapping[str, Any]) -> tuple[int, int]:
    return (int(entry["src"]), int(entry["dst"]))
