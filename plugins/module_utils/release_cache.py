# SPDX-License-Identifier: Apache-2.0
"""The cache of one release on a container: what it is good for, packing it, and unpacking one that came from elsewhere.

Compiled kernels know paths, GPU, driver and C library, and ninja compares times to the nanosecond: all of it is kept,
and files of the environment are older than any of it (`release_installed.SETTLED_NS`). Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import pwd
import shutil
import socket
import stat
import tarfile
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import bounded
from ansible_collections.rackwell.gpu.plugins.module_utils.release_cache_key import (
    SCHEMA,
    content,
    differences,
    differs,
    key_id,
    safe,
    seal,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError

NOT_CARRIED = ("pycache",)
"""Directories of a cache that stay: compiled Python is made anew in no time."""
COMPILERS = ("ninja", "nvcc", "cicc", "ptxas", "cudafe++", "cc1plus")
_NVML = """
import json, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
text = lambda x: x.decode() if isinstance(x, bytes) else x
print(json.dumps({
    "driver": text(n.nvmlSystemGetDriverVersion()),
    "gpu": ",".join(sorted({text(n.nvmlDeviceGetName(g)) for g in gpus})),
    "gpu_architecture": ",".join(sorted({"%d.%d" % tuple(n.nvmlDeviceGetCudaComputeCapability(g)) for g in gpus})),
}))
"""
_DEADLINE_S = 60
_FOLDER_MODE = 0o755
_CHUNK = 1 << 20


class Entry(NamedTuple):
    """A file of a cache, as it was when it was listed."""

    size: int
    mtime_ns: int
    inode: int
    mode: int


class Cache:
    """The cache of release `digest`.

    Args:
        root: directory of the releases. caches: directory of the caches. proc: for tests.
    """

    def __init__(self, root: str, caches: str, digest: str, proc: str = "/proc") -> None:
        self.root, self.caches, self.digest, self.proc = root.rstrip("/"), caches.rstrip("/"), digest, proc
        self.path = "%s/%s" % (self.caches, digest)

    # what it is good for

    def key(self) -> Dict[str, str]:
        """What has to be the same where this cache is used. Raises ReleaseError when the GPUs cannot be asked."""
        gpus = self.gpus()
        libc = "-".join(platform.libc_ver()) or "unknown"
        return {**gpus, "release": self.digest, "releases": self.root, "caches": self.caches, "libc": libc}

    def gpus(self) -> Dict[str, str]:
        """Driver, names and architectures of the GPUs, as NVML tells them to the probe's Python."""
        python = self.root + "/probe/env/bin/python"
        try:
            done = bounded.run([python, "-I", "-c", _NVML], _DEADLINE_S)
            found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
            why = done.stdout.strip().splitlines()[-1:] or ["it ended with %d" % done.returncode]
        except bounded.DeadlineError as error:
            found, why = None, [str(error)]
        except (OSError, ValueError, IndexError) as error:
            found, why = None, [str(error)]
        if not isinstance(found, dict) or not found.get("gpu"):
            raise ReleaseError(
                "gpu-unknown",
                "the GPUs of the container cannot be asked",
                python,
                why[0][:300],
                "see what is wrong with them: rackwell verify CONTAINER",
            )
        return {str(name): str(value) for name, value in found.items()}

    # what is in it

    def listing(self) -> Dict[str, Entry]:
        """The files that travel, by their path in the cache. Links do not."""
        found: Dict[str, Entry] = {}
        for folder, folders, names in os.walk(self.path):
            inside = os.path.relpath(folder, self.path)
            if inside == ".":
                folders[:] = [name for name in folders if name not in NOT_CARRIED]
            for name in names:
                path = os.path.normpath("%s/%s" % (inside, name))
                try:
                    state = os.lstat("%s/%s" % (folder, name))
                except OSError:
                    continue
                if stat.S_ISREG(state.st_mode) and not name.endswith(".lock") and safe(path):
                    found[path] = Entry(state.st_size, state.st_mtime_ns, state.st_ino, stat.S_IMODE(state.st_mode))
        return found

    def compiling(self) -> List[str]:
        """Compilers that run now."""
        found = []
        for pid in filter(str.isdigit, os.listdir(self.proc)):
            try:
                with open("%s/%s/comm" % (self.proc, pid), encoding="utf-8", errors="replace") as stream:
                    name = stream.read().strip()
            except OSError:
                continue
            if name in COMPILERS:
                found.append("%s (process %s)" % (name, pid))
        return sorted(found)

    # out and in

    def pack(self, archive: str, user: str) -> Dict[str, Any]:
        """Write the cache to `archive`, a gzipped tar. Returns its paper.

        Raises:
            ReleaseError: there is nothing in it, or it is being written.
        """
        key = self.key()
        busy = self.compiling()
        if busy:
            raise self._busy("a compiler runs: " + ", ".join(busy))
        account = pwd.getpwnam(user)
        # the service's user owns the tree and could lead root astray with links: it is read with that user's rights
        with open(archive, "wb") as out, _as_user(account.pw_uid, account.pw_gid):
            before = self.listing()
            if not before:
                raise ReleaseError(
                    "cache-empty",
                    "nothing has been compiled in this release's cache",
                    self.path,
                    "it holds no file",
                    "let the server serve once, then capture again",
                )
            files = self._write(out, before)
            changed = [path for path, entry in self.listing().items() if before.get(path) != entry]
        if changed:
            raise self._busy("changed meanwhile: " + ", ".join(changed[:3]))
        paper: Dict[str, Any] = seal(
            {
                "schema": SCHEMA,
                "id": key_id(key),
                "key": key,
                "captured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "machine": socket.gethostname(),
                "files": files,
                "bytes": sum(one["size"] for one in files),
                "content": content(files),
                "archive": {"sha256": _sha256(archive), "size": os.stat(archive).st_size},
            }
        )
        return paper

    def _write(self, out: Any, listing: Dict[str, Entry]) -> List[Dict[str, Any]]:
        files: List[Dict[str, Any]] = []
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=3) as packed:
            for path, entry in sorted(listing.items()):
                try:
                    handle = os.open("%s/%s" % (self.path, path), os.O_RDONLY | os.O_NOFOLLOW)
                except OSError:
                    raise self._busy("%s went away" % path) from None
                with open(handle, "rb") as stream:
                    reader = _Hashing(stream)
                    info = tarfile.TarInfo(path)
                    info.size = entry.size
                    try:
                        packed.addfile(info, reader)
                    except OSError as error:
                        if error.errno is None:  # tarfile's word for a file that became shorter
                            raise self._busy("%s was cut" % path) from None
                        raise
                files.append(
                    {
                        "path": path,
                        "size": entry.size,
                        "sha256": reader.digest.hexdigest(),
                        "mode": entry.mode & 0o777,
                        "mtime_ns": entry.mtime_ns,
                    }
                )
        return files

    def _busy(self, why: str) -> ReleaseError:
        fix = "wait until the server is ready and idle, then capture again"
        return ReleaseError("cache-busy", "the cache is being written", self.path, why, fix)

    def untouched(self) -> bool:
        """Whether nothing is in the cache yet, so that one from elsewhere may take its place."""
        try:
            return not [name for name in os.listdir(self.path) if name not in NOT_CARRIED]
        except FileNotFoundError:
            return True

    def unpack(self, archive: str, paper: Dict[str, Any], user: str) -> None:
        """Put a captured cache in the place of this one, which must be untouched; whole or not at all.

        Raises:
            ReleaseError: the key differs, or a file is not what the paper says.
        """
        found = differences(self.key(), paper["key"])
        if found:
            raise ReleaseError(
                "cache-key-differs",
                "the captured cache is of another kind of machine or release",
                paper["id"],
                differs(found),
                "capture one from a container of this kind: rackwell cache capture CONTAINER",
            )
        account = pwd.getpwnam(user)
        fresh = "%s/.%s.partial" % (self.caches, self.digest)
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(fresh, mode=0o700)
        try:
            self._extract(archive, fresh, {one["path"]: one for one in paper["files"]})
            self.reached("unpacked")
            for folder, _folders, names in os.walk(fresh):
                os.chmod(folder, _FOLDER_MODE)
                for path in (folder, *("%s/%s" % (folder, name) for name in names)):
                    os.chown(path, account.pw_uid, account.pw_gid)
            os.sync()
            self.reached("owned")
            for name in NOT_CARRIED:
                if os.path.isdir("%s/%s" % (self.path, name)):
                    os.rename("%s/%s" % (self.path, name), "%s/%s" % (fresh, name))
            os.makedirs(self.path, exist_ok=True)
            os.rename(fresh, self.path)  # only over an empty directory
            self.reached("in place")
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def reached(self, step: str) -> None:
        """Called after each step; the tests interrupt here."""

    def _extract(self, archive: str, folder: str, wanted: Dict[str, Dict[str, Any]]) -> None:
        left = dict(wanted)
        try:
            with tarfile.open(archive, "r:gz") as packed:
                for info in packed:
                    one = left.pop(info.name, None)
                    source = packed.extractfile(info) if info.isreg() else None
                    if one is None or source is None or info.size != one["size"]:
                        raise _damaged(archive, "it holds %r, which its paper does not name so" % info.name)
                    path = "%s/%s" % (folder, info.name)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    reader = _Hashing(source)
                    with open(path, "xb") as stream:
                        shutil.copyfileobj(reader, stream, _CHUNK)
                    if reader.digest.hexdigest() != one["sha256"]:
                        raise _damaged(archive, "the hash of %s does not hold" % info.name)
                    os.chmod(path, one["mode"] & 0o755)
                    os.utime(path, ns=(one["mtime_ns"], one["mtime_ns"]))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise _damaged(archive, str(error)) from error
        except OSError as error:
            if error.errno is None:  # what gzip raises for a wrong checksum
                raise _damaged(archive, str(error)) from error
            raise
        if left:
            raise _damaged(archive, "%d files are missing, %s first" % (len(left), min(left)))


class _Hashing:
    """A stream that is hashed as it is read."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.stream.read(size)
        self.digest.update(data)
        return data


@contextlib.contextmanager
def _as_user(uid: int, gid: int) -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    groups: Tuple[List[int], int] = (os.getgroups(), os.getegid())
    os.setgroups([gid])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(groups[1])
        os.setgroups(groups[0])


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()


def _damaged(archive: str, why: str) -> ReleaseError:
    fix = "capture it again: rackwell cache capture CONTAINER"
    return ReleaseError("cache-damaged", "a captured cache is damaged", archive, why, fix)
