# SPDX-License-Identifier: Apache-2.0
"""All that a check can find: code, the check that shows it, verdict, title, why and fix. A table, not code.

``why`` and ``fix`` hold for the usual case; a rule that knows more says more. What a code of the *driver* means stands
in :mod:`rackwell.probe.errors`. Commands name the container ``VMID`` and run on the Proxmox host unless they say so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rackwell.probe import codes_links, codes_start

PASS, DEGRADED, FAIL, NOT_MEASURED = "pass", "degraded", "fail", "not-measured"
#: from harmless to bad; what was not measured lowers nothing
RANK = {PASS: 0, NOT_MEASURED: 0, DEGRADED: 1, FAIL: 2}

#: the checks in the order of the report, with their titles
CHECKS: dict[str, str] = {
    "nodes": "device nodes",
    "driver": "kernel module and versions",
    "gpus": "number and identity of GPUs",
    "cuda": "CUDA start, memory, kernel",
    "p2p.access": "P2P capability",
    "p2p.data": "P2P data verified",
    "p2p.bandwidth": "P2P bandwidth",
    "p2p.latency": "P2P latency",
    "p2p.concurrent": "P2P under concurrency",
    "links": "PCIe and NVLink links",
    "health": "ECC, recovery, NVML",
    "collectives": "NCCL allreduce",
    "host": "host: IOMMU, ACS, HMM, Xid",
    "baseline": "baseline of this host",
}


@dataclasses.dataclass(frozen=True)
class Code:
    """One kind of finding; ``verdict`` is what it makes of its check."""

    code: str
    check: str
    verdict: str
    title: str
    why: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


#: by code, in the order of the checks
CODES: dict[str, Code] = {row[0]: Code(*row) for row in (*codes_start.ROWS, *codes_links.ROWS)}


def worst(verdicts: Any, default: str = PASS) -> str:
    """The worst of some verdicts; ``default`` of none, or of those that were not measured only."""
    found = [verdict for verdict in verdicts if RANK[verdict] > 0]
    return max(found, key=RANK.__getitem__) if found else default
