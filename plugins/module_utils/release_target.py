# SPDX-License-Identifier: Apache-2.0
"""The store of releases on a container: wheels by hash, environments by digest, slots as links.

    ROOT/store/sha256/<hex>      wheels
    ROOT/store/wheels/<hex>/     the same under the name that an installer wants (hard links)
    ROOT/uv/<hex>/uv             the installer, by the hash of its wheel
    ROOT/cache/uv                what uv unpacked; environments are hard links into it
    ROOT/releases/<digest>/      manifest.json requirements.txt release.env env/ complete, and what stands beside the
                                 manifest on the controller: bill of materials, provenance, signature
    ROOT/<slot>                  -> releases/<digest>
    CACHE/<digest>/              caches of what runs, owned by the service user

Every step looks before it acts and leaves the thing whole or not at all; ``complete`` is written when all else is on
the disk. So whatever was interrupted, the same calls again bring the store to where it belongs. Standard library only.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import fcntl
import glob
import hashlib
import io
import os
import platform
import pwd
import re
import shutil
import signal
import stat
import tarfile
import zipfile
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import bounded, cuda_compiler
from ansible_collections.rackwell.gpu.plugins.module_utils.release_installed import (
    BROKEN,
    Damage,
    damaged,
    projects,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import (
    Manifest,
    ReleaseError,
    member,
    unsafe_member,
)

#: Seconds for uv; some 10 GB of wheels on a slow disk take a part of it.
DEADLINE_S = 1800
_CHUNK = 1 << 20
_COMMON = ["--offline", "--no-config", "--no-python-downloads", "--quiet"]


class Store:
    """The store under `root`.

    Args:
        root: directory of the releases, ``/opt/rackwell``.
        cache: directory of the caches, ``/var/cache/rackwell``.
        python_folder: where ``pythonX.Y`` is looked for.
    """

    def __init__(self, root: str, cache: str, python_folder: str = "/usr/bin") -> None:
        self.root = root.rstrip("/")
        self.cache = cache.rstrip("/")
        self.python_folder = python_folder
        self.blobs = self.root + "/store/sha256"
        self.incoming = self.root + "/store/incoming"
        self.named = self.root + "/store/wheels"
        self.unpacked_cache = self.root + "/cache/uv"
        self._lock: Optional[int] = None

    # what is there

    def release(self, digest: str) -> str:
        """Directory of a release."""
        return "%s/releases/%s" % (self.root, digest)

    def missing(self, manifest: Manifest) -> Dict[str, str]:
        """Blobs of the release that are not there as they should be: SHA-256 -> ``absent`` or ``damaged``."""
        digests = sorted(manifest.blobs)
        with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            states = list(pool.map(lambda sha256: self._blob_state(sha256, manifest.blobs[sha256]), digests))
        return {sha256: state for sha256, state in zip(digests, states) if state}

    def complete(self, manifest: Manifest) -> bool:
        """Whether the release was brought to its end, and its Python is there."""
        path = self.release(manifest.digest)
        held = _read(path + "/complete") == manifest.digest + "\n"
        return held and os.access(path + "/env/bin/python", os.X_OK)

    def damaged(self, manifest: Manifest, *, settle: bool = False) -> List[Damage]:
        """Installed files that are not what the release's wheels say; the wheels themselves must be whole."""
        wheels = [(str(wheel["project"]), "%s/%s" % (self.blobs, wheel["sha256"])) for wheel in manifest.wheels]
        found: List[Damage] = damaged(self.release(manifest.digest) + "/env", manifest.python, wheels, settle=settle)
        return found

    def unpacked(self, manifest: Manifest) -> List[str]:
        """SHA-256 of the release's wheels that were installed here before: only links are made for them."""
        places = (self.named, self.root + "/uv")
        return sorted(one for one in manifest.blobs if any(os.path.isdir("%s/%s" % (p, one)) for p in places))

    def unfinished(self, manifest: Manifest, user: str, extras: Optional[Mapping[str, str]] = None) -> List[str]:
        """What installing would still do for this release: of ``environment``, ``settings`` and ``caches``."""
        todo: List[str] = []
        path = self.release(manifest.digest)
        if not self.complete(manifest):
            todo.append("environment")
        beside = {**(extras or {}), "manifest.json": manifest.text, "release.env": self.settings(manifest)}
        if any(_read("%s/%s" % (path, name)) != text for name, text in beside.items()):
            todo.append("settings")
        try:
            found = os.stat("%s/%s" % (self.cache, manifest.digest))
            held = stat.S_ISDIR(found.st_mode) and found.st_uid == pwd.getpwnam(user).pw_uid
        except (OSError, KeyError):
            held = False
        if not held:
            todo.append("caches")
        return todo

    def slot(self, name: str) -> Optional[str]:
        """Digest of the release that a slot leads to, None for none.

        Raises:
            ReleaseError: something that is no link stands in the slot's place.
        """
        path = "%s/%s" % (self.root, name)
        try:
            return os.path.basename(os.readlink(path).rstrip("/"))
        except FileNotFoundError:
            return None
        except OSError:
            raise ReleaseError(
                "slot-occupied",
                "slot %s is not a link" % name,
                path,
                "something that rackwell did not make stands there",
                "move it away, then run again",
            ) from None

    def space(self, paths: Iterable[str]) -> List[Dict[str, Any]]:
        """Bytes that are available at each of `paths`, or where they will be."""
        found: List[Dict[str, Any]] = []
        for path in paths:
            existing = path
            while not os.path.exists(existing):
                existing = os.path.dirname(existing) or "/"
            state = os.statvfs(existing)
            device = os.stat(existing).st_dev
            found.append({"path": path, "device": device, "available": state.f_bavail * state.f_frsize})
        return found

    def settings(self, manifest: Manifest) -> str:
        """Content of ``release.env``: no cache is shared with another release, so none can be stale."""
        base = "%s/%s" % (self.cache, manifest.digest)
        lines = [
            "# Made by rackwell for release %s." % manifest.digest,
            "# FlashInfer keeps its compiled kernels in .cache/flashinfer under this directory.",
            "FLASHINFER_WORKSPACE_BASE=%s" % base,
            "# what no variable names is kept below the home directory",
            "HOME=%s/home" % base,
            "XDG_CACHE_HOME=%s/xdg" % base,
            "TRITON_CACHE_DIR=%s/triton" % base,
            "TORCHINDUCTOR_CACHE_DIR=%s/inductor" % base,
            "SGLANG_CACHE_DIR=%s/sglang" % base,
            "SGLANG_DG_CACHE_DIR=%s/deep_gemm" % base,
            "TVM_FFI_CACHE_DIR=%s/tvm-ffi" % base,
            "CUDA_CACHE_PATH=%s/cuda" % base,
            "# The environment belongs to root; the service user keeps the compiled Python here.",
            "PYTHONPYCACHEPREFIX=%s/pycache" % base,
            *cuda_compiler.settings(manifest.cuda, self.release(manifest.digest)),
        ]
        return "\n".join(lines) + "\n"

    def check_machine(self, manifest: Manifest) -> None:
        """Raises ReleaseError when the release was made for another platform or Python than this machine has."""
        found = "%s_%s" % (platform.system().lower(), platform.machine())
        if found != manifest.platform:
            raise ReleaseError(
                "platform-mismatch",
                "the release was made for %s" % manifest.platform,
                self.root,
                "this machine is %s" % found,
                "use another machine",
            )
        if os.access(self._python(manifest), os.X_OK):
            return
        here = sorted(
            match.group(1)
            for path in glob.glob(self.python_folder + "/python3.*")
            for match in [re.match(r"python(3\.\d+)$", os.path.basename(path))]
            if match
        )
        fix = "install python%s in the container" % manifest.python
        if here:
            fix = 'set `python: "%s"` in builds/%s.yml and run `rackwell build %s`' % (
                here[-1],
                manifest.name,
                manifest.name,
            )
        raise ReleaseError(
            "python-mismatch",
            "the release was made for Python %s, which is not here" % manifest.python,
            self._python(manifest),
            "found here: %s"
            % (", ".join("python" + version for version in here) or "no Python in " + self.python_folder),
            fix,
        )

    # what is done

    def reached(self, step: str) -> None:
        """Called after each step; the tests interrupt here."""

    def lock(self) -> None:
        """Keep other runs out until this process ends.

        Raises:
            ReleaseError: another run is at work.
        """
        os.makedirs(self.root, mode=0o755, exist_ok=True)
        self._lock = os.open(self.root + "/.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ReleaseError(
                "locked",
                "another run works on the releases of this container",
                self.root + "/.lock",
                "",
                "wait for it to end, then run again",
            ) from None

    def unlock(self) -> None:
        """Let other runs in again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def receive(self, manifest: Manifest, archive: str) -> None:
        """Take the blobs, or pieces of blobs, out of an archive; each is checked before it counts.

        Raises:
            ReleaseError: a member is not of this release, out of order, or not what its name says.
        """
        os.makedirs(self.incoming, mode=0o755, exist_ok=True)
        os.makedirs(self.blobs, mode=0o755, exist_ok=True)
        try:
            with tarfile.open(archive, "r:") as opened:
                for info in opened:
                    self._receive_member(manifest, opened, info)
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise ReleaseError(
                "transfer-damaged", "what arrived is not whole", archive, str(error), "run again"
            ) from error

    def install(
        self,
        manifest: Manifest,
        requirements: str,
        user: str,
        extras: Optional[Mapping[str, str]] = None,
        repair: bool = False,
    ) -> bool:
        """Bring the release's environment, settings and caches about. Returns whether anything was done.

        Args:
            extras: name and text of what else stands beside the manifest.
            repair: look at each installed file also when the release is complete, and mend what is damaged.

        Raises:
            ReleaseError: a blob is missing, the user is unknown, or the installer failed. No slot is touched.
        """
        todo = self.unfinished(manifest, user, extras)
        wrong = self.damaged(manifest) if repair and "environment" not in todo else []
        if not todo and not wrong:
            return False
        self.check_machine(manifest)
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            raise ReleaseError(
                "user-missing", "there is no user %s" % user, "user", "", "create it, or name another user"
            ) from None
        path = self.release(manifest.digest)
        os.makedirs(path, mode=0o755, exist_ok=True)
        if "environment" in todo or wrong:
            self._unlink(path + "/complete")
            _flush_folder(path)
            self.reached("marked incomplete")
        for name, text in sorted((extras or {}).items()):
            _write("%s/%s" % (path, name), text)
        _write(path + "/manifest.json", manifest.text)
        _write(path + "/requirements.txt", requirements)
        _write(path + "/release.env", self.settings(manifest))
        self.reached("settings written")
        cache = "%s/%s" % (self.cache, manifest.digest)
        os.makedirs(cache, mode=0o755, exist_ok=True)
        os.chown(cache, account.pw_uid, account.pw_gid)
        self.reached("caches made")
        if "environment" in todo or wrong:
            try:
                if not self._repaired(manifest, path, wrong):
                    self._environment(manifest, path)
            except OSError:
                shutil.rmtree(path + "/env", ignore_errors=True)
                raise
            _flush(path)
            self.reached("environment made")
            _write(path + "/complete", manifest.digest + "\n")
            self.reached("complete")
        return True

    def switch(self, slot: str, digest: str) -> bool:
        """Let a slot lead to a release. Returns whether it led elsewhere."""
        if self.slot(slot) == digest:
            return False
        path = "%s/%s" % (self.root, slot)
        fresh = "%s/.%s.partial" % (self.root, slot)
        self._unlink(fresh)
        os.symlink("releases/" + digest, fresh)
        self.reached("link made")
        os.replace(fresh, path)
        _flush_folder(self.root)
        self.reached("switched")
        return True

    def tidy(self) -> None:
        """Remove what interrupted transfers left."""
        shutil.rmtree(self.incoming, ignore_errors=True)

    # how

    def _python(self, manifest: Manifest) -> str:
        return "%s/python%s" % (self.python_folder, manifest.python)

    def _blob_state(self, sha256: str, size: int) -> str:
        path = "%s/%s" % (self.blobs, sha256)
        try:
            if os.stat(path).st_size == size and _sha256(path) == sha256:
                return ""
        except FileNotFoundError:
            return "absent"
        except OSError as error:
            # a disk that gives an input error for it holds no blob, either
            if error.errno != errno.EIO:
                raise
        return "damaged"

    def _receive_member(self, manifest: Manifest, archive: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        named = member(info.name)
        if named is None or named[0] not in manifest.blobs or not info.isreg():
            why = "it holds %r, which is no blob of this release" % info.name
            raise ReleaseError(
                "transfer-damaged", "what arrived is not of this release", self.incoming, why, "run again"
            )
        sha256, offset = named
        partial = "%s/%s" % (self.incoming, sha256)
        if offset == 0:
            self._unlink(partial)
        elif not os.path.exists(partial) or os.stat(partial).st_size != offset:
            why = "a piece before byte %d is missing" % offset
            raise ReleaseError("transfer-damaged", "what arrived is not whole", partial, why, "run again")
        source = archive.extractfile(info)
        if source is None:
            raise ReleaseError("transfer-damaged", "what arrived cannot be read", partial, info.name, "run again")
        with open(partial, "ab") as stream:
            shutil.copyfileobj(source, stream, _CHUNK)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
        self.reached("piece received")
        if offset + info.size < manifest.blobs[sha256]:
            return
        found = _sha256(partial)
        if found != sha256:
            self._unlink(partial)
            raise ReleaseError(
                "blob-damaged",
                "a wheel arrived damaged",
                "%s/%s" % (self.blobs, sha256),
                "what arrived has the hash %s" % found,
                "run again; when it stays so, run `rackwell build` to have the controller's copies checked",
            )
        os.replace(partial, "%s/%s" % (self.blobs, sha256))
        _flush_folder(self.blobs)
        self.reached("blob stored")

    def _environment(self, manifest: Manifest, path: str) -> None:
        """The environment anew. What came out is compared with the wheels: a damaged unpacked copy is linked, too."""
        uv, links = self._prepared(manifest)
        for last in (False, True):
            shutil.rmtree(path + "/env", ignore_errors=True)
            self._run([uv, "venv", *_COMMON, "--python", self._python(manifest), path + "/env"], path)
            self.reached("environment begun")
            try:
                self._run(self._install(uv, links, path), path)
            except ReleaseError:
                if last or not os.path.isdir(self.unpacked_cache):
                    raise
                self._forget_unpacked()  # it may be uv's own notes that are damaged
                continue
            self.reached("wheels installed")
            wrong = self.damaged(manifest, settle=True)
            self.reached("installed files compared")
            if not wrong:
                return
            if not last:
                self._forget_unpacked()
        raise _damaged(path, wrong)

    def _repaired(self, manifest: Manifest, path: str, wrong: List[Damage]) -> bool:
        """Put only what is damaged anew, so that what runs from the rest is left alone. Returns whether that did it."""
        if not wrong:
            return False
        uv, links = self._prepared(manifest)
        # compiled from what was damaged, under the same time and size
        shutil.rmtree("%s/%s/pycache" % (self.cache, manifest.digest), ignore_errors=True)
        self._forget_unpacked()
        install = self._install(uv, links, path)
        for project in projects(wrong):
            install += ["--reinstall-package", project]
        try:
            self._run(install, path)
        except ReleaseError:
            return False
        self.reached("damaged wheels installed anew")
        return not self.damaged(manifest, settle=True)

    def _prepared(self, manifest: Manifest) -> Tuple[str, List[str]]:
        """The installer, and the folders with the wheels under their names."""
        lacking = self.missing(manifest)
        if lacking:
            raise ReleaseError(
                "blob-missing",
                "wheels of the release are not in the store",
                self.blobs,
                ", ".join(lacking),
                "run again",
            )
        uv = self._installer(manifest)
        links = [self._link(wheel["sha256"], wheel["filename"]) for wheel in manifest.wheels]
        self.reached("wheels linked")
        return uv, links

    @staticmethod
    def _install(uv: str, links: List[str], path: str) -> List[str]:
        install = [uv, "pip", "install", *_COMMON, "--python", path + "/env/bin/python", "--require-hashes"]
        install += ["--no-index", "--no-deps", "--link-mode", "hardlink", "--requirement", path + "/requirements.txt"]
        for folder in links:
            install += ["--find-links", folder]
        return install

    def _forget_unpacked(self) -> None:
        """Let uv unpack the wheels anew. Environments keep the files that they are links to."""
        shutil.rmtree(self.unpacked_cache, ignore_errors=True)
        self.reached("unpacked copies dropped")

    def _link(self, sha256: str, filename: str) -> str:
        """The folder where a blob has its wheel's name. Always the same one, so that uv knows it again."""
        blob, folder = "%s/%s" % (self.blobs, sha256), "%s/%s" % (self.named, sha256)
        path = "%s/%s" % (folder, filename)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        if not (os.path.exists(path) and os.path.samefile(path, blob)):
            self._check_wheel(blob, filename)
            self._unlink(path)
            os.link(blob, path)
        return folder

    @staticmethod
    def _check_wheel(blob: str, filename: str) -> None:
        """Not even a wheel with the right hash may write outside the environment."""
        what, fix = "a wheel cannot be installed", "take it out of the build, or build it anew"
        try:
            with zipfile.ZipFile(blob) as wheel:
                bad = unsafe_member(wheel)
        except BROKEN as error:
            why = "it is no wheel: %s" % (str(error) or type(error).__name__)
            raise ReleaseError("wheel-malformed", what, filename, why, fix) from error
        if bad:
            why = "it holds %r, which leads out of the environment" % bad
            raise ReleaseError("wheel-malformed", what, filename, why, fix)

    def _installer(self, manifest: Manifest) -> str:
        """uv, taken out of its wheel when it is not yet."""
        sha256 = manifest.uv["sha256"]
        path = "%s/uv/%s/uv" % (self.root, sha256)
        if os.access(path, os.X_OK):
            return path
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        where, fix = str(manifest.uv["filename"]), "run `rackwell build --relock`"
        try:
            with zipfile.ZipFile("%s/%s" % (self.blobs, sha256)) as wheel:
                names = [name for name in wheel.namelist() if name.endswith(".data/scripts/uv")]
                if len(names) != 1:
                    why = "it has %d files of that name" % len(names)
                    raise ReleaseError("installer-missing", "the wheel of uv holds no program", where, why, fix)
                with wheel.open(names[0]) as source:
                    _write_stream(path, source, 0o755)
        except BROKEN as error:
            why = str(error) or type(error).__name__
            raise ReleaseError("installer-missing", "the wheel of uv cannot be read", where, why, fix) from error
        self.reached("installer unpacked")
        return path

    def _run(self, command: List[str], folder: str) -> None:
        cache = self.root + "/cache"
        os.makedirs(cache, mode=0o755, exist_ok=True)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": cache,
            "LC_ALL": "C.UTF-8",
            "UV_CACHE_DIR": self.unpacked_cache,
            "NO_COLOR": "1",
        }
        try:
            done = bounded.run(command, DEADLINE_S, cwd=folder, env=environment, preexec_fn=_ends_with_parent())
        except bounded.DeadlineError as error:
            parts = error.parts(
                "uv did not finish the environment", folder, "look at load and disk of the container, then run again"
            )
            raise ReleaseError(**parts) from error
        if done.returncode == 0:
            return
        said = " ".join(line.strip() for line in done.stdout.splitlines() if line.strip())
        if "No space left on device" in said or "os error 28" in said:
            raise OSError(errno.ENOSPC, "No space left on device", folder)
        raise ReleaseError(
            "install-failed",
            "uv could not make the environment",
            folder,
            said[-1500:] or "it ended with code %d" % done.returncode,
            "see what uv says; the wheels of a release must fit each other's platform",
        )

    @staticmethod
    def _unlink(path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def _damaged(path: str, wrong: List[Damage]) -> ReleaseError:
    return ReleaseError(
        "environment-damaged",
        "%d installed files are not what the wheels say, after two attempts" % len(wrong),
        path + "/env",
        "; ".join(map(str, wrong[:5])),
        "look at the disk (dmesg), then run again",
    )


def _ends_with_parent() -> Callable[[], None]:
    """For a child: it is killed when this process is, so that nothing writes on without the store's lock."""
    parent, prctl = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

    def ask() -> None:
        if prctl is not None:
            prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

    return ask


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError):
        return None


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in _blocks(stream):
            digest.update(block)
    return digest.hexdigest()


def _blocks(stream: Any) -> Iterator[bytes]:
    while True:
        block = stream.read(_CHUNK)
        if not block:
            return
        yield block


def _write(path: str, text: str) -> None:
    """Replace a file by rename, unless it has this content already."""
    if _read(path) != text:
        _write_stream(path, io.BytesIO(text.encode("utf-8")), 0o644)


def _write_stream(path: str, source: Any, mode: int) -> None:
    # the store is locked, so the name is ours alone; what a killed run left is written over
    folder, name = os.path.split(path)
    fresh = "%s/.%s.partial" % (folder, name)
    with open(fresh, "wb") as stream:
        shutil.copyfileobj(source, stream, _CHUNK)
        stream.flush()
        os.fsync(stream.fileno())
        os.fchmod(stream.fileno(), mode)
    os.replace(fresh, path)
    _flush_folder(folder)


def _flush_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush(path: str) -> None:
    """All that was written to the file system of `path` is on the disk when this returns."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            flushed = ctypes.CDLL(None, use_errno=True).syncfs(handle) == 0
        finally:
            os.close(handle)
    except (AttributeError, OSError):
        flushed = False
    if not flushed:
        os.sync()
