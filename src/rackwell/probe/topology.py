# SPDX-License-Identifier: Apache-2.0
"""Where the GPUs sit: sockets, root ports, switches, and what lies between two of them.

Read from the PCI tree (:mod:`.sysfs`), not from nvidia-smi's labels, which do not show switches. GPUs are known by bus
id and UUID; their index is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID; minor numbers are not their order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

NVLINK, SAME_SWITCH, SAME_ROOT_COMPLEX = "nvlink", "same-switch", "same-root-complex"
CROSS_SOCKET, UNKNOWN = "cross-socket", "unknown"
CLASSES = (NVLINK, SAME_SWITCH, SAME_ROOT_COMPLEX, CROSS_SOCKET, UNKNOWN)

#: transfer rate of a PCIe generation, GT/s
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
#: GB/s (1e9 bytes) that one lane carries one way, by generation: the rate less its encoding (8b/10b, 128b/130b, FLIT)
LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Port:
    """One end of a link. Speeds in GT/s, widths in lanes; None = not told.

    ``kind`` is root, upstream, downstream or gpu; ``acs`` {"cap", "ctl"} where its configuration may be read; ``aer``
    {"correctable", "nonfatal", "fatal"} counts since boot.
    """

    bdf: str
    kind: str
    speed_gt_s: float | None = None
    width: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None
    acs: Mapping[str, int] | None = None
    aer: Mapping[str, int] | None = None

    @property
    def max_generation(self) -> int | None:
        return GENERATIONS.get(self.max_speed_gt_s) if self.max_speed_gt_s else None


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU in the tree. ``path`` is the bus ids from its root port to itself; ``numa`` None = not told."""

    index: int
    bus_id: str
    path: tuple[str, ...] = ()
    numa: int | None = None
    uuid: str | None = None

    @property
    def root(self) -> str | None:
        """The root port above it; None where the tree shows none (a virtual machine)."""
        return self.path[0] if len(self.path) > 1 else None

    @property
    def switches(self) -> tuple[str, ...]:
        """Upstream ports of the switches above it, from the root on: below the root port, up and down alternate."""
        return self.path[1:-1:2]

    @property
    def switch(self) -> str | None:
        """The upstream port of the switch that it hangs on."""
        return self.switches[-1] if self.switches else None


