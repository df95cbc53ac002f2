# SPDX-License-Identifier: Apache-2.0
"""A file of another tool as one run: recognised by its content, its points in the order of the file."""

from __future__ import annotations

import collections
import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rackwell.bench.imports import aiperf, sglang, vllm
from rackwell.bench.imports.foreign import NotThisError, Told
from rackwell.bench.result import BenchPoint, BenchResult, Origin, Software
from rackwell.errors import ExitCode, Problem, RackwellError

READERS: tuple[ModuleType, ...] = (aiperf, vllm, sglang)
_LARGEST = 1 << 30


def read(path: Path, container: str, label: str = "") -> BenchResult:
    """The run in `path`: of several lines each is a point, and the same load again is a further repeat of it.

    Args:
        container: the name under which it is stored. label: of the sweep; the file's name when empty.

    Raises:
        RackwellError: the file cannot be read, or holds no result of a known tool (exit 2).
    """
    raw = _bytes(path)
    text = raw.decode("utf-8", errors="replace")
    told: list[Told] = []
    readers: list[ModuleType] = []
    broken: list[str] = []
    for place, document in _documents(text):
        reader = next((one for one in READERS if isinstance(document, Mapping) and one.knows(document)), None)
        if reader is None:
            broken.append(f"{place} is none of a known tool, and was left out")
            continue
        try:
            told.append(reader.read(document))
            readers.append(reader)
        except NotThisError as error:
            broken.append(f"{place} was left out: {error}")
    if not told or len(set(readers)) > 1:
        why = "it holds results of several tools" if told else "; ".join(broken[:3]) or "it is empty"
        raise RackwellError(_unknown(path, why), ExitCode.INVALID)
    digest = hashlib.sha256(raw).hexdigest()
    date = next((one.date for one in told if one.date), None) or _time_of(path)
    version = next((one.version for one in told if one.version), None)
    stamp = dt.datetime.fromisoformat(date).astimezone(dt.UTC)
    return BenchResult(
        run_id=f"{stamp:%Y%m%dT%H%M%SZ}-{digest[:8]}",
        container=container,
        host="",
        date_utc=stamp.isoformat(timespec="seconds"),
        bench=label or _safe(path.name.partition(".")[0]) or "imported",
        client=Software(name=told[0].client, version=version),
        points=_repeats([point for one in told for point in one.points]),
        environment={"model": model} if (model := next((one.model for one in told if one.model), None)) else {},
        origin=Origin(
            tool=told[0].client,
            version=version,
            file=path.name,
            sha256=digest,
            lost=list(dict.fromkeys([*(text for one in told for text in one.lost), *broken])),
        ),
    )


def _repeats(points: Sequence[BenchPoint]) -> list[BenchPoint]:
    """A load that comes again is its next repeat."""
    seen: collections.Counter[tuple[int, int, int]] = collections.Counter()
    numbered = []
    for point in points:
        seen[point.load] += 1
        numbered.append(point.model_copy(update={"repeat": seen[point.load]}))
    return sorted(numbered, key=lambda point: (*point.load, point.repeat))


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            why = f"it is larger than {_LARGEST >> 30} GiB"
            raise RackwellError(Problem("file-unreadable", "the file is too large", str(path), why), ExitCode.INVALID)
        return path.read_bytes()
    except OSError as error:
        problem = Problem("file-unreadable", "the file cannot be read", str(path), error.strerror or str(error))
        raise RackwellError(problem, ExitCode.INVALID) from None


def _documents(text: str) -> Iterator[tuple[str, Any]]:
    """(place, document): the whole text where that is JSON, else each line that is not blank."""
    try:
        yield "the file", _loads(text)
        return
    except (ValueError, RecursionError):
        pass
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", _loads(line)
            except (ValueError, RecursionError):
                yield f"line {number}", None


def _loads(text: str) -> Any:
    """JSON, and what some tools take for it: ``Infinity`` and ``NaN`` become None."""
    return json.loads(text, parse_constant=lambda _: None)


def _time_of(path: Path) -> str:
    return dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).isoformat(timespec="seconds")


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60]


def _unknown(path: Path, why: str) -> Problem:
    return Problem(
        "not-a-benchmark",
        "no result of a known tool is in this file",
        str(path),
        why,
        "name a JSONL of sglang.bench_serving, a JSON of `vllm bench serve --save-result`, "
        "or aiperf's profile_export_aiperf.json",
    )
