# SPDX-License-Identifier: Apache-2.0
"""A commit's files, read from a mirror and checked against the commit's id, hash by hash.

git does not look at every hash when it reads. Here each object's id is computed again, from the commit down to the
files, so that a damaged mirror cannot pass for the source. Nothing is done to the files: no line ends are converted, no
attributes are followed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from pathlib import Path, PurePosixPath

from rackwell.build import gitcommand

_DIRECTORY, _LINK, _SUBMODULE = 0o040000, 0o120000, 0o160000


class DamagedError(Exception):
    """The mirror does not hold the commit whole and true."""


class UnsafeError(Exception):
    """The commit holds a name or a link that leads out of it."""


@dataclasses.dataclass(frozen=True)
class _Object:
    kind: str
    offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class File:
    """One file or link of a commit; `mode` is git's."""

    path: str
    mode: int
    id: str


class Snapshot:
    """The files of one commit.

    Attributes:
        commit: its id.
        tree: the id of its tree.
        time: when it was committed, in seconds since 1970.
        files: its files and links.
        submodules: path -> the commit of another repository that belongs there.
    """

    def __init__(self, mirror: Path, commit: str, folder: Path, where: str) -> None:
        """Read `commit` from `mirror`; its objects go into a file in `folder`.

        Raises:
            DamagedError, UnsafeError, RackwellError: as their names say; the last when git does not end.
        """
        self.commit = commit
        self.files: list[File] = []
        self.submodules: dict[str, str] = {}
        self._objects: dict[str, _Object] = {}
        self._store = folder / f"{commit}.objects"
        self._read(mirror, folder, where)
        head = self._content(commit, "commit").decode(errors="replace").partition("\n\n")[0]
        found = re.match(r"tree ([0-9a-f]{40})\n", head)
        time = re.search(r"^committer .* ([0-9]{1,12}) [+-][0-9]{4}$", head, re.MULTILINE)
        if found is None or time is None:
            raise DamagedError(f"{commit} is not a commit")
        self.tree, self.time = found[1], int(time[1])
        self._walk(self.tree, "")

    def _read(self, mirror: Path, folder: Path, where: str) -> None:
        listed = gitcommand.run(["ls-tree", "-r", "-t", "-z", "--full-tree", self.commit], where, folder=mirror)
        root = gitcommand.run(["rev-parse", "--verify", "--quiet", f"{self.commit}^{{tree}}"], where, folder=mirror)
        if listed.returncode != 0 or root.returncode != 0:
            raise DamagedError(_last(listed.stderr or root.stderr))
        ids = {self.commit, root.stdout.strip()}
        for line in listed.stdout.split("\0"):
            mode, _, rest = line.partition(" ")
            if mode and mode != f"{_SUBMODULE:06o}":
                ids.add(rest.split()[1])
        wanted = folder / f"{self.commit}.ids"
        wanted.write_text("".join(f"{name}\n" for name in sorted(ids)), encoding="ascii")
        done = gitcommand.run(
            ["cat-file", "--batch", "--buffer"],
            where,
            folder=mirror,
            seconds=gitcommand.FETCH_S,
            stdin=wanted,
            stdout=self._store,
        )
        if done.returncode != 0:
            raise DamagedError(_last(done.stderr))
        self._index()

    def _index(self) -> None:
        """Find the objects in the store, and compute each one's id from its content."""
        with self._store.open("rb") as stream:
            while line := stream.readline():
                name, kind, *rest = line.decode("ascii", "replace").split()
                if not rest:
                    raise DamagedError(f"object {name} is {kind}")
                size, offset = int(rest[0]), stream.tell()
                data = stream.read(size)
                stream.read(1)
                # git's own ids; SHA-1 is what names the commit
                if hashlib.sha1(f"{kind} {size}\0".encode() + data, usedforsecurity=False).hexdigest() != name:
                    raise DamagedError(f"object {name} does not have the content that its id says")
                self._objects[name] = _Object(kind, offset, size)

    def _content(self, name: str, kind: str) -> bytes:
        found = self._objects.get(name)
        if found is None or found.kind != kind:
            raise DamagedError(f"{kind} {name} is missing")
        with self._store.open("rb") as stream:
            stream.seek(found.offset)
            return stream.read(found.size)

    def read(self, path: str) -> bytes | None:
        """The content of a file; None when there is no such file."""
        file = next((file for file in self.files if file.path == path and file.mode != _LINK), None)
        return None if file is None else self._content(file.id, "blob")

    def _walk(self, tree: str, above: str) -> None:
        data, at = self._content(tree, "tree"), 0
        seen: set[str] = set()
        while at < len(data):
            end = data.find(b"\0", at)
            mode_text, _, raw = data[at:end].partition(b" ")
            name, mode = raw.decode("utf-8", "replace"), int(mode_text, 8)
            path, child, at = f"{above}{name}", data[end + 1 : end + 21].hex(), end + 21
            if name in seen or not _is_plain(name):
                raise UnsafeError(f"it holds the name {path!r}")
            seen.add(name)
            if mode == _DIRECTORY:
                self._walk(child, f"{path}/")
            elif mode == _SUBMODULE:
                self.submodules[path] = child
            else:
                self.files.append(File(path, mode, child))
                if self._objects.get(child, _Object("", 0, 0)).kind != "blob":
                    raise DamagedError(f"file {path} is missing")

    def export(self, folder: Path) -> None:
        """Write the files below `folder`, with the commit's time and with modes that no umask changes."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.submodules:
            (folder / path).mkdir(parents=True, exist_ok=True)
        with self._store.open("rb") as stream:
            for file in self.files:
                found = self._objects[file.id]
                stream.seek(found.offset)
                self._put(folder / file.path, file, stream.read(found.size))

    def _put(self, path: Path, file: File, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.mode == _LINK:
            target = os.fsdecode(data)
            if _leads_out(file.path, target):
                raise UnsafeError(f"its link {file.path} leads to {target!r}")
            path.symlink_to(target)
        else:
            path.write_bytes(data)
            path.chmod(0o755 if file.mode & 0o111 else 0o644)
        os.utime(path, (self.time, self.time), follow_symlinks=False)


def _is_plain(name: str) -> bool:
    return name.isprintable() and name.casefold() not in {"", ".", "..", ".git"} and "/" not in name and "�" not in name


def _leads_out(path: str, target: str) -> bool:
    if target.startswith("/") or "\0" in target:
        return True
    depth = len(PurePosixPath(path).parts) - 1
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it cannot be read"
