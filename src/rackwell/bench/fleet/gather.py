# SPDX-License-Identifier: Apache-2.0
"""What is stored of every container of a site."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic

from rackwell.bench import store as stores
from rackwell.bench.fleet.rows import Member, Run
from rackwell.bench.result import BenchResult
from rackwell.bench.store import Entry, Store

#: No more runs of a container than this are looked at, the newest ones: a page of hundreds must not take minutes.
RUNS = 12


def gather(site: Path, declared: Mapping[str, str], beside: Path) -> list[Member]:
    """Every container that is declared or has results, in order of their names.

    Args:
        site: the site's directory. declared: host of each declared container.
        beside: the directory of the page, which links are relative to.
    """
    store = Store(site)
    entries: dict[str, list[Entry]] = {}
    for entry in store.entries():
        entries.setdefault(entry.container, []).append(entry)
    return [
        Member(
            name,
            declared.get(name, ""),
            list(_runs(entries.get(name, [])[: 2 * RUNS], beside))[:RUNS],
            *_validation(site / ".rackwell" / "gpu" / f"{name}.json"),
            declared=name in declared,
        )
        for name in sorted({*declared, *entries})
    ]


def _runs(entries: Iterable[Entry], beside: Path) -> Iterable[Run]:
    """Readable runs that have points, the newest first."""
    for entry in entries:
        result = _light(entry.file)
        if result is not None and result.points and result.origin is None:
            report = entry.path / stores.REPORT
            link = Path(os.path.relpath(report, beside)).as_posix() if report.is_file() else ""
            yield Run(result, link)


def _light(file: Path) -> BenchResult | None:
    """The result without series, which are most of it; None when it cannot be read."""
    try:
        data = json.loads(file.read_bytes())
        for point in data["points"]:
            point.update(timeline=None, latency_samples={}, lines=[])
            for gpu in (point.get("telemetry") or {}).get("gpus", []):
                for part in gpu.values():
                    if isinstance(part, dict):
                        part.pop("series", None)
        return BenchResult.model_validate(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pydantic.ValidationError):
        return None


def _validation(file: Path) -> tuple[str, str]:
    """Verdict and date of the newest validation of the GPUs; empty where there is none."""
    try:
        found: Any = json.loads(file.read_bytes())
        return str(found.get("verdict") or ""), str(found.get("started") or "")
    except (OSError, ValueError, AttributeError):
        return "", ""
