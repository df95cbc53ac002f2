# SPDX-License-Identifier: Apache-2.0
"""From a build to a release: a manifest, the digest of its bytes, and the wheels it names in the store."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rackwell.build import compiler, gitbuild, provenance, sbom, series
from rackwell.build import lock as locks
from rackwell.build.fetch import Blobs, fetch
from rackwell.build.files import link_atomically, scratch, sha256_of, telling_file_errors, write_atomically
from rackwell.build.model import BuildSpec, Source
from rackwell.build.probewheel import probe_wheel
from rackwell.build.wheelfile import MALFORMED, PLATFORM, Wheel, WheelName, best, patched
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.mirror.store import Mirror
from rackwell.site.files import is_file

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Release:
    """A made release.

    Attributes:
        digest: SHA-256 of ``manifest.json``.
        path: its directory, ``.rackwell/releases/<digest>``.
        manifest: the manifest's content.
        changed: whether this call made it, mended what lies beside its manifest, or moved the build's link to it.
    """

    digest: str
    path: Path
    manifest: dict[str, Any]
    changed: bool


@dataclasses.dataclass(frozen=True)
class _Packed:
    """One wheel of the release, in the store."""

    filename: str
    sha256: str
    size: int
    project: str
    version: str


def make_release(
    spec: BuildSpec,
    *,
    site_state: Path,
    catalog: Path,
    progress: Progress,
    relock: bool = False,
    python: str | None = None,
    mirror: Mirror | None = None,
) -> Release:
    """Make the release of `spec`, or find it made.

    Args:
        site_state: ``SITE/.rackwell``.
        catalog: the directory with ``patches/`` and ``builds/``.
        progress: gets one line for each thing that is done.
        relock: resolve again though the build's inputs are as they were.
        python: the container's Python, for builds that follow it; else the build file's. A version other than the build
            file's has a lock of its own, ``NAME-py3.13.lock``, and a link of that name beside the build's.
        mirror: where all wheels come from; nothing else is asked, then.

    Raises:
        RackwellError: the build does not hold (exit 2), or it could not be made (exit 1). Nothing half-made stays.
    """
    started = provenance.now()
    state = site_state.absolute()
    version = python or spec.python
    suffix = "" if version == spec.python else f"-py{version}"
    patches = series.find_patches(spec, catalog)
    for patch in patches:
        if patch.meta.status == "harmful":
            progress(f"WARNING: harmful patch {patch.name}: {patch.meta.risk.strip()}")
            progress(f"WARNING: its risk is accepted in {patch.where}: {patch.accept_risk}")
        if not patch.meta.touches_at(patch.version):
            progress(f"note: the engine does not run what patch {patch.name} changes in {patch.version}")
    with telling_file_errors(state), scratch(state) as folder:
        blobs = Blobs(state, mirror)
        yard = gitbuild.Yard(spec, state, blobs, folder, progress)
        lock_path = _lock_path(spec, state, catalog, suffix)
        lock = _lock(yard, lock_path, version, relock)
        _check_sources(spec, lock)
        # what is only passed on, and untouched since it was hashed, is taken at its word: staging hashes it again
        passed_on = {wheel.sha256 for wheel in (lock.installer, *lock.dependencies)}
        packed, own = _bring(yard, lock, version, patches, passed_on)
        _refuse_clash(spec, packed)
        packed.sort(key=lambda wheel: wheel.filename)
        requirements = _requirements(packed)
        manifest = _manifest(spec, version, lock, patches, packed, _as_packed(blobs, lock.installer), requirements)
        run = provenance.Run(spec, lock_path, lock, patches, started)

        def beside(digest: str, there: Path) -> dict[str, bytes]:
            mine = frozenset(wheel.sha256 for wheel in own)
            bill = sbom.render(sbom.Materials(manifest, digest, blobs.folder, patches, mine))
            if _is(there / sbom.NAME, bill) and (there / provenance.NAME).is_file():
                return {}
            return {sbom.NAME: bill, provenance.NAME: provenance.render(run, manifest, digest, bill)}

        release = _put(state, spec.name, suffix, manifest, requirements, beside, folder, progress)
        everything = {wheel.sha256 for wheel in [*lock.wheels, *(git.wheel for git in lock.git)]}
        everything |= {wheel.sha256 for wheel in packed}
        # found made: somebody may have come back because it is damaged
        if not release.changed and blobs.missing(everything):
            progress(f"release {release.digest[:12]}: files of it were damaged or gone, bringing them again")
            _bring(yard, lock, version, patches, ())
        blobs.remember(everything)
        return release


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The one form of a manifest that counts: its SHA-256 is the release's digest."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def lock_path(spec: BuildSpec, state: Path, catalog: Path, python: str | None) -> Path:
    """Where the lock of a build is, for the Python that it is made for."""
    return _lock_path(spec, state, catalog, "" if python in (None, spec.python) else f"-py{python}")


def _lock_path(spec: BuildSpec, state: Path, catalog: Path, suffix: str) -> Path:
    """Beside the build file; for a build that ships with rackwell, in the site."""
    shipped = spec.path.absolute().parent == (catalog / "builds").absolute()
    folder = state.parent / "builds" if shipped else spec.path.parent
    return folder / f"{spec.name}{suffix}.lock"


def _lock(yard: gitbuild.Yard, path: Path, python: str, relock: bool) -> locks.Lock:
    spec, progress = yard.spec, yard.progress
    inputs = locks.inputs_digest(spec, python)
    found = None if relock else locks.read_lock(path)
    if not relock and (found is None or found.inputs != inputs):
        found = _shipped_lock(spec, path, inputs, progress) or found
    if found is not None and found.inputs == inputs:
        progress(f"lock {path.name}: {len(found.wheels)} wheels, unchanged")
        return found
    if yard.blobs.mirror is not None:
        raise _unresolved(path, yard.blobs.mirror, found is not None)
    reason = "asked for" if relock else "the build's inputs changed" if found else "there is none yet"
    progress(f"lock {path.name}: resolving ({reason})")
    lock = locks.resolve(spec, python, gitbuild.lock_git(yard))
    locks.write_lock(path, lock)
    progress(f"lock {path.name}: {len(lock.wheels)} wheels")
    return lock


def _unresolved(path: Path, mirror: Mirror, other: bool) -> RackwellError:
    why = "its lock is of other inputs" if other else "it has no lock"
    return RackwellError(
        Problem(
            "lock-missing",
            f"which wheels the build takes cannot be found out: {why}, and this site asks no index",
            str(path),
            f"everything comes from {mirror.place}",
            "run `rackwell mirror` where there is a network, and bring the lock over with the mirror",
        ),
        ExitCode.INVALID,
    )


def _shipped_lock(spec: BuildSpec, path: Path, inputs: str, progress: Progress) -> locks.Lock | None:
    """The lock that ships beside a build that ships, copied to `path` in the site; None when it is of other inputs."""
    beside = spec.path.with_name(path.name)
    found = None if beside == path else locks.read_lock(beside)
    if found is None or found.inputs != inputs:
        return None
    locks.write_lock(path, found)
    progress(f"lock {path.name}: as it ships with rackwell")
    return found


def _check_sources(spec: BuildSpec, lock: locks.Lock) -> None:
    for wheel in lock.sources:
        declared = spec.sources[wheel.project].sha256
        if declared is not None and declared != wheel.sha256:
            raise RackwellError(
                Problem(
                    "hash-mismatch",
                    f"{wheel.project} {wheel.version} does not have the declared hash",
                    spec.where("sources", wheel.project, "sha256"),
                    f"{declared} declared, {wheel.filename} has {wheel.sha256}",
                    "find out which is right; do not use the wheel before",
                ),
                ExitCode.INVALID,
            )


def _bring(
    yard: gitbuild.Yard,
    lock: locks.Lock,
    python: str,
    patches: list[series.Patch],
    trusted: Collection[str],
) -> tuple[list[_Packed], list[_Packed]]:
    """All wheels of the release, brought into the store; and those among them that no index has."""
    spec, blobs, progress = yard.spec, yard.blobs, yard.progress
    fetch(lock.wheels, python, blobs, yard.fresh("fetch"), progress, trusted)
    if gitbuild.bring_git(yard, lock.git):
        progress("the git sources came out as locked")
    packed = [_as_packed(blobs, wheel) for wheel in lock.dependencies]
    packed += [_patch(patches, blobs, wheel, progress) for wheel in lock.sources]
    packed += [_patch(patches, blobs, git.wheel, progress) for git in lock.git]
    own = _own(spec, python, blobs)
    if spec.probe:
        own.append(_made(blobs, *probe_wheel()))
    nvcc = compiler.nvcc_version(spec, ((wheel.project, wheel.version) for wheel in packed))
    if nvcc is not None:
        own.append(_made(blobs, *compiler.home_wheel(nvcc)))
    return [*packed, *own], own


def _as_packed(blobs: Blobs, wheel: locks.LockedWheel) -> _Packed:
    size = blobs.path(wheel.sha256).stat().st_size
    return _Packed(wheel.filename, wheel.sha256, size, wheel.project, wheel.version)


def _patch(patches: list[series.Patch], blobs: Blobs, source: locks.LockedWheel, progress: Progress) -> _Packed:
    """The source's wheel with its patches, or as it is when it has none."""
    mine = [patch for patch in patches if patch.meta.project == source.project]
    if not mine:
        return _as_packed(blobs, source)
    identity = "".join(f"{digest}\n" for digest in [source.sha256, *(patch.sha256 for patch in mine)])
    tag = hashlib.sha256(identity.encode()).hexdigest()[:8]
    try:
        with Wheel(blobs.path(source.sha256), source.filename) as wheel:
            changes = series.apply_series(mine, source.version, wheel.read)
            filename, data = patched(wheel, changes, tag)
    except MALFORMED as error:
        raise RackwellError(
            Problem(
                "wheel-malformed",
                f"{source.filename} cannot be patched",
                mine[0].where,
                str(error) or type(error).__name__,
                "pin another version of it, or take its patches out of the build",
            )
        ) from error
    for patch in mine:
        hunks = sum(len(file.hunks) for file in patch.files)
        size = f"{_count(hunks, 'hunk')} in {_count(len(patch.files), 'file')}"
        progress(f"patch {patch.name}: {size} of {source.project} {source.version}")
    digest = hashlib.sha256(data).hexdigest()
    if not blobs.holds(digest):
        blobs.add_bytes(data, digest)
    return _Packed(filename, digest, len(data), source.project, source.version)


