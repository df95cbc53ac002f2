# SPDX-License-Identifier: Apache-2.0
"""``rackwell.gpu_baseline/1``: what one machine's own figures were, and with what they were recorded."""

from __future__ import annotations

from typing import Literal

import pydantic

from rackwell.topology.model import Part


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
    """The whole baseline. values: key -> figure; `rackwell.probe.regression` says which."""

    schema_: Literal["rackwell.gpu_baseline/1"] = pydantic.Field(default="rackwell.gpu_baseline/1", alias="schema")
    recorded: str = ""
    runs: int = 0
    machine: Machine
    values: dict[str, Value] = pydantic.Field(default_factory=dict)
    pooled_sd: dict[str, float] = pydantic.Field(default_factory=dict)
    digest: str = ""
