# SPDX-License-Identifier: Apache-2.0
"""A Proxmox VE host's platform as it is: boot options, IOMMU, processors, ACS and its unit, links."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import (
    gpu_host_facts,
    pve_platform_boot,
    pve_platform_cpus,
    pve_platform_pci,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.gpu_host_read import read_parts
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_boot import Boot
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_platform_cpus import Processors

UNIT = "rackwell-gpu-acs.service"
# not in the other helper's directory, which a task of its own makes: check mode would tell of it twice
UNIT_FILE, HELPER = "/etc/systemd/system/" + UNIT, "/usr/local/lib/rackwell-gpu-acs"
#: seconds for what a dead device may keep from answering
READ_S = 20.0
_PROPERTIES = ("LoadState", "UnitFileState", "ActiveState", "Result", "ActiveEnterTimestamp")


@dataclasses.dataclass(frozen=True)
class Unit:
    """The unit that clears ACS. ``helper``, ``text``: what its files say, None without one. The rest is systemd's."""

    helper: Optional[str]
    text: Optional[str]
    enabled: bool = False
    active: bool = False
    result: str = ""
    since: str = ""


@dataclasses.dataclass(frozen=True)
class Platform:
    """The host.

    Attributes:
        mode: off, pt, translated or unknown; evidence: what that is read from.
        acs: control word by port above the GPUs; None when they could not be read, with the reason in ``unread``.
        links: see :func:`pve_platform_pci.links`.
    """

    boot: Boot
    mode: str
    evidence: str
    processors: Processors
    unit: Unit
    acs: Optional[dict[str, int]]
    links: list[dict[str, Any]]
    unread: dict[str, str]

    @property
    def redirecting(self) -> dict[str, int]:
        """Ports whose ACS is on, with their control words."""
        return {bdf: ctl for bdf, ctl in (self.acs or {}).items() if ctl & pve_platform_pci.REDIRECTS}

    def as_dict(self) -> dict[str, Any]:
        """For a result."""
        boot = self.boot
        return {
            "loader": boot.loader,
            "boot_files": list(boot.files),
            "cmdline": list(boot.running),
            "cmdline_next": list(boot.declared) if boot.declared is not None else None,
            "iommu": {"mode": self.mode, "evidence": self.evidence},
            "processors": dataclasses.asdict(self.processors),
            "acs": self.acs,
            "acs_unit": {"there": self.unit.text is not None, "enabled": self.unit.enabled, "active": self.unit.active},
            "links": self.links,
            "unread": self.unread,
        }


def look(host: Host) -> Platform:
    """Read everything. Parts of the PCI tree that do not answer are left out, and named."""
    parts = [
        ("iommu", lambda: gpu_host_facts.iommu(host.root)),
        ("pci", lambda: pve_platform_pci.tree(host.root)),
    ]
    values, unread = read_parts(parts, READ_S)
    iommu = values.get("iommu") or {"mode": "unknown", "evidence": unread.get("iommu", "")}
    seen = values.get("pci")
    return Platform(
        boot=pve_platform_boot.look(host),
        mode=str(iommu["mode"]),
        evidence=str(iommu["evidence"]),
        processors=pve_platform_cpus.look(host),
        unit=_unit(host),
        acs=None if seen is None else pve_platform_pci.controls(seen),
        links=[] if seen is None else pve_platform_pci.links(host, seen),
        unread=unread,
    )


def acs_now(host: Host) -> Optional[dict[str, int]]:
    """The ports' control words once more."""
    values, _ = read_parts([("pci", lambda: pve_platform_pci.tree(host.root))], READ_S)
    seen = values.get("pci")
    return None if seen is None else pve_platform_pci.controls(seen)


def _unit(host: Host) -> Unit:
    helper, text = _text(host, HELPER), _text(host, UNIT_FILE)
    if text is None:
        return Unit(helper, None)
    done = host.run(["systemctl", "show", UNIT, *("--property=" + name for name in _PROPERTIES)], 20.0)
    told = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    return Unit(
        helper,
        text,
        told.get("UnitFileState") == "enabled",
        told.get("ActiveState") == "active",
        told.get("Result", ""),
        told.get("ActiveEnterTimestamp", ""),
    )


def _text(host: Host, path: str) -> Optional[str]:
    return host.read(path) if os.path.exists(host.at(path)) else None
