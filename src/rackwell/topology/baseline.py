# SPDX-License-Identifier: Apache-2.0
"""``rackwell.gpu_baseline/1``: what one machine's own figures were, and with what they were recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from rackwell.topology.model import Part
from rackwell.topology.report import Difference, Gpu, GpuReport


class Value(Part):
    """One figure over all runs: mean, standard deviation, number of runs."""

    mean: float
    sd: float = 0.0
    n: int = 1


class BaselineGpu(Part):
    """A GPU of the machine."""

    uuid: str
    bus_id: str = ""
    name: str = ""


class Machine(Part):
    """The facts that must still hold for the figures to mean anything. boot_id is for information only."""

    gpus: list[BaselineGpu] = pydantic.Field(default_factory=list)
    driver_version: str | None = None
    kernel: str | None = None
    board: str | None = None
    bios_version: str | None = None
    product: str | None = None
    boot_id: str | None = None
    link_max: dict[str, list[int | None]] = pydantic.Field(default_factory=dict)
    probe_version: str | None = None


class Baseline(Part):
    """The whole baseline. values: key -> figure; the keys are those that `rackwell.topology.figures` makes."""

    schema_: Literal["rackwell.gpu_baseline/1"] = pydantic.Field(default="rackwell.gpu_baseline/1", alias="schema")
    recorded: str = ""
    runs: int = 0
    machine: Machine
    values: dict[str, Value] = pydantic.Field(default_factory=dict)
    pooled_sd: dict[str, float] = pydantic.Field(default_factory=dict)
    digest: str = ""


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a baseline as JSON, without its own ``digest``, keys sorted and nothing between tokens."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(baseline: Baseline, report: GpuReport) -> list[Difference]:
    """Facts of the baseline that are others in `report`. What either side does not know is not compared."""
    then = baseline.machine
    facts = report.host_facts or {}
    dmi = facts.get("dmi") or {}
    found = _gpus(then.gpus, report.gpus)
    for fact, old, new in (
        ("board", then.board, dmi.get("board")),
        ("product", then.product, dmi.get("product")),
        ("driver_version", then.driver_version, report.driver_version),
        ("kernel", then.kernel, facts.get("kernel") or report.surroundings.get("kernel")),
        ("bios_version", then.bios_version, dmi.get("bios_version")),
    ):
        if old and new and old != new:
            found.append(Difference(fact=fact, then=old, now=new))
    return found


def _gpus(then: list[BaselineGpu], now: list[Gpu]) -> list[Difference]:
    if not then or not now:
        return []
    old, new = {gpu.uuid for gpu in then}, {gpu.uuid for gpu in now}
    if old == new:
        return []
    gone, come = sorted(old - new), sorted(new - old)
    return [Difference(fact="gpus", then=", ".join(gone) or "-", now=", ".join(come) or "-")]
