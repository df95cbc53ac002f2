# SPDX-License-Identifier: Apache-2.0
"""What a page carries as JSON: the result's figures, without what is long (that is in ``bench.json``)."""

from __future__ import annotations

from typing import Any

from rackwell.bench.result import BenchPoint, BenchResult, GpuTelemetry, Series, Telemetry

#: Fields of a GPU that are series.
SERIES = tuple(name for name, field in GpuTelemetry.model_fields.items() if field.annotation is Series)
_LINES = 40


def embedded(result: BenchResult) -> dict[str, Any]:
    """The result as ``rackwell.bench/1``: means and extremes stay, series and raw latencies go."""
    made = result.model_copy(update={"points": [_point(point) for point in result.points]})
    return made.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"schema": result.schema_}


def _point(point: BenchPoint) -> BenchPoint:
    seen = point.telemetry
    gone: dict[str, Any] = {
        "latency_samples": {},
        "timeline": None,
        "lines": point.lines[-_LINES:],
        "telemetry": _telemetry(seen) if seen is not None else None,
    }
    return point.model_copy(update=gone)


def _telemetry(seen: Telemetry) -> Telemetry:
    gpus = [gpu.model_copy(update={key: _bare(getattr(gpu, key)) for key in SERIES}) for gpu in seen.gpus]
    return seen.model_copy(update={"t": [], "gpus": gpus, "cpu_pct": _bare(seen.cpu_pct)})


def _bare(series: Series) -> Series:
    return series.model_copy(update={"series": []})
