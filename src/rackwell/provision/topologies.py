# SPDX-License-Identifier: Apache-2.0
"""What the validations of a container's GPUs say beside a benchmark: the figures that explain decoding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rackwell.bench.result import Topology
from rackwell.errors import RackwellError
from rackwell.probe import regression
from rackwell.provision import gpus
from rackwell.site import files
from rackwell.topology import figures
from rackwell.topology.baseline import Baseline
from rackwell.topology.report import GpuReport

_COPIES = ("kernel/write/1", "kernel/read/1", "copy/write/1", "copy/read/1")
"""Matrices from the one that is most like what a collective does to the least."""


def newest(state: Path, container: str) -> Topology | None:
    """The verdict of the newest report of `container`, and the newest figures of the same GPUs and driver.

    Beside a running server nothing is timed, so the newest report often has no figures: they then come from the newest
    one before it that has, or from the baseline.

    Args:
        state: ``SITE/.rackwell``.
    """
    latest = _read(gpus.latest(state, container))
    baseline = gpus.own_baseline(state, container)
    found: dict[str, Any] = _of_baseline(baseline) if baseline is not None else {}
    if latest is not None:
        uuids = {gpu.uuid for gpu in latest.gpus}
        same = (
            report
            for report in _reports(state)
            if report.driver_version == latest.driver_version and {gpu.uuid for gpu in report.gpus} == uuids
        )
        for report in (latest, *same):
            figures_ = _figures(report)
            if all(figures_.values()) or (figures_["allreduce_us"] and figures_["p2p_gb_per_s"]):
                found.update({name: value for name, value in figures_.items() if value})
                break
        found.update(verdict=latest.verdict, date_utc=latest.started or None, boot_id=latest.boot_id)
    return Topology(**found) if found else None


def _reports(state: Path) -> Iterator[GpuReport]:
    """Reports that runs have kept, the newest first."""
    for path in sorted((state / "runs").glob(f"*/{gpus.REPORT}"), key=lambda path: path.parent.name, reverse=True):
        report = _read(path)
        if report is not None:
            yield report


def _read(path: Path) -> GpuReport | None:
    with contextlib.suppress(RackwellError):
        return gpus.read_report(path) if files.is_file(path) else None
    return None


def _figures(report: GpuReport) -> dict[str, Any]:
    p2p, collectives = report.measurements.p2p, report.measurements.collectives
    matrices = {named.key: named.values for named in figures.matrices(report)}
    latencies = [row.us for row in p2p.latency if row.us is not None and row.kind == "remote-read"] if p2p else []
    memory = [row.gb_per_s for row in p2p.memory if row.gb_per_s is not None] if p2p else []
    return {
        "allreduce_us": {p.bytes: p.us for p in collectives.points if p.us is not None} if collectives else {},
        "p2p_gb_per_s": next((matrices[key] for key in _COPIES if key in matrices), []),
        "p2p_latency_us": figures.median(latencies),
        "memory_gb_per_s": figures.median(memory),
    }


def _of_baseline(baseline: Baseline) -> dict[str, Any]:
    values = {key: value.mean for key, value in baseline.values.items()}
    order = sorted(baseline.machine.gpus, key=lambda gpu: gpu.bus_id)
    index = {gpu.uuid: number for number, gpu in enumerate(order)}
    matrices = (_matrix(values, key, index) for key in _COPIES)
    latencies = [value for key, value in values.items() if key.startswith("latency/remote-read/")]
    return {
        "date_utc": baseline.recorded or None,
        "allreduce_us": dict(_allreduce(values, len(index))),
        "p2p_gb_per_s": next((made for made in matrices if any(cell is not None for row in made for cell in row)), []),
        "p2p_latency_us": figures.median(latencies),
    }


def _matrix(values: Mapping[str, float], key: str, index: Mapping[str, int]) -> figures.Matrix:
    cells = []
    for name, value in values.items():
        ends = regression.ends_of(name)
        if name.startswith(f"p2p/{key}/") and ends is not None and set(ends) <= set(index):
            cells.append(((index[ends[0]], index[ends[1]]), value))
    return figures.matrix(len(index), cells)


def _allreduce(values: Mapping[str, float], ranks: int) -> Iterator[tuple[int, float]]:
    """Times from bus bandwidths: an allreduce moves 2 (n - 1) / n of its bytes over each link."""
    for key, value in values.items():
        kind, _, size = key.rpartition("/")
        if kind == "collectives/busbw" and size.isdigit() and ranks > 1 and value > 0:
            yield int(size), round(int(size) * 2 * (ranks - 1) / ranks / value / 1e3, 3)
