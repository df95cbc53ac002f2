# SPDX-License-Identifier: Apache-2.0
"""A report against a baseline: every figure with its loss, and which of them are more than noise.

The rule is the probe's own (`rackwell.probe.regression`). What is told here is what one report shows; the validation
itself measures again before it says that a figure is too low.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rackwell.probe import baseline as fitting
from rackwell.probe import regression
from rackwell.topology import figures
from rackwell.topology.baseline import Baseline
from rackwell.topology.figures import Matrix, Named
from rackwell.topology.model import Pair, Verdict
from rackwell.topology.report import Difference, Gpu, GpuReport

_ENDS = {"out": "sends", "in": "receives", "both": "both ways"}


@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """One figure, or the mean over some.

    Attributes:
        name: for people. key: a baseline's key; "" for a mean. pair: what it is about, where it is about one.
        loss: how much worse it is, relative; negative when it is better. allowed: the loss that is noise.
    """

    name: str
    key: str
    then: float
    now: float
    loss: float
    allowed: float
    worse: bool
    pair: Pair | None = None

    @property
    def change(self) -> float:
        """Relative change: now over then, minus 1."""
        return self.now / self.then - 1

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**dataclasses.asdict(self), "change": self.change}


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A report against a baseline.

    Attributes:
        code: why the baseline is refused: baseline-foreign or baseline-outdated; "" when it fits.
        differences: facts that are others now. links: means over all pairs of each GPU. pairs: means over all figures
            of each ordered pair. values: every figure. missing: how many figures were not measured now.
    """

    code: str
    differences: list[Difference]
    links: list[Delta]
    pairs: list[Delta]
    values: list[Delta]
    missing: int

    @property
    def fits(self) -> bool:
        """Whether the baseline is of this machine as it is now."""
        return not self.code

    @property
    def worse(self) -> list[Delta]:
        """What lost more than noise explains: links, then pairs, then single figures; the worst of each first."""
        return [
            delta
            for deltas in (self.links, self.pairs, self.values)
            for delta in sorted(deltas, key=lambda delta: -delta.loss)
            if delta.worse
        ]

    @property
    def verdict(self) -> Verdict:
        """degraded when something lost more than noise explains; not-measured when there is nothing to compare."""
        if not self.fits or not self.values:
            return "not-measured"
        return "degraded" if self.worse else "pass"


def compare(baseline: Baseline, report: GpuReport) -> Comparison:
    """Hold `report` against `baseline`; figures of one that does not fit are not compared."""
    content = baseline.model_dump(by_alias=True)
    machine = fitting.machine_of(report.model_dump(by_alias=True))
    found = fitting.fit(fitting.Baseline(fitting.USED, content=content), machine)
    differences = [Difference.model_validate(difference.as_dict()) for difference in found.differences]
    if found.state != fitting.USED:
        return Comparison(found.code, differences, [], [], [], len(baseline.values))
    now = figures.values(report)
    index = {gpu.uuid: gpu.index for gpu in report.gpus}
    losses = regression.losses(now, content["values"], content["pooled_sd"])
    kinds: dict[str, list[Delta]] = {"value": [], "pair": [], "link": []}
    for loss in losses:
        kind = loss.subject[0]
        kinds[kind if kind in kinds else "link"].append(_delta(loss, index))
    missing = sum(key not in now for key in baseline.values)
    return Comparison("", differences, kinds["link"], kinds["pair"], kinds["value"], missing)


def _delta(loss: regression.Loss, index: Mapping[str, int]) -> Delta:
    kind, what = loss.subject
    pair: Pair | None = None
    if kind == "value":
        ends = regression.ends_of(what)
        name = what
        if ends is not None and set(ends) <= set(index):
            pair = (index[ends[0]], index[ends[1]])
            name = f"{what.removesuffix('/'.join(ends))[:-1]} GPU {pair[0]} to GPU {pair[1]}"
    elif kind == "pair":
        pair = (index.get(what[0], -1), index.get(what[1], -1))
        name = f"GPU {pair[0]} to GPU {pair[1]}, all"
    else:
        name = f"GPU {index.get(what, '?')} {_ENDS[kind]}"
    key = what if kind == "value" else ""
    return Delta(name, key, loss.expected, loss.measured, loss.loss, loss.limit, loss.alarm, pair)


def changes(report: GpuReport, comparison: Comparison, key: str) -> Matrix:
    """The changes in percent of the matrix `key` (such as ``copy/write/1`` or ``latency/remote-read``)."""
    prefix = f"{key}/" if key.startswith("latency/") else f"p2p/{key}/"
    cells = [
        (delta.pair, 100 * delta.change)
        for delta in comparison.values
        if delta.pair is not None and delta.key.startswith(prefix)
    ]
    return figures.matrix(report.count, cells)


def worse_pairs(comparison: Comparison) -> dict[Pair, str]:
    """The pairs that lost more than noise explains, as flags of a heat map; those of a slow link all."""
    found = {delta.pair: "degraded" for delta in [*comparison.pairs, *comparison.values] if delta.worse and delta.pair}
    return dict(found)


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
        ends = regression.ends_of(name)
        if name.startswith(f"p2p/{key}/") and ends is not None and set(ends) <= set(index):
            cells.append(((index[ends[0]], index[ends[1]]), value.mean))
    named = Named(key, "Bandwidth, copy engine writes, one way", "GB/s", figures.matrix(report.count, cells))
    return report, named if named.known else None
