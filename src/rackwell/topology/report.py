# SPDX-License-Identifier: Apache-2.0
"""``rackwell.gpu/1``: the report of one validation. The probe writes it; this reads it.

Units are in the names. Keys that a later version adds are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pydantic

from rackwell.errors import Problem
from rackwell.topology.measured import Measurements
from rackwell.topology.model import GRAVITY, Pair, Part, Verdict


class Gpu(Part):
    """One GPU. index: CUDA's order by bus id. path: every port from the root to the GPU itself."""

    index: int
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    compute_capability: str | None = None
    memory_total: int | None = None
    minor: int | None = None
    numa: int | None = None
    root: str | None = None
    switch: str | None = None
    path: list[str] = pydantic.Field(default_factory=list)

    @pydantic.field_validator("compute_capability", mode="before")
    @classmethod
    def _dotted(cls, value: Any) -> Any:
        return ".".join(map(str, value)) if isinstance(value, list | tuple) else value


class Switch(Part):
    """A PCIe switch by its upstream port, and the GPUs below it."""

    switch: str
    gpus: list[int] = pydantic.Field(default_factory=list)


class Root(Part):
    """A root port: switches below it, and GPUs that hang on it directly. root None: none is seen, as in a virtual
    machine.
    """

    root: str | None = None
    switches: list[Switch] = pydantic.Field(default_factory=list)
    gpus: list[int] = pydantic.Field(default_factory=list)


class Socket(Part):
    """A NUMA node. numa None: the machine does not say."""

    numa: int | None = None
    roots: list[Root] = pydantic.Field(default_factory=list)


class Topology(Part):
    """Who is connected to whom. classes, nvlink: N x N, from row to column."""

    sockets: list[Socket] = pydantic.Field(default_factory=list)
    classes: list[list[str | None]] = pydantic.Field(default_factory=list)
    nvlink: list[list[int | None]] = pydantic.Field(default_factory=list)

    def link_class(self, pair: Pair) -> str:
        """The link class of an ordered pair; ``unknown`` where nothing is known."""
        try:
            return self.classes[pair[0]][pair[1]] or "unknown"
        except IndexError:
            return "unknown"


class Check(Part):
    """One row of the verdict: a number against what was expected of it."""

    id: str
    title: str = ""
    verdict: Verdict
    code: str = "ok"
    summary: str = ""
    measured: float | str | None = None
    expected: float | str | None = None
    unit: str | None = None
    basis: str | None = None


class Finding(Part):
    """One thing that is wrong, with what follows from it."""

    code: str
    check: str = ""
    verdict: Verdict = "fail"
    what: str = ""
    where: str | None = None
    measured: float | str | None = None
    expected: float | str | None = None
    unit: str | None = None
    basis: str | None = None
    why: str | None = None
    fix: str | None = None
    gpus: list[int] = pydantic.Field(default_factory=list)
    pairs: list[Pair] = pydantic.Field(default_factory=list)
    consequences: list[Finding] = pydantic.Field(default_factory=list)

    @property
    def problem(self) -> Problem:
        """The finding in the shape of every error."""
        return Problem(self.code, self.what, self.where or "", self.why or "", self.fix or "")

    def tree(self) -> Iterator[Finding]:
        """The finding and all that follows from it."""
        yield self
        for consequence in self.consequences:
            yield from consequence.tree()


class Difference(Part):
    """A fact that is no longer what the baseline was recorded with."""

    fact: str
    then: Any = None
    now: Any = None


class BaselineUse(Part):
    """Whether a baseline was held against the figures, and which."""

    state: str = "absent"
    path: str | None = None
    digest: str | None = None
    recorded: str | None = None
    differences: list[Difference] = pydantic.Field(default_factory=list)


class GpuReport(Part):
    """The whole report."""

    schema_: Literal["rackwell.gpu/1"] = pydantic.Field(default="rackwell.gpu/1", alias="schema")
    mode: str = "full"
    beside_server: bool = False
    verdict: Verdict
    host: str = ""
    boot_id: str | None = None
    started: str = ""
    seconds: float | None = None
    user: str | int | None = None
    probe_version: str | None = None
    driver_version: str | None = None
    user_space_version: str | None = None
    cuda_version: str | int | None = None
    gpus: list[Gpu] = pydantic.Field(default_factory=list)
    topology: Topology = Topology()
    checks: list[Check] = pydantic.Field(default_factory=list)
    findings: list[Finding] = pydantic.Field(default_factory=list)
    measurements: Measurements = Measurements()
    surroundings: dict[str, Any] = pydantic.Field(default_factory=dict)
    host_facts: dict[str, Any] | None = None
    baseline: BaselineUse | None = None
    problems: list[dict[str, Any]] = pydantic.Field(default_factory=list)

    @pydantic.field_validator("topology", "measurements", "surroundings", mode="before")
    @classmethod
    def _none_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @property
    def count(self) -> int:
        """How many GPUs there are, or the figures speak of."""
        return max([len(self.gpus), len(self.topology.classes), *(gpu.index + 1 for gpu in self.gpus)])

    def all_findings(self) -> Iterator[Finding]:
        """Every finding, consequences included."""
        for finding in self.findings:
            yield from finding.tree()

    def flagged(self, *, latency: bool = False) -> dict[Pair, Finding]:
        """Pairs that a finding names, with the gravest: those that say something of a pair's bandwidth, or latency."""
        other = {"p2p.concurrent", "p2p.bandwidth" if latency else "p2p.latency"}
        found: dict[Pair, Finding] = {}
        for finding in self.all_findings():
            if finding.check in other or finding.verdict not in {"fail", "degraded"}:
                continue
            for pair in finding.pairs:
                if pair not in found or GRAVITY[finding.verdict] > GRAVITY[found[pair].verdict]:
                    found[pair] = finding
        return found

    def name(self, index: int) -> str:
        """A GPU in a line of text: its index and bus id."""
        bus = next((gpu.bus_id for gpu in self.gpus if gpu.index == index), "")
        return f"GPU {index} ({short(bus)})" if bus else f"GPU {index}"


def short(bdf: str) -> str:
    """A bus id without the domain where that is the first one."""
    return bdf.removeprefix("0000:")
