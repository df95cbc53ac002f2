# SPDX-License-Identifier: Apache-2.0
"""All that the rules look at: what was measured, of which machine, and what is expected of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rackwell.probe.baseline import Baseline
from rackwell.probe.expectation import Bottlenecks, Expectation, Floors
from rackwell.probe.surroundings import Surroundings
from rackwell.probe.topology import NVLINK, Pair, Topology


def figures(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[Pair, str, str, int], float]:
    """Of ``measurements.p2p.bandwidth``, GB/s by (pair, engine, op, ways)."""
    return {
        ((int(e["src"]), int(e["dst"])), e["engine"], e["op"], int(e["ways"])): float(e["gb_per_s"])
        for e in entries
        if e.get("gb_per_s")
    }


def alone(entries: Iterable[Mapping[str, Any]]) -> dict[Pair, float]:
    """What each pair reached alone, one way: the best of its figures by copy engine, else by kernel."""
    best: dict[Pair, float] = {}
    found = figures(entries)
    engine = "copy" if any(key[1] == "copy" for key in found) else "kernel"
    for (pair, by, _, ways), rate in found.items():
        if by == engine and ways == 1:
            best[pair] = max(best.get(pair, 0.0), rate)
    return best


@dataclasses.dataclass
class Context:
    """One run.

    Attributes:
        topology: the GPUs that CUDA found, with CUDA's indices; tree: all of NVIDIA's GPUs on PCI.
        measurements: as in the report; parts that were not measured are absent.
        repetition: measurements of what looked slow, made once more: ``p2p``, ``concurrent``, ``collectives``.
        baseline: after the fit test. declared: how many GPUs there must be; None = not said.
        skipped: check id -> why its measurement was not made.
        host: name of the machine, for ``where``.
    """

    surroundings: Surroundings
    topology: Topology = dataclasses.field(default_factory=Topology)
    tree: Topology = dataclasses.field(default_factory=Topology)
    measurements: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    repetition: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expectation: Expectation = dataclasses.field(default_factory=Expectation)
    baseline: Baseline = dataclasses.field(default_factory=Baseline)
    host_facts: Mapping[str, Any] | None = None
    declared: int | None = None
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mode: str = "full"
    beside_server: bool = False
    host: str = "this machine"

    @functools.cached_property
    def cuda(self) -> Mapping[str, Any]:
        return self.measurements.get("cuda") or {}

    @functools.cached_property
    def p2p(self) -> Mapping[str, Any]:
        return self.measurements.get("p2p") or {}

    @functools.cached_property
    def nvml(self) -> Mapping[str, Any]:
        return self.measurements.get("nvml") or {}

    @functools.cached_property
    def links(self) -> Sequence[Mapping[str, Any]]:
        return self.measurements.get("links") or ()

    @functools.cached_property
    def health(self) -> Sequence[Mapping[str, Any]]:
        return self.measurements.get("health") or ()

    @functools.cached_property
    def collectives(self) -> Mapping[str, Any]:
        return self.measurements.get("collectives") or {}

    @functools.cached_property
    def floors(self) -> Floors:
        return Floors(self.topology, self.links, self.expectation)

    @functools.cached_property
    def bottlenecks(self) -> Bottlenecks:
        return Bottlenecks(self.topology, self.floors, alone(self.p2p.get("bandwidth") or ()))

    def forget(self) -> None:
        """What was looked up in the measurements, after these have changed."""
        for name, member in vars(type(self)).items():
            if isinstance(member, functools.cached_property):
                self.__dict__.pop(name, None)

    @functools.cached_property
    def user_space(self) -> str | None:
        """Version of the driver's libraries that are used, or of those that lie here."""
        told = self.cuda.get("user_space_version") or self.nvml.get("user_space_version")
        return told or self.surroundings.library_version

    @functools.cached_property
    def through_pcie(self) -> bool:
        """Whether any pair has no NVLink: then IOMMU and ACS matter."""
        return any(self.topology.link_class(*pair) != NVLINK for pair in self.topology.pairs())

    @functools.cached_property
    def hmm(self) -> bool | None:
        told = (self.host_facts or {}).get("hmm")
        return self.surroundings.hmm if told is None else bool(told)

    def name(self, index: int) -> str:
        """``GPU 0 GPU-… at 0000:06:00.0``."""
        for gpu in self.topology.gpus:
            if gpu.index == index:
                return " ".join(filter(None, (f"GPU {index}", gpu.uuid, gpu.bus_id and f"at {gpu.bus_id}")))
        return f"GPU {index}"

    def names(self, indices: Sequence[int], most: int = 3) -> str:
        shown = "; ".join(self.name(index) for index in indices[:most])
        return shown + (f"; and {len(indices) - most} more" if len(indices) > most else "")

    def pair(self, pair: Pair) -> str:
        return f"{self.name(pair[0])} -> {self.name(pair[1])}"

    def pairs(self, pairs: Sequence[Pair], most: int = 2) -> str:
        shown = "; ".join(self.pair(pair) for pair in pairs[:most])
        return shown + (f"; and {len(pairs) - most} more" if len(pairs) > most else "")

    def uuid(self, index: int) -> str:
        return next((gpu.uuid or gpu.bus_id for gpu in self.topology.gpus if gpu.index == index), str(index))

    def bus_id(self, index: int) -> str:
        return next((gpu.bus_id for gpu in self.topology.gpus if gpu.index == index), "BUS_ID")

    def index_of(self, uuid: str) -> int | None:
        return next((gpu.index for gpu in self.topology.gpus if uuid in (gpu.uuid, gpu.bus_id)), None)
