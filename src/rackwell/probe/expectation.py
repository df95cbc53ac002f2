# SPDX-License-Identifier: Apache-2.0
"""Floors: what a link must carry at least, from what it is. Below a floor is a failure, whatever was recorded before.

Bandwidth: a share of what the link's narrowest part carries in theory. Published figures for Gen5 x16 (63 GB/s), RTX
PRO 6000: 53-57 GB/s within a NUMA node (0.84-0.90), 36-51 across sockets (0.57-0.81); H200 over 18 NVLinks of 25 GB/s:
394-396 of 450 (0.88). The shares below leave room for that spread and none for a path through the root port under ACS
(16 GB/s = 0.25), for a lost generation (0.45) or for half the lanes (0.45).

Latency of a remote read: 0.4-1.4 us direct, about 14 us where it is staged through host memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rackwell.probe.topology import (
    CLASSES,
    CROSS_SOCKET,
    LANE_GB_PER_S,
    NVLINK,
    SAME_ROOT_COMPLEX,
    SAME_SWITCH,
    UNKNOWN,
    Pair,
    Topology,
)

#: of what the link carries in theory, one way, by copy engine
SHARES = {NVLINK: 0.70, SAME_SWITCH: 0.70, SAME_ROOT_COMPLEX: 0.70, CROSS_SOCKET: 0.47, UNKNOWN: 0.47}
#: microseconds of a remote read; where the tree does not show the way there may be a hypervisor in it
LATENCY_US = {NVLINK: 3.0, SAME_SWITCH: 3.0, SAME_ROOT_COMPLEX: 3.0, CROSS_SOCKET: 3.0, UNKNOWN: 6.0}
#: kernels copy with smaller requests than the copy engines, and both ways at once share buffers
KERNEL_FACTOR, BOTH_WAYS_FACTOR = 0.8, 0.8
#: GB/s one way of one NVLink, by version (NVML: 1 Pascal, 2 Volta, 3 Ampere, 4 Hopper, 5 Blackwell)
NVLINK_GB_PER_S = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
#: of what the flows' own bottleneck allows: below the first slow, below the second a collapse
CONCURRENT_SLOW, CONCURRENT_COLLAPSE = 0.5, 0.25
#: bus bandwidth of an allreduce, of the slowest pair's copy bandwidth: 22-41 of 51-56 GB/s were published
ALLREDUCE_SHARE = 0.35
#: the allreduce is judged at sizes from here on: below, the time is latency
ALLREDUCE_BYTES = 64 << 20
#: what a link without other knowledge is taken to reach of its theory, for the bottleneck of concurrent flows
TYPICAL = 0.8


class ExpectationError(ValueError):
    """The file of --expect cannot be used."""


@dataclasses.dataclass(frozen=True)
class Expectation:
    """What was declared: floors by class, and how the server will run NCCL."""

    floors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nccl_library: str | None = None


def parse(content: Mapping[str, Any] | None) -> Expectation:
    """From the content of --expect. Raises ExpectationError."""
    content = content or {}
    floors, environment, library = (content.get(key) for key in ("floors", "environment", "nccl_library"))
    floors, environment = ({} if part is None else part for part in (floors, environment))
    if not isinstance(floors, Mapping):
        raise ExpectationError("'floors' must be an object of link classes")
    for name, limits in floors.items():
        if name not in CLASSES:
            raise ExpectationError(f"'floors' names the link class {name!r}; there are {', '.join(CLASSES)}")
        if not isinstance(limits, Mapping):
            raise ExpectationError(f"floors.{name} must be an object with gb_per_s and latency_us")
        for key, value in limits.items():
            if key not in ("gb_per_s", "latency_us"):
                raise ExpectationError(f"floors.{name}.{key}: there are gb_per_s and latency_us")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e6:
                raise ExpectationError(f"floors.{name}.{key} must be a number, not {value!r}")
    if not isinstance(environment, Mapping):
        raise ExpectationError("'environment' must be an object of strings")
    if not isinstance(library, (str, type(None))):
        raise ExpectationError("'nccl_library' must be a path")
    return Expectation(dict(floors), {str(k): str(v) for k, v in environment.items()}, library or None)


@dataclasses.dataclass(frozen=True)
class Floors:
    """The limits of one machine. ``links`` are the measured links (``measurements.links``), may be empty."""

    topology: Topology
    links: Sequence[Mapping[str, Any]] = ()
    expectation: Expectation = dataclasses.field(default_factory=Expectation)

    def theory(self, pair: Pair) -> float | None:
        """GB/s one way that the way between two GPUs could carry; None where nothing is known of it."""
        source, target = pair
        if self.topology.link_class(source, target) == NVLINK:
            return self._nvlink(pair)
        rates = [rate for rate in map(self.pcie, pair) if rate]
        return min(rates) if rates else None

    @functools.cached_property
    def _pcie(self) -> dict[int, float | None]:
        return {gpu.index: self._own(gpu.index) for gpu in self.topology.gpus}

    def pcie(self, index: int) -> float | None:
        """GB/s one way of a GPU's own way to its root port."""
        return self._pcie[index]

    def _own(self, index: int) -> float | None:
        told = self.topology.pcie_gb_per_s(index)
        entry = self._link(index)
        generations = [g for g in (entry.get("gen_gpu_max"), entry.get("gen_host_max")) if g]
        lanes = entry.get("width_max")
        if generations and lanes and min(generations) in LANE_GB_PER_S:
            own = LANE_GB_PER_S[min(generations)] * lanes
            return float(own if told is None else min(own, told))
        return told

    def bandwidth(self, pair: Pair, engine: str = "copy", ways: int = 1) -> float | None:
        """GB/s that a pair must reach; None = no floor, since nothing is known of the link."""
        kind = self.topology.link_class(*pair)
        declared = self.expectation.floors.get(kind, {}).get("gb_per_s")
        theory = self.theory(pair)
        base = declared if declared is not None else (None if theory is None else SHARES[kind] * theory)
        if base is None:
            return None
        return base * (KERNEL_FACTOR if engine == "kernel" else 1.0) * (BOTH_WAYS_FACTOR if ways == 2 else 1.0)

    def latency(self, pair: Pair) -> float:
        """Microseconds that a remote read may take."""
        kind = self.topology.link_class(*pair)
        return float(self.expectation.floors.get(kind, {}).get("latency_us", LATENCY_US[kind]))

    def _nvlink(self, pair: Pair) -> float | None:
        entry = self._link(pair[0]).get("nvlink") or {}
        count = self.topology.nvlink_count(*pair)
        active, total = entry.get("active"), entry.get("gb_per_s_one_way")
        if active and total:
            return float(total * min(1.0, count / active))
        version = entry.get("version")
        rate = NVLINK_GB_PER_S.get(int(version or 0))
        return None if rate is None else count * rate

    def _link(self, index: int) -> Mapping[str, Any]:
        return next((entry for entry in self.links if entry.get("gpu") == index), {})


