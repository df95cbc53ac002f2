# SPDX-License-Identifier: Apache-2.0
"""Results of a site: ``SITE/.rackwell/results/<container>/<utc>-<run>/bench.json``, a directory for each run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pydantic

from rackwell.bench.result import BenchResult
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files

FILE = "bench.json"
REPORT = "report.html"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One stored run. ``path`` is its directory."""

    container: str
    name: str
    path: Path

    def load(self) -> BenchResult:
        """Read the result.

        Raises:
            RackwellError: the file cannot be read, or is not ``rackwell.bench/1``.
        """
        return load(self.path / FILE)


def load(path: Path) -> BenchResult:
    """Read a result file, or the one in a run's directory.

    Raises:
        RackwellError: it is absent, or not ``rackwell.bench/1``.
    """
    file = path / FILE if path.is_dir() else path
    try:
        return BenchResult.model_validate_json(file.read_bytes())
    except OSError as error:
        problem = Problem(
            "result-unreadable", "the result cannot be read", str(file), error.strerror or str(error), "rackwell bench"
        )
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        problem = Problem(
            "result-invalid",
            "this is not a result of rackwell",
            str(file),
            f"{place}: {first['msg']}",
            "name a bench.json that `rackwell bench` wrote",
        )
    raise RackwellError(problem, ExitCode.INVALID)


class Store:
    """The results of one site.

    Args:
        site: the inventory directory.
    """

    def __init__(self, site: Path) -> None:
        self.root = site / ".rackwell" / "results"

    def save(self, result: BenchResult, report: str | None = None) -> Entry:
        """Write a result, and its report beside it; each file is whole or absent. The same run is replaced.

        Raises:
            RackwellError: names cannot be part of a path, or the directory cannot be written.
        """
        for what, value in (("container", result.container), ("run id", result.run_id)):
            if not _SAFE.fullmatch(value):
                raise RackwellError(
                    Problem("result-name", f"the {what} cannot be part of a path", repr(value), fix="rename it"),
                    ExitCode.INVALID,
                )
        try:
            moment = dt.datetime.fromisoformat(result.date_utc).astimezone(dt.UTC)
        except ValueError as error:
            raise RackwellError(
                Problem("result-date", "the date of the result is not ISO 8601", result.date_utc), ExitCode.INVALID
            ) from error
        stamp = f"{moment:%Y%m%dT%H%M%SZ}"
        # a run id that begins with the time needs no second one
        name = result.run_id if result.run_id.startswith(stamp) else f"{stamp}-{result.run_id}"
        directory = self.root / result.container / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if report is not None:
                files.write(directory / REPORT, report)
            files.write(directory / FILE, json.dumps(result.as_json(), indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            why = error.strerror or str(error)
            raise RackwellError(
                Problem("result-unwritable", "the result cannot be stored", str(directory), why, "free space or rights")
            ) from error
        return Entry(result.container, name, directory)

    def entries(self, container: str | None = None) -> list[Entry]:
        """Stored runs, the newest first; runs that were never finished are not listed."""
        return sorted(self._entries(container), key=lambda entry: entry.name, reverse=True)

    def _entries(self, container: str | None) -> Iterator[Entry]:
        pattern = f"{container or '*'}/*/{FILE}"
        for file in self.root.glob(pattern):
            yield Entry(file.parent.parent.name, file.parent.name, file.parent)

    def results(self, container: str) -> Iterator[tuple[Entry, BenchResult]]:
        """Readable results of a container, the newest first."""
        for entry in self.entries(container):
            with contextlib.suppress(RackwellError):
                yield entry, entry.load()

    def find(
        self, container: str, release: str, profile: str, bench: str | None = None, sweep: str | None = None
    ) -> BenchResult | None:
        """The newest valid result of this release, profile and sweep: what is "already measured".

        Args:
            release: full digest. profile: digest. bench: name of the bench file, any when None.
            sweep: digest of what the bench file says, any when None. A result that has none is of another sweep.
        """
        for _entry, result in self.results(container):
            if (
                result.valid
                and result.release is not None
                and result.release.digest == release
                and result.profile is not None
                and result.profile.digest == profile
                and bench in (None, result.bench)
                and sweep in (None, result.bench_digest)
            ):
                return result
        return None

    def previous(self, result: BenchResult) -> BenchResult | None:
        """The newest earlier valid run of the same container and bench file: what a report is held against."""
        for _entry, other in self.results(result.container):
            earlier = other.run_id != result.run_id and other.date_utc < result.date_utc
            if earlier and other.valid and other.bench == result.bench:
                return other
        return None
