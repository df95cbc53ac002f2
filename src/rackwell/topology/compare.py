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
from rackwell.topology.figures import Matrix
from rackwell.topology.model import Verdict
from rackwell.topology.report import Difference, GpuReport

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
    def worse(self) -> bool:
        """Whether it lost more than noise explains."""
        if self.change is None:
            return False
        loss = self.change if figures.less_is_better(self.key) else -self.change
        return loss > self.allowed


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
