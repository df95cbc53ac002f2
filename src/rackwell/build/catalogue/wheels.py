# SPDX-License-Identifier: Apache-2.0
"""The real wheels that patches are held against: fetched with the machine's own settings, kept by hash."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pydantic
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rackwell import bounded
from rackwell.build import lock
from rackwell.build.fetch import Blobs, fetch
from rackwell.build.files import scratch, telling_file_errors, write_atomically
from rackwell.build.model import ProjectName, Sha256, Strict, VersionText
from rackwell.build.wheelfile import best
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.validation import validate
from rackwell.site.yamlsource import load

#: What a patch changes is the same in the wheels for every Python; one has to be asked for.
PYTHON = "3.11"
NEWEST = "newest"


class KnownWheel(Strict):
    """A wheel that the catalogue was held against."""

    filename: str
    sha256: Sha256
    size: int


class KnownWheels(Strict):
    """``patches/wheels.yml``: which wheels the catalogue was held against, and which versions the table shows."""

    shown: dict[ProjectName, list[VersionText]]
    wheels: dict[ProjectName, dict[VersionText, KnownWheel]]

    @pydantic.model_validator(mode="after")
    def _known(self) -> KnownWheels:
        for project, versions in self.shown.items():
            if missing := [version for version in versions if version not in self.wheels.get(project, {})]:
                raise ValueError(f"shows {project} {', '.join(missing)}, of which it knows no wheel")
        return self


@dataclasses.dataclass(frozen=True)
class Held:
    """A wheel in the cache. `known`: its hash is that of the catalogue, not only what the index said."""

    project: str
    version: str
    filename: str
    sha256: str
    path: Path
    known: bool


def known_wheels(catalog: Path) -> KnownWheels:
    """Read ``patches/wheels.yml``. Raises RackwellError with file and line (exit 2)."""
    return validate(KnownWheels, load(catalog / "patches" / "wheels.yml"), "list of wheels")


def default_cache() -> Path:
    """Where wheels are kept when nobody says: ``rackwell`` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "rackwell"


class Cache:
    """Wheels by project and version."""

    def __init__(self, folder: Path, known: KnownWheels, progress: Callable[[str], None]) -> None:
        self._folder = folder.absolute()
        self._known = known
        self._progress = progress
        self._blobs = Blobs(self._folder)

    def get(self, project: str, version: str) -> Held:
        """The wheel of `project` at `version`, or at the newest one for `NEWEST`.

        Raises:
            RackwellError: the index has none, or it cannot be fetched, or its hash is not what it was (exit 1).
        """
        known = self._known.wheels.get(project, {}).get(version)
        if known is not None:
            wheel = lock.LockedWheel(project, version, known.filename, known.sha256, known.size)
            return self._held(wheel, True)
        note = self._folder / "wheels" / f"{project}-{version}.json"
        wheel = (None if version == NEWEST else _noted(note)) or look_up(project, version)
        if version == NEWEST and wheel.version in self._known.wheels.get(project, {}):
            return self.get(project, wheel.version)
        held = self._held(wheel, False)
        note = note.with_name(f"{project}-{wheel.version}.json")
        write_atomically(note, json.dumps(dataclasses.asdict(wheel), sort_keys=True).encode() + b"\n")
        return held

    def _held(self, wheel: lock.LockedWheel, known: bool) -> Held:
        with telling_file_errors(self._folder), scratch(self._folder) as folder:
            fetch([wheel], PYTHON, self._blobs, folder, self._progress)
        path = self._blobs.path(wheel.sha256)
        return Held(wheel.project, wheel.version, wheel.filename, wheel.sha256, path, known)


def look_up(project: str, version: str) -> lock.LockedWheel:
    """Ask the package index that this machine is set up for, for the wheel of one version.

    Raises:
        RackwellError: it has none that fits, or does not answer (exit 1).
    """
    wanted = project if version == NEWEST else f"{project}=={version}"
    with tempfile.TemporaryDirectory(prefix="rackwell-patches-") as folder:
        inputs = Path(folder) / "requirements.in"
        inputs.write_text(f"{wanted}\n", encoding="utf-8")
        done = bounded.run(
            lock.uv_command(inputs, PYTHON, follow=False),
            lock.DEADLINE_S,
            late=lock.late(f"uv did not find {wanted} in time", wanted),
            cwd=folder,
            env=lock.uv_environment(),
        )
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[:1500]
        fix = "give a version that the index has; or, if it did not answer, make it reachable and run again"
        raise RackwellError(Problem("resolve-failed", f"there is no wheel for {wanted}", wanted, why, fix))
    for package in tomllib.loads(done.stdout).get("packages", []):
        if canonicalize_name(package["name"]) == project:
            return _locked(project, package)
    raise RackwellError(Problem("no-wheel", f"the index tells of no wheel of {wanted}", wanted))


def _locked(project: str, package: dict[str, Any]) -> lock.LockedWheel:
    version = str(package.get("version", ""))
    wheels = {lock.wheel_filename(wheel): wheel for wheel in package.get("wheels", [])}
    filename = best(list(wheels), PYTHON)
    sha256 = wheels[filename].get("hashes", {}).get("sha256") if filename else None
    if filename is None or not sha256:
        what = f"{project} {version} has no wheel with a hash for Python {PYTHON} on Linux"
        raise RackwellError(Problem("no-wheel", what, "", "patches are held against wheels alone", "ask for another"))
    return lock.LockedWheel(project, version, filename, sha256, int(wheels[filename].get("size", 0)))


def check_version(text: str) -> str:
    """A version as somebody typed it, in its normal form; `NEWEST` stays.

    Raises:
        RackwellError: it is none (exit 2).
    """
    if text == NEWEST:
        return text
    try:
        return str(Version(text))
    except InvalidVersion:
        problem = Problem(
            "usage", f"'{text}' is not a version", "--version", "", f"give one such as 0.5.9, or '{NEWEST}'"
        )
        raise RackwellError(problem, ExitCode.INVALID) from None


class _Note(Strict):
    project: str
    version: str
    filename: str
    sha256: Sha256
    size: Annotated[int, pydantic.Field(ge=0)]


def _noted(path: Path) -> lock.LockedWheel | None:
    """What an earlier run noted; a note that cannot be read is as good as none."""
    try:
        note = _Note.model_validate_json(path.read_bytes())
    except (OSError, pydantic.ValidationError):
        return None
    return lock.LockedWheel(note.project, note.version, note.filename, note.sha256, note.size)
