# SPDX-License-Identifier: Apache-2.0
"""Removal of what nothing needs: on containers by a play, on this machine from the site's ``.rackwell``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode, Problem
from rackwell.provision import declared, plays
from rackwell.provision.lock import container_lock
from rackwell.provision.progress import Progress
from rackwell.site import declaration

YOUNG_S = 3600
"""A wheel that came within this time may belong to a build that has not written its manifest yet."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Thing:
    """Something that went, or would go. `kind`: release, wheel, cache or leftover."""

    kind: str
    name: str
    path: Path
    build: str = ""
    bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"kind": self.kind, "name": self.name, "build": self.build, "bytes": self.bytes}


@dataclasses.dataclass
class Collected:
    """What came of it.

    Attributes:
        machines: the reports of the containers, ``rackwell.release_gc/1`` and their name. local: None when not asked.
    """

    dry_run: bool
    machines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    local: dict[str, Any] | None = None
    problems: list[Problem] = dataclasses.field(default_factory=list)
    exit_code: ExitCode = ExitCode.DONE

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"dry_run": self.dry_run, "containers": self.machines, "local": self.local}


def collect(path: Path, name: str, progress: Progress, *, dry_run: bool, keep: int, local: bool) -> Collected:
    """Remove what nothing needs.

    Args:
        name: a container; empty for all of them, or with `local` for none.
        keep: how many earlier releases stay, on a container and of each build here.

    Raises:
        RackwellError: the declaration does not hold (exit 2), or another run holds a container (exit 5).
    """
    root = declaration.load(path)
    names = [root.container(name).name] if name else [] if local else list(root.containers)
    done = Collected(dry_run)
    for one in names:
        with container_lock(root.state, one, "gc"):
            target = declared.target(root, one)
            run = RunDirectory.create(root.state, "gc")
            played = plays.play("gc", target, run, progress, extra={"rackwell_gc_keep": keep}, check=dry_run)
            again = f"rackwell gc {one} -i {target.site.path}"
            done.problems += plays.problems(played, again)
            done.exit_code = done.exit_code or played.exit_code
            done.machines += [{"container": one, **found} for found in played.payloads("rackwell.release_gc", one)]
    if local:
        things = superfluous(root.state, keep)
        if not dry_run:
            for thing in things:
                _remove(thing.path)
        done.local = {
            "removed": [thing.as_dict() for thing in things],
            "bytes": sum(thing.bytes for thing in things),
        }
    return done


def superfluous(state: Path, keep: int, young_s: float = YOUNG_S) -> list[Thing]:
    """What in ``SITE/.rackwell`` no build, lock or kept release needs.

    The release that a build's link leads to stays, and of each build the `keep` newest besides; wheels of kept
    releases and of the site's locks stay, so that nothing has to be fetched again for the next build.
    """
    linked = {link.resolve().name for link in (state / "builds").glob("*") if link.is_symlink()}
    releases = [path for path in (state / "releases").glob("*") if _SHA256.fullmatch(path.name)]
    manifests = {path.name: _manifest(path) for path in releases}
    kept = set(linked)
    by_build: dict[str, list[Path]] = {}
    for path in sorted(releases, key=lambda path: path.stat().st_mtime, reverse=True):
        if path.name not in linked:
            by_build.setdefault(str(manifests[path.name].get("name")), []).append(path)
    for paths in by_build.values():
        kept.update(path.name for path in paths[:keep])
    going = [path for path in releases if path.name not in kept]
    things = [_thing("release", path, str(manifests[path.name].get("name") or "")) for path in going]
    things += [
        _thing("cache", path)
        for path in sorted((state / "caches").glob("*"))
        if path.name.endswith((".partial", ".old")) or not any(path.name.startswith(one[:12]) for one in kept)
    ]
    needed = _needed(manifests[one] for one in kept & manifests.keys()) | _locked(state)
    if any(not manifests[one] for one in kept & manifests.keys()):
        return things  # of a release that cannot be read nobody knows the wheels
    now = time.time()
    things += [
        _thing("wheel", path)
        for path in sorted((state / "blobs/sha256").glob("*"))
        if path.name not in needed and now - path.stat().st_ctime >= young_s
    ]
    return things


def _thing(kind: str, path: Path, build: str = "") -> Thing:
    return Thing(kind, path.name, path, build, sum(_sizes(path)))


def _sizes(path: Path) -> Iterator[int]:
    yield path.lstat().st_blocks * 512
    if path.is_dir() and not path.is_symlink():
        for folder, folders, names in os.walk(path):
            for name in [*folders, *names]:
                yield Path(folder, name).lstat().st_blocks * 512


def _manifest(release: Path) -> dict[str, Any]:
    try:
        data = json.loads((release / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _needed(manifests: Iterable[dict[str, Any]]) -> set[str]:
    """Whatever a manifest names by hash: wheels, the installer, sources."""
    return {found for manifest in manifests for found in _SHA256.findall(json.dumps(manifest))}


def _locked(state: Path) -> set[str]:
    """The hashes in the locks of the site's builds: what the next build starts from."""
    found: set[str] = set()
    for path in [*state.parent.glob("builds/*.lock"), *state.parent.glob("builds/*.yml")]:
        try:
            found.update(_SHA256.findall(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # a release is none any more before the first of its files goes
        gone = path.with_name(f".{path.name}.partial")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
