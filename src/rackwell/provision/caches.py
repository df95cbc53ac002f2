# SPDX-License-Identifier: Apache-2.0
"""Captured caches of compiled kernels: brought from a container, and what lies in ``SITE/.rackwell/caches``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import declared, plays
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration

PAPER, ARCHIVE = "manifest.json", "cache.tar.gz"


@dataclasses.dataclass(frozen=True)
class Captured:
    """A cache that lies in the site.

    Attributes:
        why: what is wrong with it, empty for nothing.
        paper: what its manifest says; empty when that cannot be read.
    """

    name: str
    path: Path
    paper: dict[str, Any]
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: without its files."""
        fields = ("key", "captured", "machine", "bytes", "content")
        return {
            "id": self.name,
            "path": str(self.path),
            "ok": not self.why,
            "why": self.why,
            "files": len(self.paper.get("files") or []),
            **{name: self.paper.get(name) for name in fields},
        }


@dataclasses.dataclass(frozen=True)
class Capture:
    """What a capture came to; report None when there is none."""

    container: str
    report: dict[str, Any] | None
    problems: list[Problem]
    exit_code: ExitCode


def capture(path: Path, name: str, progress: Progress) -> Capture:
    """Bring the cache of the release that serves on container `name` to the site.

    Raises:
        RackwellError: the declaration does not hold (exit 2), or another run holds the container (exit 5).
    """
    root = declaration.load(path)
    root.container(name)
    with container_lock(root.state, name, "cache capture"):
        target = declared.target(root, name)
        run = RunDirectory.create(root.state, "cache")
        played = plays.play("cache", target, run, progress)
        progress.safety = "the container was only read"
        found = plays.problems(played, f"rackwell cache capture {name} -i {target.site.path}")
        report = next(iter(played.payloads("rackwell.release_cache", name)), None)
        return Capture(name, report, found, played.exit_code)


def listed(path: Path) -> list[Captured]:
    """All that lie in the site, by name; their archives are not read."""
    folder = declaration.load(path).state / "caches"
    return [_read(one) for one in sorted(folder.glob("*")) if not one.name.startswith(".")]


def shown(path: Path, name: str) -> Captured:
    """The one of that name, or whose name begins so, with every hash checked.

    Raises:
        RackwellError: there is none, or there are several (exit 2).
    """
    found = [one for one in listed(path) if one.name.startswith(name)]
    if len(found) != 1:
        what = f"there is no captured cache {name}" if not found else f"{name} is the beginning of {len(found)} caches"
        why = ", ".join(one.name for one in found)
        raise RackwellError(Problem("no-cache", what, str(path), why, "see: rackwell cache list"), ExitCode.INVALID)
    (one,) = found
    return one if one.why else dataclasses.replace(one, why=_damage(one))


def _read(place: Path) -> Captured:
    try:
        paper = json.loads((place / PAPER).read_text(encoding="utf-8"))
        rest = {name: value for name, value in paper.items() if name != "digest"}
        canonical = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
        if hashlib.sha256(canonical).hexdigest() != paper["digest"]:
            return Captured(place.name, place, paper, "its manifest was changed")
        if paper["id"] != place.name:
            return Captured(place.name, place, paper, f"it was captured as {paper['id']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Captured(place.name, place, {}, f"its manifest cannot be read: {error}")
    return Captured(place.name, place, paper)


def _damage(one: Captured) -> str:
    try:
        with (one.path / ARCHIVE).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return f"its archive cannot be read: {error.strerror or error}"
    return "" if found == one.paper["archive"]["sha256"] else "the hash of its archive does not hold"
