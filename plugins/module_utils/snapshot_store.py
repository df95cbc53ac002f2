# SPDX-License-Identifier: Apache-2.0
"""Snapshots of model repositories on a Proxmox host: where they lie, what is in them, and whether it is whole.

A snapshot is ``DIR/ORG--NAME/COMMIT/``. It becomes visible by one rename, when every file is there and was held against
its hash; until then its files lie in ``DIR/ORG--NAME/.COMMIT.partial/``. Beside them lies a manifest, written last.
Uses the standard library only: the Ansible module and the program that fetches share it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Optional

SCHEMA = "rackwell.weights/1"
#: Name of the manifest in a snapshot.
MANIFEST = ".rackwell-weights.json"
PARTS = ".parts"
REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 22


class SnapshotError(Exception):
    """What is wrong, in the five parts of every error."""

    def __init__(self, code: str, what: str, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__("%s: %s" % (what, why) if why else what)
        self.parts = {"code": code, "what": what, "where": where, "why": why, "fix": fix}


@dataclass(frozen=True)
class Entry:
    """A file of a repository at a commit.

    Attributes:
        path: in the repository, with slashes.
        size: bytes.
        sha256: what the pointer of a large file says; None for a small one.
        git_sha1: git's blob id of a small file; None for a large one, whose blob is its pointer.
    """

    path: str
    size: int
    sha256: Optional[str]
    git_sha1: Optional[str]

    @property
    def hash(self) -> str:
        """The hash that its content must have, with the kind before it."""
        return "sha256:%s" % self.sha256 if self.sha256 else "git:%s" % self.git_sha1

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "git_sha1": self.git_sha1}


def entry(raw: dict[str, Any]) -> Entry:
    """One file as the hub or a manifest tells it; refuses what could lead out of the snapshot, or has no hash."""
    path, size = raw.get("path"), raw.get("size")
    sha256, git_sha1 = raw.get("sha256"), raw.get("git_sha1")
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") for part in parts) or not str(path).isprintable() or "\\" in str(path):
        raise _unfit(path, "its name could lead out of the snapshot")
    if parts[0] in (MANIFEST, PARTS):
        raise _unfit(path, "rackwell keeps its own notes under that name")
    if not isinstance(size, int) or size < 0:
        raise _unfit(path, "its size is not told")
    if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", str(sha256)):
        raise _unfit(path, "its SHA-256 is none")
    if sha256 is None and not re.fullmatch(r"[0-9a-f]{40}", str(git_sha1)):
        raise _unfit(path, "no hash of it is told")
    return Entry(str(path), size, sha256, None if sha256 else git_sha1)


def _unfit(path: object, why: str) -> SnapshotError:
    what = "a file of the repository cannot be taken"
    return SnapshotError("weights-unfit", what, str(path)[:200], why, "leave it out: model.ignore in the profile")


def chosen(entries: Iterable[Entry], include: Iterable[str], ignore: Iterable[str]) -> list[Entry]:
    """The files that patterns choose, as huggingface_hub reads them: ``*`` crosses slashes, ``dir/`` is all in it."""
    wanted = [pattern + "*" if pattern.endswith("/") else pattern for pattern in include]
    unwanted = [pattern + "*" if pattern.endswith("/") else pattern for pattern in ignore]

    def takes(path: str) -> bool:
        if wanted and not any(fnmatch.fnmatch(path, pattern) for pattern in wanted):
            return False
        return not any(fnmatch.fnmatch(path, pattern) for pattern in unwanted)

    return [one for one in entries if takes(one.path)]


@dataclass(frozen=True)
class Place:
    """Where a snapshot lies."""

    directory: str
    repository: str
    revision: str

    @property
    def parent(self) -> str:
        """All revisions of the repository."""
        return os.path.join(self.directory, self.repository.replace("/", "--"))

    @property
    def final(self) -> str:
        """The snapshot, once it is whole."""
        return os.path.join(self.parent, self.revision)

    @property
    def staging(self) -> str:
        """Where it is put together."""
        return os.path.join(self.parent, ".%s.partial" % self.revision)

    @property
    def parts(self) -> str:
        """Files that have begun to arrive, each under the name of its hash."""
        return os.path.join(self.staging, PARTS)


@dataclass(frozen=True)
class Manifest:
    """What a snapshot holds. ``files`` are there and were held against their hashes, ``left_out`` were not wanted."""

    files: tuple[Entry, ...]
    left_out: tuple[Entry, ...]

    @property
    def all(self) -> list[Entry]:
        """Every file that the repository has at the commit."""
        return [*self.files, *self.left_out]


def read_manifest(folder: str, repository: str, revision: str) -> Optional[Manifest]:
    """The manifest in `folder`; None when there is none, or it is no whole manifest of this snapshot."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as stream:
            raw = json.load(stream)
        if (raw["schema"], raw["repository"], raw["revision"]) != (SCHEMA, repository, revision):
            return None
        return Manifest(tuple(map(entry, raw["files"])), tuple(map(entry, raw["left_out"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SnapshotError):
        return None


def write_manifest(folder: str, place: Place, manifest: Manifest, **about: Any) -> None:
    """Write the manifest by rename, on the disk when this returns. ``about``: endpoint, time, versions."""
    raw = {
        "schema": SCHEMA,
        "repository": place.repository,
        "revision": place.revision,
        **about,
        "files": [one.as_dict() for one in sorted(manifest.files, key=lambda one: one.path)],
        "left_out": [one.as_dict() for one in sorted(manifest.left_out, key=lambda one: one.path)],
    }
    path = os.path.join(folder, MANIFEST)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(raw, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
        os.fchmod(stream.fileno(), 0o644)
    os.replace(path + ".new", path)
    flush_folder(folder)


def flush_folder(path: str) -> None:
    """The names in a directory are on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fault(folder: str, one: Entry) -> Optional[str]:
    """What a cheap look finds wrong with a file: it is not there, no plain file, or of another size."""
    path = os.path.join(folder, one.path)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if not stat.S_ISREG(found.st_mode):
        return "no plain file"
    if found.st_size != one.size:
        return "%d bytes instead of %d" % (found.st_size, one.size)
    return None


def digest(path: str, one: Entry, seen: Callable[[int], None] = lambda _: None) -> str:
    """The hash of a file's content, in the form of `Entry.hash`. ``seen`` gets the bytes of each block read."""
    # git's blob id is a SHA-1; it is compared here with what the hub tells, and signs nothing
    made = hashlib.sha256() if one.sha256 else hashlib.sha1(b"blob %d\0" % os.path.getsize(path))  # noqa: S324
    with open(path, "rb") as stream:
        while True:
            block = stream.read(_CHUNK)
            if not block:
                break
            made.update(block)
            seen(len(block))
    return "%s:%s" % ("sha256" if one.sha256 else "git", made.hexdigest())


def others(place: Place) -> list[dict[str, Any]]:
    """The other revisions of the repository that lie there: ``revision``, ``complete``, ``bytes``."""
    found = []
    for name in sorted(_names(place.parent)):
        partial = re.fullmatch(r"\.([0-9a-f]{40})\.partial", name)
        revision = partial.group(1) if partial else name
        if revision == place.revision or not COMMIT.fullmatch(revision):
            continue
        path = os.path.join(place.parent, name)
        whole = not partial and read_manifest(path, place.repository, revision) is not None
        found.append({"revision": revision, "complete": whole, "bytes": sum(_sizes(path))})
    return found


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _sizes(path: str) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue


def shards_left_out(folder: str, wanted: Iterable[Entry]) -> list[str]:
    """The shards that an index of safetensors names and the wanted files lack."""
    paths = {one.path for one in wanted}
    lacking: set[str] = set()
    for path in sorted(paths):
        if path.endswith(".safetensors.index.json"):
            try:
                with open(os.path.join(folder, path), encoding="utf-8") as stream:
                    named = set(json.load(stream)["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
            base = os.path.dirname(path)
            lacking |= {name for name in (os.path.join(base, str(one)) for one in named) if name not in paths}
    return sorted(lacking)
