# SPDX-License-Identifier: Apache-2.0
"""A directory of the host as a source of a snapshot, for hosts that reach no hub.

It must tell its files' hashes, in one of three forms: a snapshot of rackwell (of another host), what
``hf download --local-dir`` leaves, or the cache of huggingface_hub. Nothing is believed: each file is held against its
hash while it is taken.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_store import (
    Entry,
    Place,
    SnapshotError,
    entry,
    read_manifest,
)

_CHUNK = 1 << 22


class Directory:
    """Files that somebody brought."""

    def __init__(self, place: Place, path: str) -> None:
        self.place = place
        self.path = path
        self.endpoint = path
        self._at: dict[str, str] = {}

    def listing(self) -> list[Entry]:
        """Its files with size and hash. Raises SnapshotError when it cannot tell them."""
        if not os.path.isdir(self.path):
            why = "no such directory on the Proxmox host"
            raise SnapshotError(
                "source-missing", "the directory with the model is not there", self.path, why, self._fix()
            )
        if not os.access(self.path, os.R_OK | os.X_OK):
            why, fix = "the user that fetches cannot read it", "chmod -R o+rX %s" % self.path
            raise SnapshotError("source-unreadable", "the directory with the model cannot be read", self.path, why, fix)
        found = self._snapshot() or self._local() or self._cache()
        if not found:
            why = "nothing there tells hashes for commit %s" % self.place.revision
            raise SnapshotError(
                "source-unverifiable", "the model's files cannot be verified", self.path, why, self._fix()
            )
        return found

    def get(self, one: Entry, part: str) -> None:
        """Copy a file into `part`, going on where it ends."""
        with open(self._at[one.path], "rb") as source, open(part, "ab") as stream:
            source.seek(stream.tell())
            while True:
                block = source.read(_CHUNK)
                if not block:
                    break
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())

    def explained(self, error: BaseException, path: str = "") -> SnapshotError:
        """What an error means."""
        why = getattr(error, "strerror", None) or str(error)
        where = os.path.join(self.path, path)
        return SnapshotError("source-failed", "a file of the model cannot be read", where, why, "make it readable")

    def passing(self, _error: BaseException) -> bool:
        """A directory that fails once fails again."""
        return False

    def _fix(self) -> str:
        return (
            "bring it from a machine with internet: hf download %s --revision %s --local-dir DIR, then copy DIR whole "
            "(with DIR/.cache) to %s" % (self.place.repository, self.place.revision, self.path)
        )

    def _take(self, path: str, at: str, told: str) -> Entry:
        raw: dict[str, Any] = {"path": path, "size": os.path.getsize(at)}
        raw["sha256" if len(told) == 64 else "git_sha1"] = told
        self._at[path] = at
        return entry(raw)

    def _snapshot(self) -> list[Entry]:
        """Another host's snapshot."""
        manifest = read_manifest(self.path, self.place.repository, self.place.revision)
        files = list(manifest.files) if manifest else []
        self._at = {one.path: os.path.join(self.path, one.path) for one in files}
        return files

    def _local(self) -> list[Entry]:
        """A directory made by ``hf download --local-dir``: beside each file's data its commit and hash."""
        base = os.path.join(self.path, ".cache", "huggingface", "download")
        found = []
        for folder, _, names in os.walk(base):
            for name in names:
                if not name.endswith(".metadata"):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as stream:
                    lines = [line.strip() for line in stream]
                path = os.path.relpath(os.path.join(folder, name[: -len(".metadata")]), base)
                at = os.path.join(self.path, path)
                if lines[:1] == [self.place.revision] and _is_hash(lines[1]) and os.path.isfile(at):
                    found.append(self._take(path, at, lines[1]))
        return found

    def _cache(self) -> list[Entry]:
        """The cache of huggingface_hub: each file is a link to a blob that is named by its hash."""
        name = "models--" + self.place.repository.replace("/", "--")
        base = os.path.join(self.path, name, "snapshots", self.place.revision)
        found = []
        for folder, _, names in os.walk(base):
            for link in names:
                at = os.path.join(folder, link)
                told = os.path.basename(os.readlink(at)) if os.path.islink(at) else ""
                if _is_hash(told) and os.path.isfile(at):
                    found.append(self._take(os.path.relpath(at, base), at, told))
        return found


def _is_hash(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text))
