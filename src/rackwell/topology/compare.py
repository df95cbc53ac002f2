# SPDX-License-Identifier: Apache-2.0
"""A report against a baseline: every figure with its delta, and which of them are more than noise.

What is told here is what one report shows. The validation itself measures again before it says that a figure is too
low.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rackwell.topology import figures
from rackwell.topology.baseline import Baseline, differences
from rackwell.topology.figures import Matrix, Named
from rackwell.topology.model import Pair, Verdict
from rackwell.topology.report import Difference, Gpu, GpuReport

MIN_EFFECT = 0.05
"""A smaller loss is told by nobody, however sure it is."""
SIGMAS = 4.0
"""How many standard deviations of a new measurement's distance from the mean count as noise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """One figure. change: now over then, minus 1. allowed: the loss that is noise."""

    key: str
    then: float
    now: float | None
    allowed: float

    @property
    def change(self) -> float | None:
        """Relative change; None when it was not measured now."""
        return None if self.now is None or not self.then else self.now / self.then - 1

    @property
    def loss(self) -> float:
        """How much worse it is, relative; negative when it is better, 0 when it was not measured."""
        change = self.change or 0.0
        return change if figures.less_is_better(self.key) else -change

    @property
    def worse(self) -> bool:
        """Whether it lost more than noise explains."""
        return self.loss > self.allowed


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A report against a baseline."""

    fits: bool
    differences: list[Difference]
    deltas: list[Delta]
    links: list[Delta]
    """The means over each GPU's outgoing and incoming pairs; a key is ``GPU <index> sends`` or ``receives``."""

    @property
    def verdict(self) -> Verdict:
        """degraded when a figure lost more than noise explains; not-measured when there is nothing to compare."""
        if not self.fits or not any(delta.now is not None for delta in self.deltas):
            return "not-measured"
        return "degraded" if any(delta.worse for delta in [*self.deltas, *self.links]) else "pass"


def compare(baseline: Baseline, report: GpuReport) -> Comparison:
    """Hold `report` against `baseline`; figures of one that does not fit are not compared."""
    others = differences(baseline, report)
    if others:
        return Comparison(False, others, [], [])
    now = figures.values(report)
    deltas = [
        Delta(key, value.mean, now.get(key), _allowed(baseline, key, value.n))
        for key, value in sorted(baseline.values.items())
        if value.mean
    ]
    return Comparison(True, [], deltas, _links(baseline, report, deltas))


def changes(report: GpuReport, deltas: Sequence[Delta], key: str) -> Matrix:
    """The changes in percent of the matrix `key` (such as ``copy/write/1`` or ``latency/copy``)."""
    index = {gpu.uuid: gpu.index for gpu in report.gpus}
    prefix = f"{key}/" if key.startswith("latency/") else f"p2p/{key}/"
    cells = []
    for delta in deltas:
        if delta.key.startswith(prefix) and delta.change is not None:
            src, _, dst = delta.key.removeprefix(prefix).partition("/")
            if src in index and dst in index:
                cells.append(((index[src], index[dst]), 100 * delta.change))
    return figures.matrix(report.count, cells)


def worse_pairs(report: GpuReport, comparison: Comparison, key: str) -> dict[Pair, str]:
    """The pairs of matrix `key` that lost more than noise explains, as flags of a heat map."""
    index = {gpu.uuid: gpu.index for gpu in report.gpus}
    found: dict[Pair, str] = {}
    for delta in comparison.deltas:
        head, _, dst = delta.key.rpartition("/")
        head, _, src = head.rpartition("/")
        if delta.worse and head.removeprefix("p2p/") == key and src in index and dst in index:
            found[index[src], index[dst]] = "degraded"
    return found


def named(key: str, report: GpuReport) -> str:
    """A figure's key with indices for UUIDs."""
    head, _, ends = key.rpartition("/GPU-")
    start, _, src = head.rpartition("/")
    index = {gpu.uuid: gpu.index for gpu in report.gpus}
    dst = f"GPU-{ends}"
    return f"{start} GPU {index[src]} to GPU {index[dst]}" if src in index and dst in index else key


def as_matrix(baseline: Baseline, key: str = "copy/write/1") -> tuple[GpuReport, Named | None]:
    """A baseline's own figures as a report of nothing but GPUs, and their matrix; None when it has no such figures."""
    gpus = [
        Gpu(index=number, uuid=gpu.uuid, bus_id=gpu.bus_id, name=gpu.name)
        for number, gpu in enumerate(sorted(baseline.machine.gpus, key=lambda gpu: gpu.bus_id))
    ]
    report = GpuReport(verdict="pass", gpus=gpus)
    index = {gpu.uuid: gpu.index for gpu in gpus}
    cells = []
    for name, value in baseline.values.items():
        src, _, dst = name.removeprefix(f"p2p/{key}/").partition("/")
        if name.startswith(f"p2p/{key}/") and src in index and dst in index:
            cells.append(((index[src], index[dst]), value.mean))
    named = Named(key, "Bandwidth, copy engine writes, one way", "GB/s", figures.matrix(report.count, cells))
    return report, named if named.known else None


def _sd(baseline: Baseline, key: str) -> float:
    """Relative standard deviation of a figure: of the narrowest group that is pooled, else its own."""
    groups = [group for group in baseline.pooled_sd if key == group or key.startswith(f"{group}/")]
    if groups:
        return baseline.pooled_sd[max(groups, key=len)]
    value = baseline.values[key]
    return value.sd / value.mean


def _allowed(baseline: Baseline, key: str, runs: int, pairs: int = 1) -> float:
    return max(MIN_EFFECT, SIGMAS * _sd(baseline, key) * math.sqrt(1 + 1 / max(1, runs)) / math.sqrt(pairs))


def _links(baseline: Baseline, report: GpuReport, deltas: Sequence[Delta]) -> list[Delta]:
    """Means over the pairs of each GPU, of what the copy engines write one way."""
    found = []
    prefix = "p2p/copy/write/1/"
    mine = [delta for delta in deltas if delta.key.startswith(prefix) and delta.now is not None]
    for gpu in report.gpus:
        for end, told in ((0, "sends"), (1, "receives")):
            of = [delta for delta in mine if delta.key.removeprefix(prefix).split("/")[end] == gpu.uuid]
            if of:
                then, now = (sum(v) / len(of) for v in ([d.then for d in of], [d.now or 0.0 for d in of]))
                runs = baseline.values[of[0].key].n
                allowed = _allowed(baseline, of[0].key, runs, len(of))
                found.append(Delta(f"GPU {gpu.index} {told}", then, now, allowed))
    return found