@dataclasses.dataclass(frozen=True)
class Topology:
    """The GPUs in the order of their index, the ports on their paths, and NVLinks by pair of bus ids.

    ``numa_nodes`` is how many the machine has, 0 = not told: GPUs of a machine with one are on the same socket even
    where the tree says nothing of nodes.
    """

    gpus: tuple[Gpu, ...] = ()
    ports: Mapping[str, Port] = dataclasses.field(default_factory=dict)
    nvlinks: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    numa_nodes: int = 0

    def select(self, identities: Sequence[Mapping[str, Any]]) -> Topology:
        """Only these GPUs, with these indices: ``{"index", "bus_id", "uuid"}``, as CUDA names them."""
        known = {gpu.bus_id: gpu for gpu in self.gpus}
        chosen = []
        for identity in identities:
            bus_id = str(identity.get("bus_id") or "").lower()
            seen = known.get(bus_id, Gpu(0, bus_id))
            chosen.append(dataclasses.replace(seen, index=identity["index"], uuid=identity.get("uuid")))
        return dataclasses.replace(self, gpus=tuple(chosen))

    def with_nvlinks(self, nvlinks: Mapping[tuple[str, str], int]) -> Topology:
        return dataclasses.replace(self, nvlinks=dict(nvlinks))

    def with_numa(self, numa: Mapping[str, int]) -> Topology:
        """NUMA nodes from the host, by bus id, for GPUs that have none here."""
        gpus = tuple(dataclasses.replace(g, numa=numa.get(g.bus_id)) if g.numa is None else g for g in self.gpus)
        return dataclasses.replace(self, gpus=gpus)

    @functools.cached_property
    def _by_index(self) -> dict[int, Gpu]:
        return {gpu.index: gpu for gpu in self.gpus}

    @functools.cached_property
    def _classes(self) -> dict[Pair, str]:
        return {}

    def with_paths(self, paths: Mapping[str, Sequence[str]]) -> Topology:
        """Paths from the host, by bus id, for GPUs whose own tree shows none."""

        def placed(gpu: Gpu) -> Gpu:
            path = tuple(paths.get(gpu.bus_id) or ())
            known = len(gpu.path) > 1 or not path or path[-1] != gpu.bus_id
            return gpu if known else dataclasses.replace(gpu, path=path)

        return dataclasses.replace(self, gpus=tuple(placed(gpu) for gpu in self.gpus))

    def gpu(self, index: int) -> Gpu:
        """Raises KeyError."""
        return self._by_index[index]

    def pairs(self) -> list[Pair]:
        """All ordered pairs of indices."""
        return [(one.index, two.index) for one in self.gpus for two in self.gpus if one is not two]

    def nvlink_count(self, source: int, target: int) -> int:
        one, two = self.gpu(source).bus_id, self.gpu(target).bus_id
        return self.nvlinks.get((one, two)) or self.nvlinks.get((two, one)) or 0

    def link_class(self, source: int, target: int) -> str:
        """What lies between two GPUs, of :data:`CLASSES`."""
        if (source, target) not in self._classes:
            self._classes[source, target] = self._class_of(source, target)
        return self._classes[source, target]

    def _class_of(self, source: int, target: int) -> str:
        if self.nvlink_count(source, target):
            return NVLINK
        one, two = self.gpu(source), self.gpu(target)
        if one.root is None or two.root is None:
            return UNKNOWN
        if set(one.switches) & set(two.switches):
            return SAME_SWITCH
        if one.root == two.root:
            return SAME_ROOT_COMPLEX
        if one.numa is None or two.numa is None:  # a machine of one node need not say so of each device
            return SAME_ROOT_COMPLEX if self.numa_nodes == 1 else UNKNOWN
        return SAME_ROOT_COMPLEX if one.numa == two.numa else CROSS_SOCKET

    def crosses_root(self, source: int, target: int) -> bool:
        """Whether the way leads through the processor: two root ports, no NVLink."""
        one, two = self.gpu(source), self.gpu(target)
        return bool(one.root and two.root and one.root != two.root and not self.nvlink_count(source, target))

    def classes(self) -> list[list[str | None]]:
        """NxN, None on the diagonal."""
        order = [gpu.index for gpu in self.gpus]
        return [[None if s == t else self.link_class(s, t) for t in order] for s in order]

    def nvlink_matrix(self) -> list[list[int]]:
        order = [gpu.index for gpu in self.gpus]
        return [[0 if s == t else self.nvlink_count(s, t) for t in order] for s in order]

    def sockets(self) -> list[dict[str, Any]]:
        """The tree, as it stands in the report."""
        found: dict[int, dict[str, dict[str, Any]]] = {}
        for gpu in self.gpus:
            roots = found.setdefault(gpu.numa if gpu.numa is not None else -1, {})
            entry = roots.setdefault(gpu.root or "", {"root": gpu.root, "switches": {}, "gpus": []})
            if gpu.switch:
                entry["switches"].setdefault(gpu.switch, []).append(gpu.index)
            else:
                entry["gpus"].append(gpu.index)
        return [
            {
                "numa": numa if numa >= 0 else None,
                "roots": [
                    {**entry, "switches": [{"switch": s, "gpus": g} for s, g in sorted(entry["switches"].items())]}
                    for _, entry in sorted(roots.items())
                ],
            }
            for numa, roots in sorted(found.items())
        ]

    def switch_groups(self) -> list[list[int]]:
        """Indices of the GPUs of each switch that has several."""
        groups: dict[str, list[int]] = {}
        for gpu in self.gpus:
            if gpu.switch:
                groups.setdefault(gpu.switch, []).append(gpu.index)
        return [group for group in groups.values() if len(group) > 1]

    def pcie_gb_per_s(self, index: int) -> float | None:
        """What the narrowest link on a GPU's path could carry one way, GB/s; None where no port tells."""
        ends = [self.ports[bdf] for bdf in self.gpu(index).path if bdf in self.ports]
        rates = [LANE_GB_PER_S[p.max_generation] * p.max_width for p in ends if p.max_generation and p.max_width]
        return min(rates) if rates else None

    def as_dict(self) -> dict[str, Any]:
        return {"sockets": self.sockets(), "classes": self.classes(), "nvlink": self.nvlink_matrix()}
