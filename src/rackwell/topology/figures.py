# SPDX-License-Identifier: Apache-2.0
"""The figures of a report by name, as a baseline keeps them, and as matrices."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from rackwell.probe import regression
from rackwell.topology.model import Pair
from rackwell.topology.report import GpuReport

Matrix = list[list[float | None]]
"""N x N, from row to column; None on the diagonal and where nothing was measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A matrix that is shown: its key, title and unit, and whether more is better."""

    key: str
    title: str
    unit: str
    values: Matrix
    more_is_better: bool = True

    @property
    def known(self) -> list[float]:
        """Every value there is."""
        return [value for row in self.values for value in row if value is not None]


_ENGINES = {"copy": "copy engine", "kernel": "kernel"}
_WAYS = {1: "one way", 2: "both ways at once"}
_LATENCIES = {"remote-read": "Latency of a remote read", "copy": "Latency of a small copy"}


def matrices(report: GpuReport) -> list[Named]:
    """Every matrix that holds at least one figure: bandwidths first, the plainest of them at the top."""
    p2p = report.measurements.p2p
    if p2p is None:
        return []
    found = []
    for ways, told in _WAYS.items():
        for engine, by in _ENGINES.items():
            for op in ("write", "read"):
                rows = [row for row in p2p.bandwidth if (row.engine, row.op, row.ways) == (engine, op, ways)]
                values = matrix(report.count, (((row.src, row.dst), row.gb_per_s) for row in rows))
                title = f"Bandwidth, {by} {op}s, {told}"
                found.append(Named(f"{engine}/{op}/{ways}", title, "GB/s", values))
    for kind in dict.fromkeys(row.kind for row in p2p.latency):
        cells = (((row.src, row.dst), row.us) for row in p2p.latency if row.kind == kind)
        title = _LATENCIES.get(kind, f"Latency, {kind}")
        found.append(Named(f"latency/{kind}", title, "us", matrix(report.count, cells), more_is_better=False))
    return [named for named in found if named.known]


def matrix(count: int, cells: Iterable[tuple[Pair, float | None]]) -> Matrix:
    """Cells as a matrix; those outside of it are left out."""
    made: Matrix = [[None] * count for _ in range(count)]
    for (src, dst), value in cells:
        if 0 <= src < count and 0 <= dst < count and src != dst:
            made[src][dst] = value
    return made


def values(report: GpuReport) -> dict[str, float]:
    """Every figure that a baseline keeps, by its key; GPUs are named by UUID."""
    uuids = {gpu.index: gpu.uuid for gpu in report.gpus}
    return regression.values_of(report.measurements.model_dump(), lambda index: uuids.get(index, str(index)))


def asymmetric(values: Sequence[Sequence[float | None]], src: int, dst: int, share: float = 0.9) -> bool:
    """Whether this direction is below `share` of the way back."""
    there, back = values[src][dst], values[dst][src]
    return there is not None and back is not None and there < share * back


def median(values: Iterable[float]) -> float | None:
    """Their median; None when there is none."""
    known = list(values)
    return statistics.median(known) if known else None
