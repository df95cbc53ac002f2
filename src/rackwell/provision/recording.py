# SPDX-License-Identifier: Apache-2.0
"""A benchmark run while it is measured: stored after each point, so that nothing that was measured can be lost."""

from __future__ import annotations

import contextlib
import gzip
import re
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic

from rackwell.bench.result import BenchPoint, BenchResult, Gpu, Hardware, Telemetry
from rackwell.bench.store import POINTS, Entry, Store
from rackwell.errors import Problem, RackwellError
from rackwell.provision import crediting

_POINT = re.compile(r"(?:\./)?([A-Za-z0-9][A-Za-z0-9_.-]{0,120})/(out\.jsonl\.gz|telemetry\.json\.gz)")
_NAMES = {"out.jsonl.gz": "client.jsonl.gz", "telemetry.json.gz": "telemetry.json.gz"}
_LARGEST = 1 << 30
RAW = "raw.tar"


class Recorder:
    """Takes what modules report of a run, and keeps the run's ``bench.json`` at what is known.

    Args:
        run: the run as far as it is known: new, or one that was interrupted.
        hidden: texts that must not be stored.
        on_point: told of each point once it is stored.
    """

    def __init__(
        self,
        store: Store,
        run: BenchResult,
        container: str,
        hidden: list[str],
        on_point: Callable[[BenchPoint], None] = lambda _: None,
    ) -> None:
        self.run = run
        self.facts: dict[str, Any] | None = None
        self.problem: RackwellError | None = None
        self._store = store
        self._container = container
        self._hidden = hidden
        self._on_point = on_point
        # plays report from a thread of their own
        self._guard = threading.RLock()

    def take(self, host: str, payload: Mapping[str, Any]) -> None:
        """A report of any module; what is none of this run's is left alone."""
        schema = str(payload.get("schema", "")).partition("/")[0]
        if host != self._container:
            return
        if schema == "rackwell.bench_facts":
            self._note(payload)
        elif schema == "rackwell.bench_point" and payload.get("status") != "planned":
            self._add(payload)

    def _note(self, facts: Mapping[str, Any]) -> None:
        with self._guard:
            self.facts = crediting.hide({key: value for key, value in facts.items() if key != "schema"}, self._hidden)
            kept = {key: value for key, value in self.run.environment.items() if key not in (self.facts or {})}
            self.run = self.run.model_copy(update={"environment": {**kept, **(self.facts or {})}})

    def _add(self, payload: Mapping[str, Any]) -> None:
        try:
            point = BenchPoint.model_validate(crediting.hide(dict(payload), self._hidden))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
            self.problem = RackwellError(
                Problem("result-invalid", "a point came that this version cannot read", self._container, why)
            )
            return
        with self._guard:
            if any(point == other for other in self.run.points):
                return
            point = explained(point)
            self.run = with_points(self.run, [point])
            self.save()
        self._on_point(point)

    def save(self, **changes: Any) -> Entry | None:
        """Write the run with `changes`; None when that is impossible, which `problem` tells."""
        with self._guard:
            self.run = self.run.model_copy(update=changes)
            try:
                return self._store.save(self.run)
            except RackwellError as error:
                self.problem = error
                return None


def with_points(run: BenchResult, points: Iterable[BenchPoint]) -> BenchResult:
    """`run` with further points, in the order of lengths, streams and repeats; the last one of the same counts."""
    by_key = {(*point.load, point.repeat): point for point in [*run.points, *points]}
    ordered = [by_key[key] for key in sorted(by_key)]
    update: dict[str, Any] = {
        "points": ordered,
        "client": next((point.client for point in ordered if point.client.version), run.client),
    }
    seen = next((point.telemetry for point in ordered if point.telemetry is not None and point.telemetry.gpus), None)
    if seen is not None:
        limits = [gpu.power_limit_w for gpu in seen.gpus]
        update |= {"hardware": _hardware(seen), "environment": {**run.environment, "power_limits_w": limits}}
    return run.model_copy(update=update)


def _hardware(seen: Telemetry) -> Hardware:
    gpus = [Gpu(name=gpu.name or "unnamed GPU", uuid=gpu.uuid, power_limit_w=gpu.power_limit_w) for gpu in seen.gpus]
    return Hardware(gpus=gpus, driver_version=seen.driver_version)


def explained(point: BenchPoint) -> BenchPoint:
    """A point whose server died, with what its last lines mean; as it is where nothing is known of them."""
    if point.status != "crashed" or point.findings or not point.lines:
        return point
    return point.model_copy(update={"findings": findings(point.lines)})


def findings(lines: list[str]) -> list[dict[str, Any]]:
    """What is known of failures that these lines tell of, as ``rackwell diagnose`` finds it; empty for nothing."""
    if not lines:
        return []
    with contextlib.suppress(RackwellError, OSError):
        from rackwell.diagnose import diagnose

        return [finding.as_dict() for finding in diagnose(lines).findings]
    return []


def unpack(raw: Path, entry: Path, hidden: list[str]) -> int:
    """The client's and the recorder's files from the host's tar into ``points/``. Returns how many.

    The host is not trusted with paths, and a file in which a secret stands is left out. The tar goes.
    """
    count = 0
    try:
        with contextlib.suppress(OSError, tarfile.TarError, EOFError), tarfile.open(raw) as tar:
            for member in tar:
                named = _POINT.fullmatch(member.name)
                if named is None or not member.isreg() or member.size > _LARGEST:
                    continue
                stream = tar.extractfile(member)
                content = stream.read() if stream is not None else b""
                if not _clean(content, hidden):
                    continue
                place = entry / POINTS / named[1]
                place.mkdir(parents=True, exist_ok=True)
                (place / _NAMES[named[2]]).write_bytes(content)
                count += 1
    finally:
        raw.unlink(missing_ok=True)
    return count


def _clean(content: bytes, hidden: list[str]) -> bool:
    if not hidden:
        return True
    try:
        text = gzip.decompress(content)
    except (OSError, EOFError, ValueError):
        return False
    return not any(secret.encode() in text for secret in hidden)
