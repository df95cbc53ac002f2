# SPDX-License-Identifier: Apache-2.0
"""A machine with eight GPUs on two sockets behind four switches that measures itself without a driver.

Its stages give what the probe's children give: figures with noise, from a seed. Two sorts of noise: each sample
scatters, and each ordered pair is a little faster or slower in each process.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import statistics
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rackwell.probe import baseline, regression
from rackwell.probe.check import check
from rackwell.probe.stages import Stages
from rackwell.probe.surroundings import DriverGpu, Node, Surroundings
from rackwell.probe.topology import Gpu, Pair, Port, Topology

#: (bus id, root port, upstream port, downstream port, NUMA node); two GPUs a switch, two switches a socket
PLACES = (
    ("0000:06:00.0", "0000:00:01.1", "0000:01:00.0", "0000:02:03.0", 0),
    ("0000:07:00.0", "0000:00:01.1", "0000:01:00.0", "0000:02:04.0", 0),
    ("0000:75:00.0", "0000:70:01.1", "0000:71:00.0", "0000:72:02.0", 0),
    ("0000:76:00.0", "0000:70:01.1", "0000:71:00.0", "0000:72:03.0", 0),
    ("0000:84:00.0", "0000:80:01.1", "0000:81:00.0", "0000:82:01.0", 1),
    ("0000:85:00.0", "0000:80:01.1", "0000:81:00.0", "0000:82:02.0", 1),
    ("0000:f4:00.0", "0000:f0:01.1", "0000:f1:00.0", "0000:f2:02.0", 1),
    ("0000:f5:00.0", "0000:f0:01.1", "0000:f1:00.0", "0000:f2:03.0", 1),
)
MINORS = (2, 3, 0, 1, 6, 7, 4, 5)
RATES = {"same-switch": 53.6, "same-root-complex": 53.4, "cross-socket": 38.2}
DRIVER = "595.58.03"
MEMORY = 97887 << 20
OPS = [("copy", "write"), ("copy", "read"), ("kernel", "write"), ("kernel", "read")]


def uuid(index: int, machine: int = 1) -> str:
    return f"GPU-{machine:08x}-0000-0000-0000-{index:012x}"


@dataclasses.dataclass
class Machine:
    """The machine, its noise and its faults.

    ``slow``: factor of an ordered pair; ``cross_root``: GB/s of all pairs that cross a root port; ``generation`` and
    ``width``: what a GPU's link has trained to; ``collapse``: GB/s of what switches write to others at once; ``gone``:
    GPUs that are not there; ``corrupt``: ordered pairs whose bytes do not arrive. What is a dict named after a part
    (``cuda``, ``collectives``, ``nvml``, ``surroundings``) replaces entries of that part.
    """

    seed: int = 0
    sample_noise: float = 0.0
    run_noise: float = 0.0
    slow: dict[Pair, float] = dataclasses.field(default_factory=dict)
    cross_root: float | None = None
    generation: dict[int, int] = dataclasses.field(default_factory=dict)
    width: dict[int, int] = dataclasses.field(default_factory=dict)
    collapse: float | None = None
    gone: tuple[int, ...] = ()
    corrupt: tuple[Pair, ...] = ()
    latency: float = 0.7
    link: float = 53.0
    number: int = 1
    acs: int = 0x11
    nvlinks: int = 0
    start_error: tuple[int, str] | None = None
    hang: str = ""
    cuda: dict[str, Any] = dataclasses.field(default_factory=dict)
    pairs_part: dict[str, Any] = dataclasses.field(default_factory=dict)
    collectives: dict[str, Any] = dataclasses.field(default_factory=dict)
    nvml: dict[str, Any] = dataclasses.field(default_factory=dict)
    nvml_after: dict[str, Any] = dataclasses.field(default_factory=dict)
    surroundings: dict[str, Any] = dataclasses.field(default_factory=dict)
    health: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    links: dict[str, Any] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.calls: list[tuple[str, Any]] = []
        self.here = [index for index in range(8) if index not in self.gone]
        self.tree = Topology(
            tuple(
                Gpu(new, bus, (root, up, down, bus), numa)
                for new, (bus, root, up, down, numa) in enumerate(PLACES[old] for old in self.here)
            ),
            {bdf: port for place in PLACES for bdf, port in self._ports(place).items()},
            {},
            2,
        )
        self.topology = self.tree.select([self.identity(new) for new in range(len(self.here))])

    def _ports(self, place: tuple[str, str, str, str, int]) -> dict[str, Port]:
        acs = {"cap": 0x5F, "ctl": self.acs}
        bus, root, up, down, _ = place
        return {
            root: Port(root, "root", 32.0, 16, 32.0, 16, acs),
            up: Port(up, "upstream", 32.0, 16, 32.0, 16),
            down: Port(down, "downstream", 32.0, 16, 32.0, 16, acs),
            bus: Port(bus, "gpu", 2.5, 16, 32.0, 16),
        }

    # --- stages -------------------------------------------------------------------------------------------------

    @property
    def stages(self) -> Stages:
        return Stages(
            surroundings=self.look,
            tree=lambda: self.tree,
            before=self.before,
            nvlinks=self.nvlink_matrix,
            cuda=self.start,
            pairs=self.measure_pairs,
            concurrent=self.measure_concurrent,
            collectives=self.reduce,
            after=self.after,
        )

    def look(self) -> Surroundings:
        paths = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", *(f"/dev/nvidia{n}" for n in range(8))]
        nodes = tuple(Node(path, True, True, "0666", 195, 0, device=True) for path in paths)
        gpus = tuple(DriverGpu(PLACES[i][0], uuid(i, self.number), MINORS[i]) for i in self.here)
        facts = {"kernel": "6.17.13-2-pve", "boot_id": f"boot-{self.seed}", "board": "K14PG", "bios_version": "1203"}
        seen = Surroundings(
            nodes,
            DRIVER,
            False,
            505,
            frozenset({"hmm-off"}),
            DRIVER,
            gpus,
            iommu="off",
            machine={**facts, "product": "ESC8000A-E13P", **self.facts},
        )
        return dataclasses.replace(seen, **self.surroundings)

    def before(self, topology: Topology, deadline: float) -> dict[str, Any]:
        self.calls.append(("before", None))
        nvml = {"available": True, "why": None, "code": None, "driver_version": DRIVER, "count": len(self.here)}
        return {"nvml": {**nvml, "lost": None, **self.nvml}}

    def nvlink_matrix(self, state: Mapping[str, Any], bus_ids: list[str]) -> list[list[int]]:
        return [[self.nvlinks if one != two else 0 for two in bus_ids] for one in bus_ids]

    def identity(self, index: int) -> dict[str, Any]:
        old = self.here[index]
        return {"index": index, "uuid": uuid(old, self.number), "bus_id": PLACES[old][0], "name": "Simulated GPU"}

    def start(self, deadline: float, findings: Collection[str]) -> dict[str, Any]:
        self.calls.append(("cuda", deadline))
        told = {"state": "done", "describe": "returned", "user_space_version": DRIVER, "cuda_version": "13.2"}
        if self.start_error or self.hang == "cuInit":
            code, name = self.start_error or (None, "HANG")
            error = {"code": code, "name": name, "call": "cuInit", "detail": "did not return" if self.hang else ""}
            steps = [{"step": "cuInit", "ok": False, "seconds": None, "error": error}]
            state = {"state": "hung", "describe": "did not return before the deadline"} if self.hang else {}
            return {**told, "steps": steps, "devices": [], "count": None, **state, **self.cuda}
        devices = [
            {
                **self.identity(index),
                "compute_capability": "12.0",
                "memory_total": MEMORY,
                "steps": [{"step": "context", "ok": True, "seconds": 0.1, "error": None}],
                "kernel_verified": True,
            }
            for index in range(len(self.here))
        ]
        steps = [{"step": "cuInit", "ok": True, "seconds": 0.5, "error": None}]
        return {**told, "steps": steps, "devices": devices, "count": len(devices), **self.cuda}

    def rate(self, pair: Pair) -> float:
        """GB/s one way, without noise."""
        rate = RATES[self.topology.link_class(*pair)]
        if self.cross_root is not None and self.topology.crosses_root(*pair):
            rate = self.cross_root
        rate *= self.slow.get(pair, 1.0)
        for index in pair:
            rate = min(rate, 53.6 * 2.0 ** (self.generation.get(index, 5) - 5), 53.6 * self.width.get(index, 16) / 16)
        return rate

    def sample(self, value: float) -> float:
        return value * self.random.gauss(1.0, self.sample_noise) if self.sample_noise else value

    def measure_pairs(self, arguments: Mapping[str, Any], deadline: float, findings: Collection[str]) -> dict[str, Any]:
        self.calls.append(("pairs", dict(arguments)))
        every = self.topology.pairs()
        chosen = [tuple(pair) for pair in arguments["pairs"] or every]
        quick = bool(arguments.get("quick"))
        if quick and not arguments["pairs"]:
            count = len(self.here)
            chosen = [pair for pair in every if (pair[1] - pair[0]) % count in (1, count // 2)]
        samples = arguments.get("samples") or (3 if quick else 5)
        factor = {pair: self.random.gauss(1.0, self.run_noise) if self.run_noise else 1.0 for pair in every}
        tests = arguments["tests"]
        part: dict[str, Any] = {
            "size": arguments["size"],
            "capability": [_named(p, read=True, write=True, atomics=False, performance_rank=0) for p in every],
            "data": [],
            "bandwidth": [],
            "latency": [],
            "memory": [],
            "errors": [],
            "state": "done",
            "at": None,
        }
        ops = OPS[:1] if quick else OPS
        if "data" in tests:
            part["data"] = [self._data(pair, engine, op) for pair in chosen for engine, op in ops]
        if "bandwidth" in tests:
            for pair, (engine, op), ways in itertools.product(chosen, ops, (1,) if quick else (1, 2)):
                rate = self.rate(pair) * factor[pair] * (0.97 if ways == 2 else 1.0)
                figures = [self.sample(rate) for _ in range(samples)]
                entry = _named(pair, engine=engine, op=op, ways=ways, samples=figures)
                part["bandwidth"].append({**entry, "gb_per_s": statistics.median(figures)})
        if "latency" in tests:
            for pair in chosen:
                figures = [self.sample(self.latency / factor[pair]) for _ in range(samples)]
                entry = _named(pair, kind="remote-read", samples=figures, us=statistics.median(figures))
                part["latency"].append(entry)
        part["link_load"] = {gpu.bus_id: {} for gpu in self.topology.gpus} if "links" in tests else {}
        return {**part, **self.pairs_part}

    def _data(self, pair: Pair, engine: str, op: str) -> dict[str, Any]:
        bad = pair in self.corrupt
        told = {"wrong": 4096, "first": 0, "kind": "dropped", "source_intact": True} if bad else {"wrong": 0}
        return _named(pair, engine=engine, op=op, ok=not bad, bytes=1 << 28, **{"first": None, "kind": None, **told})

    def measure_concurrent(
        self, arguments: Mapping[str, Any], deadline: float, findings: Collection[str]
    ) -> dict[str, Any]:
        self.calls.append(("concurrent", dict(arguments)))
        count = len(self.here)
        patterns: list[tuple[str, str, list[Pair]]] = [("all-to-all", "write", self.topology.pairs())]
        patterns += [("one-to-all", "write", [(hub, t) for t in range(count) if t != hub]) for hub in range(count)]
        groups = arguments["switches"]
        for one, two in itertools.permutations(groups, 2):
            flows = list(zip(one, two, strict=True))
            patterns += [("switch-writes", "write", flows), ("switch-reads", "read", flows)]
        wanted = arguments.get("patterns")
        found = []
        for name, op, flows in patterns:
            if wanted and name not in wanted:
                continue
            total = min(
                len(flows) * self.link / _uplink_load(flows, [] if self.nvlinks else groups),
                sum(self.rate(flow) for flow in flows),
            )
            crosses = name in ("switch-writes", "all-to-all")
            if self.collapse is not None and crosses and op == "write":
                total = self.collapse if name == "switch-writes" else self.collapse * len(groups)
            figures = [self.sample(total) for _ in range(3)]
            entry = {"pattern": name, "op": op, "flows": [list(flow) for flow in flows], "samples": figures}
            found.append({**entry, "gb_per_s": statistics.median(figures), "verified": True})
        return {"concurrent": found, "errors": [], "state": "done", "at": None}

    def reduce(
        self, environment: Mapping[str, str], library: str | None, deadline: float, quick: bool
    ) -> dict[str, Any]:
        self.calls.append(("collectives", dict(environment)))
        limit = min(self.rate(pair) for pair in self.topology.pairs())
        best = 0.9 * limit * (self.random.gauss(1.0, self.run_noise) if self.run_noise else 1.0)
        points = []
        for size in (8 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20, 256 << 20):
            us = self.sample(25 + 1.75 * size / best / 1e3)
            rate = size / us / 1e3
            points.append(
                {"bytes": size, "us": us, "algbw": rate, "busbw": 1.75 * rate, "samples_us": [us], "wrong": 0}
            )
        told = {"state": "measured", "why": "", "library": "libnccl.so.2", "nccl_version": "2.29.2", "ranks": 8}
        return {**told, "points": points, "detail": "", **self.collectives}

    def after(
        self, state: Mapping[str, Any], load: Mapping[str, Any], deadline: float
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
        self.calls.append(("after", None))
        links, health = [], []
        speeds = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0}
        for index, gpu in enumerate(self.tree.gpus):
            generation, width = self.generation.get(index, 5), self.width.get(index, 16)
            ports = [
                {
                    "bdf": bdf,
                    "kind": kind,
                    "speed_gt_s": speeds[generation] if kind in ("gpu", "downstream") else 32.0,
                    "width": width if kind in ("gpu", "downstream") else 16,
                    "max_speed_gt_s": 32.0,
                    "max_width": 16,
                    "aer": {name: [7, 7] for name in ("correctable", "nonfatal", "fatal")},
                }
                for bdf, kind in zip(gpu.path, ("root", "upstream", "downstream", "gpu"), strict=False)
            ]
            entry = {"gpu": index, "bus_id": gpu.bus_id, "gen_gpu_max": 5, "gen_host_max": 5, "width_max": 16}
            entry |= {"gen_load": generation if load else None, "width_load": width if load else None, "idle_gen": 1}
            links.append({**entry, "replays": [3, 3], "bar1_total": 131072 << 20, "ports": ports, "nvlink": None})
            links[-1].update(self.links)
            told = {"ecc_uncorrected": 0, "recovery_action": "None", "remapped_pending": False, "processes": 0}
            health.append({"gpu": index, "bus_id": gpu.bus_id, **told, **self.health.get(index, {})})
        return links, health, {**state["nvml"], **self.nvml_after}

    # --- using it -----------------------------------------------------------------------------------------------

    def check(self, **options: Any) -> dict[str, Any]:
        return check(stages=self.stages, **{"gpus": 8, **options})


def _named(pair: Pair, **facts: Any) -> dict[str, Any]:
    return {"src": pair[0], "dst": pair[1], **facts}


def _uplink_load(flows: list[Pair], groups: list[list[int]]) -> int:
    """How many flows share the most loaded link."""
    behind = {index: number for number, group in enumerate(groups) for index in group}
    loads: dict[tuple[str, int], int] = {}
    for source, target in flows:
        parts = [("out", source), ("in", target)]
        if behind.get(source) != behind.get(target):
            parts += [("up", behind.get(source, -1)), ("down", behind.get(target, -1))]
        for part in parts:
            loads[part] = loads.get(part, 0) + 1
    return max(loads.values())


def record(path: Path, runs: int = 5, machine: Callable[[int], Machine] = Machine) -> Path:
    """Write a baseline of some runs of a machine, which ``machine`` makes from a seed."""
    reports = [machine(1000 + run).check() for run in range(runs)]
    names = {gpu["index"]: gpu["uuid"] for gpu in reports[0]["gpus"]}
    values = [regression.values_of(report["measurements"], names.__getitem__) for report in reports]
    content = baseline.build(baseline.machine_of(reports[0]), values, "2026-11-30T00:00:00Z")
    path.write_text(json.dumps(content))
    return path


def codes(report: Mapping[str, Any]) -> list[str]:
    """Codes of the top-level findings."""
    return [finding["code"] for finding in report["findings"]]