def _own(spec: BuildSpec, python: str, blobs: Blobs) -> list[_Packed]:
    packed: list[_Packed] = []
    problems: list[Problem] = []
    for index, own in enumerate(spec.wheels):
        path = spec.path.parent / own.path
        where = spec.where("wheels", index, "path")
        if not is_file(path):
            problems.append(
                Problem("wheel-missing", f"{own.path} does not exist", where, f"looked at {path}", "give its path")
            )
            continue
        try:
            name = WheelName.parse(path.name)
            with Wheel(path) as wheel:
                project, version = wheel.metadata()
        except MALFORMED as error:
            problems.append(
                Problem(
                    "wheel-malformed", f"{own.path} is not a wheel", where, str(error) or repr(error), "build it anew"
                )
            )
            continue
        if (canonicalize_name(project), _normal(version)) != (name.project, name.version):
            why = f"its metadata says {project} {version}"
            problems.append(
                Problem("wheel-malformed", f"{own.path} is not what its name says", where, why, "rename it")
            )
            continue
        if best([path.name], python) is None:
            why = f"its tags are {', '.join(sorted(map(str, name.tags)))}"
            fix = "build it for this Python and platform"
            problems.append(Problem("wheel-unfit", f"{own.path} does not fit Python {python}", where, why, fix))
            continue
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if own.sha256 is not None and own.sha256 != digest:
            where = spec.where("wheels", index, "sha256")
            why = f"{own.sha256} declared, {digest} found"
            fix = "find out which is right; do not use the wheel before"
            problems.append(Problem("hash-mismatch", f"{own.path} does not have the declared hash", where, why, fix))
            continue
        if not blobs.holds(digest):
            blobs.add_bytes(data, digest)
        packed.append(_Packed(path.name, digest, len(data), name.project, name.version))
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)
    return packed


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _normal(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion:
        return version


def _made(blobs: Blobs, filename: str, data: bytes) -> _Packed:
    """A wheel that was made here, put into the store."""
    name = WheelName.parse(filename)
    digest = hashlib.sha256(data).hexdigest()
    if not blobs.holds(digest):
        blobs.add_bytes(data, digest)
    return _Packed(filename, digest, len(data), name.project, name.version)


def _refuse_clash(spec: BuildSpec, packed: list[_Packed]) -> None:
    seen: dict[str, str] = {}
    for wheel in packed:
        if wheel.project in seen:
            raise RackwellError(
                Problem(
                    "given-twice",
                    f"the build brings {wheel.project} twice",
                    spec.where("wheels"),
                    f"as {seen[wheel.project]} and as {wheel.filename}",
                    "remove the wheel, or the requirement that leads to the other",
                ),
                ExitCode.INVALID,
            )
        seen[wheel.project] = wheel.filename


def _requirements(packed: list[_Packed]) -> bytes:
    lines = sorted(f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in packed)
    return "".join(f"{line}\n" for line in lines).encode()


def _manifest(
    spec: BuildSpec,
    python: str,
    lock: locks.Lock,
    patches: list[series.Patch],
    packed: list[_Packed],
    installer: _Packed,
    requirements: bytes,
) -> dict[str, Any]:
    return {
        "schema": "rackwell.release/1",
        "name": spec.name,
        "python": python,
        "platform": PLATFORM,
        "sources": [
            *(
                {"project": w.project, "version": w.version, "wheel": w.filename, "sha256": w.sha256}
                for w in sorted(lock.sources)
            ),
            *(_git_source(spec.sources[git.wheel.project], git) for git in sorted(lock.git)),
        ],
        "patches": [
            {
                "name": patch.meta.name,
                "project": patch.meta.project,
                "file": patch.diff.name,
                "sha256": patch.sha256,
                "files": [file.path for file in patch.files],
                "needs_flags": patch.meta.flags_for(patch.version),
                "status": patch.meta.status,
                "touches_code_path": patch.meta.touches_at(patch.version),
                **({} if patch.accept_risk is None else {"accept_risk": patch.accept_risk}),
            }
            for patch in patches
        ],
        "wheels": [dataclasses.asdict(wheel) for wheel in packed],
        "uv": {"filename": installer.filename, "sha256": installer.sha256, "size": installer.size},
        "requirements_sha256": hashlib.sha256(requirements).hexdigest(),
        **compiler.manifest_entry(spec, python, ((wheel.project, wheel.version) for wheel in packed)),
    }


def _git_source(source: Source, git: locks.LockedGit) -> dict[str, Any]:
    wheel = git.wheel
    return {
        "project": wheel.project,
        "version": wheel.version,
        "wheel": wheel.filename,
        "sha256": wheel.sha256,
        "git": {
            "url": source.git,
            "commit": git.commit,
            "tree": git.tree,
            "subdirectory": source.subdirectory,
            "submodules": [dataclasses.asdict(sub) for sub in sorted(git.submodules)],
        },
    }


def _put(
    state: Path,
    name: str,
    suffix: str,
    manifest: dict[str, Any],
    requirements: bytes,
    beside: Callable[[str, Path], dict[str, bytes]],
    folder: Path,
    progress: Progress,
) -> Release:
    """The release's directory, made whole and then renamed; then the links of the build.

    Args:
        beside: what lies beside the manifest and is not, or not rightly, in the given directory: name -> content.
    """
    data = manifest_bytes(manifest)
    digest = hashlib.sha256(data).hexdigest()
    path = state / "releases" / digest
    made = not _is_made(path, digest, requirements)
    extras = beside(digest, path)
    if made:
        fresh = folder / digest
        fresh.mkdir()
        kept = {} if extras else {name: (path / name).read_bytes() for name in (sbom.NAME, provenance.NAME)}
        contents = {**kept, **extras, "requirements.txt": requirements, "manifest.json": data}
        for filename, content in contents.items():
            with (fresh / filename).open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():  # damaged
            shutil.move(path, folder / "damaged")
        fresh.rename(path)
    else:
        for filename, content in extras.items():
            write_atomically(path / filename, content)
    target = f"../releases/{digest}"
    moved = link_atomically(state / "builds" / name, target)
    if suffix:
        moved = link_atomically(state / "builds" / f"{name}{suffix}", target) or moved
    size = sum(wheel["size"] for wheel in manifest["wheels"])
    progress(f"release {digest[:12]} of {name}: {len(manifest['wheels'])} wheels, {size / 1e6:,.0f} MB")
    return Release(digest, path, manifest, made or moved or bool(extras))


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _is_made(path: Path, digest: str, requirements: bytes) -> bool:
    try:
        return sha256_of(path / "manifest.json") == digest and (path / "requirements.txt").read_bytes() == requirements
    except OSError:
        return False
