# SPDX-License-Identifier: Apache-2.0
"""A site that takes everything from a mirror: from there to where builds and roles look for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rackwell import shipped
from rackwell.build import load_build
from rackwell.build import lock as locks
from rackwell.build.release import lock_path
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.mirror.store import Entry, Mirror
from rackwell.provision.declared import build_file
from rackwell.provision.progress import Progress
from rackwell.site.declaration import Site
from rackwell.site.inventory import Unresolved
from rackwell.site.node import Node

VARIABLE = "rackwell_mirror"
GIT_PARTS = re.compile(r"(objects|refs)/|(HEAD|packed-refs|shallow)$")
"""Of a bare repository what comes along: nothing that steers git."""
_SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}


def declared(site: Site) -> Mirror | None:
    """The mirror that the site takes everything from; None for a site with a network.

    Raises:
        RackwellError: hosts name different ones, or one that only Ansible can work out (exit 2).
    """
    found: dict[str, str] = {}
    for name in [*site.hosts, *site.containers, *site.routers]:
        value = site.inventory.variables.get(name, {}).get(VARIABLE)
        if not value:
            continue
        where = site.sources.find(name, VARIABLE, site.inventory)
        if isinstance(value, Unresolved) or not isinstance(value, str) or not re.match(r"/|https?://", value):
            what = f"{VARIABLE} is neither a directory nor an http(s) address"
            raise RackwellError(Problem("mirror-invalid", what, where, f"it is {value!r}", ""), ExitCode.INVALID)
        found.setdefault(value, where)
    if len(found) > 1:
        what = "the machines of this site name different mirrors"
        fix = f"set {VARIABLE} once, in group_vars/all.yml"
        raise RackwellError(
            Problem("mirror-invalid", what, next(iter(found.values())), ", ".join(found), fix), ExitCode.INVALID
        )
    return next((Mirror(place, where) for place, where in found.items()), None)


def suite(container: Node) -> str:
    """The suite of Debian that the container's template is of, by its name; empty when that does not tell."""
    found = re.search(r"debian-(\d+)", container.text("pve_container_template") or "")
    return _SUITES.get(found[1], "") if found else ""


def drivers(site: Site) -> Iterator[tuple[str, str]]:
    """File or address, and hash, of each driver that the site declares."""
    found: dict[str, str] = {}
    for container in site.containers.values():
        run_file, sha256 = container.text("nvidia_userspace_run_file"), container.text("nvidia_userspace_sha256")
        if run_file and sha256:
            found.setdefault(sha256, run_file)
    for host in site.hosts.values():
        for pair in host.value("pve_host_drivers") or []:
            found.setdefault(pair.sha256, pair.run_file)
    yield from ((run_file, sha256) for sha256, run_file in found.items())


def lock_of(site: Site, name: str, python: str | None) -> tuple[Path, locks.Lock | None]:
    """Where the lock of build `name` is, and the lock; None when there is none."""
    spec = load_build(build_file(site, name))
    path = lock_path(spec, site.state, shipped.catalog(), python)
    return path, locks.read_lock(path)


def use(site: Site, progress: Progress) -> Mirror | None:
    """Bring from the site's mirror what roles look for on this machine: locks, drivers, templates, Debian packages.

    Returns:
        the mirror, for the builds, which take their wheels from it; None for a site with a network.

    Raises:
        RackwellError: the mirror cannot be read, or lacks something (exit 1).
    """
    mirror = declared(site)
    if mirror is None:
        return None
    count = 0
    for entry in mirror.named("lock"):
        target = site.path / "builds" / Path(entry.path).name
        if not target.exists():
            mirror.bring(entry, target)
            count += 1
    blobs = site.state / "blobs" / "sha256"
    for run_file, sha256 in drivers(site):
        if re.match(r"https?://", run_file) and not (blobs / sha256).is_file():
            mirror.bring(_held(mirror, sha256, run_file.rsplit("/", 1)[-1]), blobs / sha256, 0o444)
            count += 1
    count += _seed_templates(site, mirror, blobs)
    count += _seed_debs(site, mirror)
    if count:
        progress.line("controller", f"{count} files came from the mirror {mirror.place}")
    return mirror


def _held(mirror: Mirror, sha256: str, what: str) -> Entry:
    entry = mirror.find(sha256)
    if entry is None:
        raise mirror.lacks(what)
    return entry


def _seed_templates(site: Site, mirror: Mirror, blobs: Path) -> int:
    count = 0
    for container in site.containers.values():
        sha256 = container.text("pve_container_template_sha256")
        entry = mirror.find(sha256) if sha256 else None
        # one that the mirror does not hold may lie on the host already
        if entry is not None and not (blobs / entry.sha256).is_file():
            mirror.bring(entry, blobs / entry.sha256, 0o444)
            count += 1
    return count


def _seed_debs(site: Site, mirror: Mirror) -> int:
    """``.rackwell/debs/SUITE/``: the packages, and ``index.json`` with hashes and sets, which the module reads."""
    count = 0
    for of in sorted({suite(container) for container in site.containers.values()} - {""}):
        folder = site.state / "debs" / of
        index: dict[str, Any] = {"files": {}, "sets": mirror.manifest.sets.get(of, {})}
        for entry in mirror.named("deb"):
            if entry.suite != of:
                continue
            name = Path(entry.path).name
            index["files"][name] = {"sha256": entry.sha256, "size": entry.size, "package": entry.package}
            target = folder / name
            if not target.is_file() or target.stat().st_size != entry.size:
                mirror.bring(entry, target)
                count += 1
        folder.mkdir(parents=True, exist_ok=True)
        index["sets"] = {name: [Path(path).name for path in paths] for name, paths in index["sets"].items()}
        (folder / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return count


def repositories(mirror: Mirror, state: Path, site_lock: locks.Lock) -> None:
    """Have the local mirrors of the git repositories, for builds whose wheels the mirror does not hold."""
    if not site_lock.git:
        return
    for entry in mirror.named("git"):
        target = state / "git" / f"{entry.name}.git"
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".mirror-") as folder:
            packed = Path(folder) / "packed.tar"
            mirror.bring(entry, packed)
            fresh = Path(folder) / "fresh.git"
            subprocess.run(
                ["git", "init", "--quiet", "--bare", "--template=", "--", str(fresh)],
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
            with tarfile.open(packed) as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    if not member.isfile() or content is None or not GIT_PARTS.match(member.name):
                        continue
                    if ".." in member.name.split("/"):
                        continue
                    place = fresh / member.name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with place.open("wb") as out:
                        shutil.copyfileobj(content, out)
            fresh.rename(target)


def prepare(site: Site, mirror: Mirror, name: str, python: str | None) -> None:
    """What build `name` needs besides wheels: the mirrors of its git repositories."""
    _, lock = lock_of(site, name, python)
    if lock is not None:
        repositories(mirror, site.state, lock)
