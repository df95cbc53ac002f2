# SPDX-License-Identifier: Apache-2.0
"""The report ``rackwell.gpu/1``, put together from what was measured and judged. Text for people: :mod:`.render`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rackwell import __version__
from rackwell.probe.codes import PASS, worst
from rackwell.probe.findings import Finding, problems_of
from rackwell.probe.judge.context import Context

SCHEMA = "rackwell.gpu/1"


def build(
    context: Context, checks: Sequence[Mapping[str, Any]], findings: Sequence[Finding], started: float, seconds: float
) -> dict[str, Any]:
    """The report as plain data, always in the same order.

    Args:
        started: seconds since the epoch; seconds: how long the check took.
    """
    seen = context.surroundings
    return {
        "schema": SCHEMA,
        "mode": context.mode,
        "beside_server": context.beside_server,
        "verdict": worst((finding.verdict for finding in findings), PASS),
        "host": context.host,
        "boot_id": seen.machine.get("boot_id"),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(seconds, 2),
        "user": os.getuid(),
        "probe_version": __version__,
        "driver_version": seen.kernel_module_version or context.nvml.get("driver_version"),
        "user_space_version": context.user_space,
        "cuda_version": context.cuda.get("cuda_version"),
        "gpus": gpus(context),
        "topology": context.topology.as_dict(),
        "checks": [dict(check) for check in checks],
        "findings": [finding.as_dict() for finding in findings],
        "measurements": dict(context.measurements),
        "surroundings": seen.as_dict(),
        "host_facts": dict(context.host_facts) if context.host_facts is not None else None,
        "baseline": context.baseline.as_dict(),
        "problems": problems_of(findings),
    }


def gpus(context: Context) -> list[dict[str, Any]]:
    """Identity and place of each GPU, by index."""
    devices = {device["index"]: device for device in context.cuda.get("devices") or ()}
    minors = {gpu.bus_id: gpu.minor for gpu in context.surroundings.gpus}
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "bus_id": gpu.bus_id,
            "name": devices.get(gpu.index, {}).get("name"),
            "compute_capability": devices.get(gpu.index, {}).get("compute_capability"),
            "memory_total": devices.get(gpu.index, {}).get("memory_total"),
            "minor": minors.get(gpu.bus_id),
            "numa": gpu.numa,
            "root": gpu.root,
            "switch": gpu.switch,
            "path": list(gpu.path),
        }
        for gpu in context.topology.gpus
    ]


def host() -> str:
    return socket.gethostname()


def problem(code: str, what: str, where: str, why: str, fix: str) -> dict[str, str]:
    """One problem, in the shape that rackwell uses everywhere."""
    return {"code": code, "what": what, "where": where, "why": why, "fix": fix}
