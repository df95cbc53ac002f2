# SPDX-License-Identifier: Apache-2.0
"""The mirror itself: ``manifest.json`` with path, SHA-256 and size of every file. Files come in whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rackwell.errors import ExitCode, Problem, RackwellError

MANIFEST = "manifest.json"
SCHEMA = "rackwell.mirror/1"
SECONDS = 60
_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIX = "run `rackwell mirror` where there is a network, and bring the directory over"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of the mirror.

    Attributes:
        path: below the mirror's directory. kind: wheel, git, driver, template, deb, lock.
        name: what it is, for people. suite, package: of a deb.
    """

    path: str
    sha256: str
    size: int
    kind: str
    name: str
    suite: str = ""
    package: str = ""


@dataclasses.dataclass
class Manifest:
    """What the mirror holds. ``sets``: suite -> package that was asked for -> paths of all that it needs."""

    files: dict[str, Entry] = dataclasses.field(default_factory=dict)
    sets: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """The one form of it."""
        files = {
            path: {key: value for key, value in dataclasses.asdict(entry).items() if value != "" and key != "path"}
            for path, entry in sorted(self.files.items())
        }
        return json.dumps({"schema": SCHEMA, "files": files, "sets": self.sets}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str, where: str) -> Manifest:
        """Raises RackwellError (exit 1) for what is none."""
        try:
            data = json.loads(text)
            if data["schema"] != SCHEMA:
                raise ValueError(f"its schema is {data['schema']}, this rackwell knows {SCHEMA}")
            files = {path: _entry(path, told) for path, told in data["files"].items()}
            sets = {
                str(suite): {str(name): [str(path) for path in paths] for name, paths in of.items()}
                for suite, of in data.get("sets", {}).items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = str(error) or type(error).__name__
            raise RackwellError(
                Problem("mirror-malformed", "this is no mirror's manifest", where, why, _FIX)
            ) from error
        return cls(files, sets)


def _entry(path: str, told: Mapping[str, Any]) -> Entry:
    if path.startswith("/") or ".." in path.split("/") or not _SHA256.fullmatch(told["sha256"]):
        raise ValueError(f"it names a file as {path!r}")
    return Entry(
        path,
        str(told["sha256"]),
        int(told["size"]),
        str(told["kind"]),
        str(told.get("name") or path),
        str(told.get("suite") or ""),
        str(told.get("package") or ""),
    )


class Mirror:
    """A mirror that is read.

    Args:
        place: a directory, or an http(s) address of one that any web server serves.
        where: ``file:line`` of what declares it.
    """

    def __init__(self, place: str, where: str = "") -> None:
        self.place = place.rstrip("/") or "/"
        self.where = where or self.place
        self._remote = re.match(r"https?://", self.place) is not None
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """What it holds, read once. Raises RackwellError (exit 1)."""
        if self._manifest is None:
            with self._open(MANIFEST) as stream:
                self._manifest = Manifest.parse(stream.read().decode("utf-8", "replace"), f"{self.place}/{MANIFEST}")
        return self._manifest

    def find(self, sha256: str) -> Entry | None:
        """The file with this hash; None when there is none."""
        return next((entry for entry in self.manifest.files.values() if entry.sha256 == sha256), None)

    def named(self, kind: str) -> list[Entry]:
        """All files of a kind."""
        return [entry for entry in self.manifest.files.values() if entry.kind == kind]

    def bring(self, entry: Entry, target: Path, mode: int = 0o644) -> None:
        """Copy a file to `target`, whole and with its hash, or not at all.

        Raises:
            RackwellError: it is not there, or is not what the manifest says (exit 1).
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._open(entry.path) as stream:
            found = write(stream, target, mode, entry.sha256)
        if found != entry.sha256:
            raise RackwellError(
                Problem(
                    "mirror-damaged",
                    f"{entry.name} in the mirror is not what its manifest says",
                    f"{self.place}/{entry.path}",
                    f"sha256 {entry.sha256} expected, {found} found",
                    "rackwell mirror --check names all that are damaged; `rackwell mirror` brings them anew",
                )
            )

    def lacks(self, what: str) -> RackwellError:
        """The error for something that the mirror does not hold."""
        return RackwellError(
            Problem(
                "mirror-incomplete",
                f"the mirror does not hold {what}",
                self.where,
                f"this site takes everything from {self.place}, and nothing from a network",
                _FIX,
            )
        )

    def _open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        where = f"{self.place}/{path}"
        try:
            if not self._remote:
                return (Path(self.place) / path).open("rb")
            # no proxy of the environment: that is a way out, and a mirror is near
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            opened: IO[bytes] = opener.open(f"{self.place}/{urllib.request.pathname2url(path)}", timeout=SECONDS)
            return opened
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise RackwellError(
                Problem("mirror-unreadable", "the mirror cannot be read", where, str(why), _FIX)
            ) from None


class Writer:
    """A mirror that is filled: a directory here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / MANIFEST
        try:
            self.before = Manifest.parse(path.read_text(encoding="utf-8"), str(path)) if path.exists() else Manifest()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RackwellError(
                Problem("mirror-unwritable", "the mirror cannot be written", str(folder), error.strerror or str(error)),
                ExitCode.FAILED,
            ) from error
        self.manifest = Manifest()
        self.added = self.added_bytes = 0

    def take(self, entry: Entry, fetch: Callable[[Path], None]) -> None:
        """Have a file. `fetch` writes it where it is told when it is not here, or here and damaged.

        Raises:
            RackwellError: what was fetched is not what was expected.
        """
        path = self.folder / entry.path
        if digest(path) != entry.sha256:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
            try:
                fetch(partial)
                found = digest(partial)
                if found != entry.sha256:
                    why = f"sha256 {entry.sha256} expected, {found or 'nothing'} came"
                    raise RackwellError(
                        Problem("hash-mismatch", f"{entry.name} is not what was declared", str(path), why, "")
                    )
                partial.chmod(0o644)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            self.added += 1
            self.added_bytes += path.stat().st_size
        self.manifest.files[entry.path] = dataclasses.replace(entry, size=path.stat().st_size)

    def keep(self) -> None:
        """Write the manifest: what was there before and is there still stays in it."""
        for path, entry in self.before.files.items():
            if path not in self.manifest.files and (self.folder / path).is_file():
                self.manifest.files[path] = entry
        for suite, sets in self.before.sets.items():
            for name, paths in sets.items():
                self.manifest.sets.setdefault(suite, {}).setdefault(name, paths)
        handle, name = tempfile.mkstemp(prefix=f".{MANIFEST}.", dir=self.folder)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(self.manifest.text())
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(self.folder / MANIFEST)


def damaged(folder: Path) -> Iterator[tuple[Entry, str]]:
    """Files of a mirror on this disk that are not what its manifest says, and why. Raises RackwellError."""
    for entry in Mirror(str(folder)).manifest.files.values():
        found = digest(folder / entry.path)
        if found != entry.sha256:
            yield entry, "it is missing" if not found else f"sha256 {entry.sha256} expected, {found} found"


def write(stream: IO[bytes], target: Path, mode: int, expected: str) -> str:
    """Write a stream to a file, which appears only when it has the hash; returns the hash that it has."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    try:
        summed = hashlib.sha256()
        with os.fdopen(handle, "wb") as out:
            while chunk := stream.read(_CHUNK):
                summed.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if summed.hexdigest() == expected:
            Path(name).chmod(mode)
            Path(name).replace(target)
        return summed.hexdigest()
    finally:
        Path(name).unlink(missing_ok=True)


def digest(path: Path) -> str:
    """SHA-256 of a file; empty when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def copy(source: Path) -> Callable[[Path], None]:
    """For `Writer.take`: a file of this machine."""

    def fetch(target: Path) -> None:
        shutil.copyfile(source, target)

    return fetch


def download(url: str) -> Callable[[Path], None]:
    """For `Writer.take`: a file behind an address, by the proxies of the environment."""

    def fetch(target: Path) -> None:
        try:
            if not re.match(r"https?://", url):
                raise ValueError("neither http nor https")
            opened = urllib.request.urlopen(url, timeout=SECONDS)  # noqa: S310 - looked at above
            with opened as stream, target.open("wb") as out:
                shutil.copyfileobj(stream, out, _CHUNK)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(getattr(error, "reason", "") or error)
            raise RackwellError(
                Problem("fetch-failed", "a file could not be downloaded", url, why, "make it reachable, then run again")
            ) from error

    return fetch