@dataclasses.dataclass(frozen=True)
class Bottlenecks:
    """What flows that run at once may reach, from what each pair reached alone.

    ``capacity`` is GB/s of pairs that were timed alone. A GPU's link carries what the best of its pairs reached, and so
    does the link above a switch; the connection between sockets is not known and left out.
    """

    topology: Topology
    floors: Floors
    capacity: Mapping[Pair, float]

    def allows(self, flows: Sequence[Pair]) -> float | None:
        """GB/s of all flows together when they share their links equally: the most loaded part decides.

        None where nothing is known of the links.
        """
        load: dict[tuple[str, object], int] = {}
        for pair in flows:
            for part in self._parts(pair):
                load[part] = load.get(part, 0) + 1
        rates = [self._best[part] / count for part, count in load.items() if part in self._best]
        rates += [rate for pair in flows if (rate := self._alone(pair)) is not None]
        return len(flows) * min(rates) if rates else None

    @functools.cached_property
    def _best(self) -> dict[tuple[str, object], float]:
        best: dict[tuple[str, object], float] = {}
        for pair in self.topology.pairs():
            rate = self._alone(pair)
            if rate is not None:
                for part in self._parts(pair):
                    best[part] = max(best.get(part, 0.0), rate)
        return best

    def _alone(self, pair: Pair) -> float | None:
        if pair in self.capacity:
            return self.capacity[pair]
        theory = self.floors.theory(pair)
        return None if theory is None else TYPICAL * theory

    def _parts(self, pair: Pair) -> list[tuple[str, object]]:
        """What a flow goes through: the GPUs' links, and those above the switches that it leaves and enters."""
        source, target = pair
        if self.topology.link_class(source, target) == NVLINK:
            return [("nvlink out", source), ("nvlink in", target)]
        ups, downs = self.topology.gpu(source).switches, self.topology.gpu(target).switches
        parts: list[tuple[str, object]] = [("out", source), ("in", target)]
        parts += [("up", switch) for switch in ups if switch not in downs]
        parts += [("down", switch) for switch in downs if switch not in ups]
        return parts
