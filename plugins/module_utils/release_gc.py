# SPDX-License-Identifier: Apache-2.0
"""Which releases, wheels and caches of a container nothing needs any more, and their removal.

A release is needed by a slot that leads to it, by the way back (the releases that were active before, newest first,
as the host's journal and the last activation tell), by a process that runs from it, and by whoever asks for it by
name. Wheels are needed by needed releases. What a needed release is made of is never touched. Standard library only.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import stat
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import DIGEST, Manifest, ReleaseError

_DIGESTS = re.compile(rb"[0-9a-f]{64}")
#: names of uv's unpacked copies, in its notes
_ARCHIVES = re.compile(rb"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{16,24}(?![A-Za-z0-9_-])")
#: a release that is on its way out; it is none any more under this name
GONE = ".gone-"


class Item(NamedTuple):
    """One thing that goes. `kind`: release, cache, wheel, installer, unpacked or leftover."""

    kind: str
    name: str
    paths: List[str]
    build: str = ""


class Plan(NamedTuple):
    """What stays and what goes.

    Attributes:
        kept: digest -> why, in words. bytes: what the file systems get back, links counted once.
        notes: what could not be told, and was kept for that.
    """

    kept: Dict[str, List[str]]
    items: List[Item]
    sizes: Dict[str, int]
    notes: List[str]

    @property
    def bytes(self) -> int:
        """What the file systems get back."""
        return sum(self.sizes.values())


class Collector:
    """Looks over a store.

    Args:
        root, cache: as of the store. state: where the host keeps its journal. proc: for tests.
    """

    def __init__(self, root: str, cache: str, state: str = "/var/lib/rackwell", proc: str = "/proc") -> None:
        self.root, self.cache, self.state, self.proc = root.rstrip("/"), cache.rstrip("/"), state, proc

    # who needs what

    def slots(self) -> Dict[str, str]:
        """Slot -> digest."""
        found = {}
        for name in _names(self.root):
            path = "%s/%s" % (self.root, name)
            if os.path.islink(path):
                target = os.path.basename(os.readlink(path).rstrip("/"))
                if DIGEST.match(target):
                    found[name] = target
        return found

    def history(self) -> List[str]:
        """Digests of the releases that were seen serving here, the newest first, each once."""
        said: List[str] = []
        for line in (_read("%s/journal.jsonl" % self.state) or "").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # a line that a crash cut off
            if isinstance(record, dict) and record.get("event") in {"activated", "returned"}:
                said.append(str(record.get("release")))
        return list(dict.fromkeys(one for one in reversed(said) if DIGEST.match(one)))

    def way_back(self, keep: int) -> List[str]:
        """The `keep` releases to which the server could return: those that were active before the present one."""
        current = self.slots().get("current")
        return [one for one in self.history() if one != current and os.path.isdir(self._release(one))][:keep]

    def under_way(self) -> Set[str]:
        """Digests that the last activation, finished or not, names."""
        found: Set[str] = set()
        for name in ("activation.json", "previous/state.json", "verified.json", "rollout/change.json"):
            text = _read("%s/%s" % (self.state, name)) or ""
            found.update(match.decode() for match in _DIGESTS.findall(text.encode()))
        return found

    def running(self, digests: Iterable[str]) -> Dict[str, List[int]]:
        """Digest -> processes that run from it, hold a file of it, or were given its caches."""
        wanted = {digest.encode(): digest for digest in digests}
        found: Dict[str, List[int]] = {}
        for pid in [name for name in _names(self.proc) if name.isdigit()]:
            if int(pid) == os.getpid():
                continue
            for digest in set(_DIGESTS.findall(self._about(pid))) & set(wanted):
                found.setdefault(wanted[digest], []).append(int(pid))
        return found

    def _about(self, pid: str) -> bytes:
        """Everything of a process that may name a release."""
        parts: List[bytes] = []
        for name in ("cmdline", "environ", "maps"):
            try:
                with open("%s/%s/%s" % (self.proc, pid, name), "rb") as stream:
                    parts.append(stream.read())
            except OSError:
                continue
        base = "%s/%s" % (self.proc, pid)
        for path in [base + "/exe", base + "/cwd", *("%s/fd/%s" % (base, name) for name in _names(base + "/fd"))]:
            try:
                parts.append(os.fsencode(os.readlink(path)))
            except OSError:
                continue
        return b"\n".join(parts)

    # what goes

    def plan(self, keep: int = 1, wanted: Iterable[str] = ()) -> Plan:
        """Look, and say what stays and what goes.

        Args:
            keep: how many of the releases before the present one stay.
            wanted: digests that stay because somebody asks for it.
        """
        there = [name for name in _names(self.root + "/releases") if DIGEST.match(name)]
        why: Dict[str, List[str]] = {}
        for slot, digest in sorted(self.slots().items()):
            why.setdefault(digest, []).append("slot " + slot)
        for digest in self.way_back(keep):
            why.setdefault(digest, []).append("the way back")
        for digest in sorted(self.under_way()):
            why.setdefault(digest, []).append("the last activation")
        for digest in wanted:
            why.setdefault(digest, []).append("declared")
        cached = [name for name in _names(self.cache) if DIGEST.match(name)]
        for digest, pids in self.running({*there, *cached}).items():
            why.setdefault(digest, []).append("processes " + ", ".join(map(str, sorted(pids)[:5])))
        kept = {digest: why[digest] for digest in there if digest in why}
        items = [Item("release", one, [self._release(one)], self.build(one)) for one in there if one not in why]
        items += [Item("cache", one, ["%s/%s" % (self.cache, one)]) for one in cached if one not in why]
        items += self._leftovers()
        blobs, notes = self._needed_blobs(kept)
        if blobs is not None:
            items += self._wheels(blobs)
        items += self._unpacked({item.name for item in items if item.kind == "release"})
        sizes = _sizes(items)
        return Plan(kept, [item for item in items if item.paths], sizes, notes)

    def remove(self, plan: Plan) -> None:
        """Remove what the plan names. Interrupted anywhere, the next run goes on; nothing half-removed counts."""
        for item in plan.items:
            for path in item.paths:
                self._remove(self._set_aside(path) if item.kind == "release" else path)
                self.reached(item.kind)

    def _set_aside(self, path: str) -> str:
        """A release is none any more before the first of its files goes. Returns where it lies then."""
        _unlink(path + "/complete")
        folder, digest = os.path.split(path)
        gone = "%s/%s%s" % (folder, GONE, digest)
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(path, gone)
        return gone

    @staticmethod
    def _remove(path: str) -> None:
        if os.path.islink(path) or not os.path.isdir(path):
            _unlink(path)
        else:
            shutil.rmtree(path, ignore_errors=True)

    def reached(self, step: str) -> None:
        """Called after each removal; the tests interrupt here."""

    def _release(self, digest: str) -> str:
        return "%s/releases/%s" % (self.root, digest)

    def build(self, digest: str) -> str:
        """Name of the build that a release was made of, empty when its manifest does not tell."""
        try:
            name: str = Manifest(_read(self._release(digest) + "/manifest.json") or "").name
        except ReleaseError:
            return ""
        return name

    def _needed_blobs(self, kept: Iterable[str]) -> Tuple[Optional[Set[str]], List[str]]:
        needed: Set[str] = set()
        for digest in kept:
            path = self._release(digest) + "/manifest.json"
            try:
                manifest = Manifest(_read(path) or "", path)
                if manifest.digest != digest:
                    raise ReleaseError("manifest-malformed", "it was changed")
            except ReleaseError as error:
                return None, ["all wheels are kept: the manifest of %s cannot be used (%s)" % (digest[:12], error)]
            needed.update(manifest.blobs)
        return needed, []

    def _wheels(self, needed: Set[str]) -> List[Item]:
        """A wheel stands in the store twice, under its hash and under its name: the same file."""
        items = []
        stored, named = self.root + "/store/sha256", self.root + "/store/wheels"
        for one in sorted({*_names(stored), *_names(named)} - needed):
            paths = ["%s/%s" % (folder, one) for folder in (stored, named) if os.path.lexists("%s/%s" % (folder, one))]
            items.append(Item("wheel", one, paths))
        installers = self.root + "/uv"
        items += [Item("installer", n, ["%s/%s" % (installers, n)]) for n in _names(installers) if n not in needed]
        return items

    def _leftovers(self) -> List[Item]:
        """What interrupted runs left."""
        folders = (self.root, self.root + "/releases", self.root + "/store", self.cache)
        return [
            Item("leftover", name, ["%s/%s" % (folder, name)])
            for folder in folders
            for name in _names(folder)
            if name.startswith(GONE) or name.endswith(".partial") or (folder == folders[2] and name == "incoming")
        ]

    def _unpacked(self, going: Set[str]) -> List[Item]:
        """Unpacked copies of wheels to which no environment that stays has a link.

        uv's own notes lead to them, and it fails when a note leads nowhere: both go, the note first. What is not laid
        out as expected is left alone.
        """
        cache = self.root + "/cache/uv"
        leaving = _links_of("%s/%s/env" % (self.root + "/releases", one) for one in going)
        archives = {os.path.basename(path): path for path in glob.glob(os.path.realpath(cache) + "/archive-*/*")}
        notes: Dict[str, List[str]] = {archive: [] for archive in archives.values()}
        links: List[str] = []
        for folder, folders, files in os.walk(cache):
            folders[:] = [name for name in folders if not name.startswith("archive-")]
            links += [
                path for name in [*folders, *files] for path in ["%s/%s" % (folder, name)] if os.path.islink(path)
            ]
            for path in ["%s/%s" % (folder, name) for name in files if name.endswith((".rev", ".http"))]:
                # what uv goes by; the link beside it only shows the way
                for name in _ARCHIVES.findall(_bytes(path)):
                    notes.get(archives.get(name.decode(), ""), []).append(path)
        for path in links:
            notes.get(os.path.realpath(path), []).append(path)
        items = []
        for archive, leading in sorted(notes.items()):
            if not _linked(archive, leaving):
                items.append(Item("unpacked", os.path.basename([*leading, archive][-2:][0]), [*leading, archive]))
        return items


Inode = Tuple[int, int]


def _walk(path: str) -> Iterator[os.stat_result]:
    try:
        yield os.lstat(path)
        entries = list(os.scandir(path)) if os.path.isdir(path) and not os.path.islink(path) else []
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            else:
                yield entry.stat(follow_symlinks=False)
        except OSError:
            continue


def _links_of(paths: Iterable[str]) -> Dict[Inode, int]:
    """How many of each file's links lie under `paths`."""
    found: Dict[Inode, int] = {}
    for path in paths:
        for state in _walk(path):
            if stat.S_ISREG(state.st_mode):
                found[state.st_dev, state.st_ino] = found.get((state.st_dev, state.st_ino), 0) + 1
    return found


def _linked(archive: str, leaving: Dict[Inode, int]) -> bool:
    """Whether a file of an unpacked wheel has a link besides its own and those that leave."""
    return any(
        state.st_nlink > 1 + leaving.get((state.st_dev, state.st_ino), 0)
        for state in _walk(archive)
        if stat.S_ISREG(state.st_mode)
    )


def _sizes(items: List[Item]) -> Dict[str, int]:
    """Kind -> bytes that come free: a file counts when its last link goes, for the item in which that is."""
    seen: Dict[Inode, int] = {}
    sizes: Dict[str, int] = {}
    for item in items:
        for path in item.paths:
            for state in _walk(path):
                inode = (state.st_dev, state.st_ino)
                seen[inode] = seen.get(inode, 0) + 1
                if stat.S_ISDIR(state.st_mode) or seen[inode] == state.st_nlink:
                    sizes[item.kind] = sizes.get(item.kind, 0) + 512 * state.st_blocks
    return sizes


def used(path: str) -> int:
    """Bytes that everything under `path` takes on the disk; a file with several links counts once."""
    return sum({(state.st_dev, state.st_ino): 512 * state.st_blocks for state in _walk(path)}.values())


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
