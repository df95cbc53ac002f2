# SPDX-License-Identifier: Apache-2.0
"""What a site needs from outside, brought into a mirror."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from rackwell.acceptance import reaching
from rackwell.build import load_build
from rackwell.errors import Problem, RackwellError
from rackwell.mirror import debian
from rackwell.mirror.store import Entry, Writer, copy, digest, download
from rackwell.provision import builds, mirrored
from rackwell.provision.declared import build_file
from rackwell.provision.progress import Progress
from rackwell.site.declaration import Site
from rackwell.site.node import Node


@dataclasses.dataclass
class Filled:
    """What a mirror came to hold. ``kinds``: kind -> files and bytes."""

    place: Path
    kinds: dict[str, tuple[int, int]]
    added: int
    added_bytes: int
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "mirror": str(self.place),
            "kinds": {kind: {"files": files, "bytes": size} for kind, (files, size) in sorted(self.kinds.items())},
            "added": self.added,
            "added_bytes": self.added_bytes,
            "notes": self.notes,
        }


def fill(site: Site, folder: Path, progress: Progress, *, debs: bool = True) -> Filled:
    """Bring into `folder` all that the site needs and the mirror lacks; builds every release for it.

    Raises:
        RackwellError: something could not be had. What came before stays, and counts the next time.
    """
    progress.safety = "no machine was touched; the mirror holds what came so far, the next run goes on from there"
    writer = Writer(folder)
    notes: list[str] = []
    try:
        for name, python in builds.used(site):
            builds.make(site, name, progress, python=python, online=True)
            _take_build(site, writer, name, python)
            progress.line("mirror", f"build {name}: wheels and sources are there")
        for driver in mirrored.drivers(site):
            _take_driver(writer, *driver)
            progress.line("mirror", f"driver {driver[0].rsplit('/', 1)[-1]}")
        for container in site.containers.values():
            notes += _take_template(site, writer, container, progress)
        if debs:
            _take_debs(site, writer, progress)
        notes += _models(site)
    finally:
        writer.keep()
    kinds: dict[str, tuple[int, int]] = {}
    for entry in writer.manifest.files.values():
        files, size = kinds.get(entry.kind, (0, 0))
        kinds[entry.kind] = (files + 1, size + entry.size)
    return Filled(folder, kinds, writer.added, writer.added_bytes, list(dict.fromkeys(notes)))


def _take_build(site: Site, writer: Writer, name: str, python: str | None) -> None:
    path, lock = mirrored.lock_of(site, name, python)
    if lock is None:
        raise RackwellError(Problem("lock-missing", f"the lock of build {name} is not there", str(path)))
    text = path.read_bytes()
    sha256 = hashlib.sha256(text).hexdigest()
    writer.take(Entry(f"locks/{path.name}", sha256, len(text), "lock", path.name), copy(path))
    blobs = site.state / "blobs" / "sha256"
    for wheel in [*lock.wheels, *(git.wheel for git in lock.git)]:
        source = blobs / wheel.sha256
        size = source.stat().st_size
        entry = Entry(f"blobs/{wheel.sha256}/{wheel.filename}", wheel.sha256, size, "wheel", wheel.filename)
        writer.take(entry, copy(source))
    if lock.git:
        for repository in sorted((site.state / "git").glob("*.git")):
            _take_repository(writer, repository)


def _take_repository(writer: Writer, repository: Path) -> None:
    """A local mirror of a git repository, packed the same way each time."""
    with tempfile.NamedTemporaryFile(dir=writer.folder, prefix=".git-", suffix=".tar") as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for path in sorted(repository.rglob("*")):
                name = path.relative_to(repository).as_posix()
                if path.is_file() and mirrored.GIT_PARTS.match(name):
                    info = tarfile.TarInfo(name)
                    info.size = path.stat().st_size
                    with path.open("rb") as content:
                        archive.addfile(info, content)
        stream.flush()
        packed = Path(stream.name)
        entry = Entry(f"git/{repository.stem}.tar", digest(packed), packed.stat().st_size, "git", repository.stem)
        writer.take(entry, copy(packed))


def _take_driver(writer: Writer, run_file: str, sha256: str) -> None:
    name = run_file.rsplit("/", 1)[-1]
    fetch = download(run_file) if re.match(r"https?://", run_file) else copy(Path(run_file))
    try:
        writer.take(Entry(f"blobs/{sha256}/{name}", sha256, 0, "driver", name), fetch)
    except OSError as error:
        raise RackwellError(
            Problem("driver-file-missing", "a driver's file cannot be read", run_file, error.strerror or str(error))
        ) from error


def _take_template(site: Site, writer: Writer, container: Node, progress: Progress) -> list[str]:
    """The template, from the Proxmox host where it lies. Returns what to tell where it cannot be had."""
    volume = container.text("pve_container_template") or ""
    name = volume.rpartition("/")[2]
    sha256 = container.text("pve_container_template_sha256")
    if not sha256:
        return [f"{container.name}: {name} is not mirrored: pve_container_template_sha256 is not declared"]
    entry = Entry(f"blobs/{sha256}/{name}", sha256, 0, "template", name)
    host = reaching.machine(site, site.hosts[site.host_of(container)])

    def fetch(target: Path) -> None:
        progress.line("mirror", f"template {name}: copying it from {host.name}")
        place = f"$(pvesm path {shlex.quote(volume)})"
        command = ["ssh", *host.arguments, *(("-i", host.key) if host.key else ()), "-p", str(host.port)]
        command += ["-l", host.user, "--", host.address, f'{"sudo -n " if host.sudo else ""}cat "{place}"']
        with target.open("wb") as out:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            why = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise RackwellError(Problem("template-missing", f"{volume} cannot be read on {host.name}", host.name, why))

    writer.take(entry, fetch)
    return []


def packages(site: Site, container: Node) -> list[str]:
    """The Debian packages that roles would install in the container."""
    wanted = ["kmod"]
    if site.inventory.variables[container.name].get("api_proxy_state") not in (None, "absent"):
        wanted += ["nginx", "openssl"]
    if load_build(build_file(site, site.build_name(container, "release"))).cuda is not None:
        wanted += container.value("release_compiler_packages") or []
    return wanted


def _take_debs(site: Site, writer: Writer, progress: Progress) -> None:
    wanted: dict[str, set[str]] = {}
    for container in site.containers.values():
        if of := mirrored.suite(container):
            wanted.setdefault(of, set()).update(packages(site, container))
    for of, names in sorted(wanted.items()):
        with tempfile.TemporaryDirectory(dir=writer.folder, prefix=".apt-") as folder:
            archive = debian.Archive(Path(folder), of)
            for name in sorted(names):
                paths = []
                for deb in archive.bring([name]):
                    path = f"debs/{of}/{deb.path.name}"
                    size, sha256 = deb.path.stat().st_size, digest(deb.path)
                    title = f"{deb.package} {deb.version}"
                    writer.take(Entry(path, sha256, size, "deb", title, of, deb.package), copy(deb.path))
                    paths.append(path)
                writer.manifest.sets.setdefault(of, {})[name] = sorted(paths)
                progress.line("mirror", f"{of}: {name} with what it needs, {len(paths)} packages")


def _models(site: Site) -> list[str]:
    found = []
    for container in site.containers.values():
        model = site.profile(container).model
        if model.repository and not (
            container.text("model_weights_source") or container.text("model_weights_endpoint")
        ):
            found.append(
                f"{container.name}: {model.repository} is not mirrored: set model_weights_source to a directory with it"
            )
    return found
