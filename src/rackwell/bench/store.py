# SPDX-License-Identifier: Apache-2.0
"""Results of a site: ``SITE/.rackwell/results/<container>/<utc>-<run>/``, a directory for each run.

``bench.json`` is the result (``rackwell.bench/1``), ``report.html`` its page, ``points/<point>/`` what the client
and the recorder wrote. A sweep that is under way, or was interrupted, lies there with ``complete: false``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pydantic

from rackwell.bench.result import BenchResult
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files

FILE = "bench.json"
REPORT = "report.html"
POINTS = "points"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One stored run.

    Attributes:
        path: its directory.
        json: the result's file where that is not the `FILE` of the directory.
    """

    container: str
    name: str
    path: Path
    json: Path | None = None

    @property
    def file(self) -> Path:
        """The result's file."""
        return self.json or self.path / FILE

    @property
    def reference(self) -> str:
        """What names it on the command line."""
        return str(self.json) if self.json else f"{self.container}/{self.name}"

    def load(self) -> BenchResult:
        """Read the result.

        Raises:
            RackwellError: the file cannot be read, or is not ``rackwell.bench/1``.
        """
        return load(self.file)


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

    def forget(self, entry: Entry) -> None:
        """Remove a run that came to nothing."""
        shutil.rmtree(entry.path, ignore_errors=True)

    def entries(self, container: str | None = None) -> list[Entry]:
        """Stored runs, the newest first, interrupted ones among them."""
        return sorted(self._entries(container), key=lambda entry: entry.name, reverse=True)

    def _entries(self, container: str | None) -> Iterator[Entry]:
        pattern = f"{container or '*'}/*/{FILE}"
        for file in self.root.glob(pattern):
            yield Entry(file.parent.parent.name, file.parent.name, file.parent)

    def results(self, container: str, *, empty: bool = False) -> Iterator[tuple[Entry, BenchResult]]:
        """Readable results of a container, the newest first; those without a point only when `empty` are wanted."""
        for entry in self.entries(container):
            with contextlib.suppress(RackwellError):
                result = entry.load()
                if result.points or empty:
                    yield entry, result

    def interrupted(self, container: str, bench: str) -> Iterator[tuple[Entry, BenchResult]]:
        """Runs of our own that did not come to their end, the newest first, down to the newest that did."""
        for entry, result in self.results(container, empty=True):
            if result.origin is None and result.bench == bench:
                if result.complete:
                    return
                yield entry, result

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
                and result.complete
                and result.origin is None
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
            if earlier and other.complete and other.valid and other.bench == result.bench:
                return other
        return None


_BACK = re.compile(r"(?P<name>.+?)~(?P<back>\d{1,4})")


def resolve(site: Path, reference: str) -> Entry:
    """The run that `reference` means.

    A file or a run's directory; a container for its newest finished run, ``CONTAINER~1`` for the one before it;
    ``CONTAINER/RUN`` or ``RUN``, where the beginning of a run's name is enough, or its last part, as long as only one
    run has it. A path wins over a container, a container over a run.

    Args:
        site: the site's directory. What it declares is not looked at.

    Raises:
        RackwellError: there is none, or there are several (exit 2).
    """
    path = files.place(reference)
    if files.is_file(path):
        return Entry(path.parent.parent.name, path.parent.name, path.parent, path)
    if files.is_file(path / FILE):
        return Entry(path.absolute().parent.name, path.absolute().name, path)
    store = Store(site)
    entries = store.entries()
    containers = {entry.container for entry in entries}
    back = _BACK.fullmatch(reference)
    name = back["name"] if back else reference
    if name in containers:
        done = [entry for entry, result in store.results(name) if result.complete]
        number = int(back["back"]) if back else 0
        if number < len(done):
            return done[number]
        why = f"{name} has {len(done)} finished runs"
        raise _no_run(reference, store, why)
    container, _, run = reference.rpartition("/")
    among = [entry for entry in entries if container in {"", entry.container}] if run else []
    found = [entry for entry in among if entry.name == run] or [
        entry for entry in among if entry.name.startswith(run) or entry.name.rpartition("-")[2] == run
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(entry.reference for entry in found[:6])
        problem = Problem(
            "run-ambiguous", f"'{reference}' means several runs", str(store.root), names, "name more of it"
        )
        raise RackwellError(problem, ExitCode.INVALID)
    raise _no_run(reference, store, "it is no container with results, no run, and no file")


def _no_run(reference: str, store: Store, why: str) -> RackwellError:
    problem = Problem(
        "run-unknown", f"there is no run '{reference}'", str(store.root), why, "see what there is: rackwell bench list"
    )
    return RackwellError(problem, ExitCode.INVALID)
