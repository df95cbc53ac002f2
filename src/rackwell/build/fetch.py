# SPDX-License-Identifier: Apache-2.0
"""The controller's store of wheels by hash, and pip, which fills it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from rackwell import bounded
from rackwell.build.files import no_space, sha256_of, write_atomically
from rackwell.build.lock import DEADLINE_S, LockedWheel, late
from rackwell.build.wheelfile import MALFORMED, platforms, refuse_unsafe
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.mirror.store import Mirror

_MARGIN = 64 << 20


_Stamp = tuple[int, int, int, int]


class Blobs:
    """``blobs/sha256/<hex>``: contents by their hash. A blob is there whole or not at all.

    Args:
        mirror: where everything comes from that is missing; None for an index.

    ``verified.json`` has a stamp (inode, size, times) of each file as it was when it was last hashed. Only
    `missing` looks at it, and only for those that the caller will take at their word.
    """

    def __init__(self, state: Path, mirror: Mirror | None = None) -> None:
        self.folder = state / "blobs" / "sha256"
        self.mirror = mirror
        self._stamps_file = state / "verified.json"

    def path(self, sha256: str) -> Path:
        """Where the blob is or would be."""
        return self.folder / sha256

    def holds(self, sha256: str) -> bool:
        """Whether the blob is there and is what its name says; a damaged one is removed."""
        path = self.path(sha256)
        try:
            if sha256_of(path) == sha256:
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def missing(self, digests: Iterable[str], trusted: Collection[str] = ()) -> set[str]:
        """Those that are not there, or damaged.

        Args:
            trusted: those that need not be hashed again if nobody touched the file since it was.
        """
        stamps = self._stamps()
        wanted = sorted(set(digests))
        unsure = [name for name in wanted if name not in trusted or stamps.get(name, ()) != self._stamp(name)]
        with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return {digest for digest, held in zip(unsure, pool.map(self.holds, unsure), strict=True) if not held}

    def remember(self, digests: Iterable[str]) -> None:
        """Keep the stamps of blobs that have been hashed in this run."""
        old = self._stamps()
        new = {name: stamp for name in {*old, *digests} if (stamp := self._stamp(name))}
        # who was hashed long ago and touched since stays unsure
        hashed = set(digests)
        new = {name: stamp for name, stamp in new.items() if name in hashed or old[name] == stamp}
        if new != old:
            write_atomically(self._stamps_file, json.dumps(new, sort_keys=True).encode() + b"\n")

    def _stamps(self) -> dict[str, _Stamp]:
        try:
            found = json.loads(self._stamps_file.read_text(encoding="utf-8"))
            return {name: (a, b, c, d) for name, (a, b, c, d) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _stamp(self, sha256: str) -> _Stamp | None:
        try:
            found = self.path(sha256).stat()
        except FileNotFoundError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def add_bytes(self, data: bytes, sha256: str) -> None:
        """Keep `data`, whose hash the caller knows."""
        write_atomically(self.path(sha256), data, 0o444)

    def add_file(self, path: Path, sha256: str) -> None:
        """Take over a file of the same file system, whose hash the caller has checked."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path.chmod(0o444)
        path.replace(self.path(sha256))


def fetch(
    wheels: Sequence[LockedWheel],
    python: str,
    blobs: Blobs,
    folder: Path,
    progress: Callable[[str], None],
    trusted: Collection[str] = (),
) -> int:
    """Bring the wheels that are missing into the store, by one call of pip.

    Args:
        folder: an empty folder on the store's file system.
        trusted: see `Blobs.missing`.

    Returns:
        How many were fetched.

    Raises:
        RackwellError: no space, a wrong hash, or pip could not get them.
    """
    missing = blobs.missing((wheel.sha256 for wheel in wheels), trusted)
    wanted = {wheel.filename: wheel for wheel in wheels if wheel.sha256 in missing}
    if not wanted:
        return 0
    size = sum(wheel.size for wheel in wanted.values())
    if shutil.disk_usage(folder).free < size + _MARGIN:
        raise no_space(folder, size + _MARGIN)
    progress(f"fetching {len(wanted)} wheels, {size / 1e6:,.0f} MB")
    if blobs.mirror is not None:
        _from_mirror(blobs.mirror, wanted, blobs, folder)
        return len(wanted)
    requirements = folder / "fetch.txt"
    requirements.write_text(
        "".join(f"{w.project}=={w.version} --hash=sha256:{w.sha256}\n" for w in sorted(wanted.values())),
        encoding="utf-8",
    )
    target = folder / "fetched"
    _run(pip_command(requirements, target, python), folder, wanted, progress)
    for filename, wheel in wanted.items():
        path = target / filename
        if not path.is_file():
            raise RackwellError(
                Problem(
                    "fetch-failed",
                    f"pip did not bring {filename}",
                    str(target),
                    f"it brought {', '.join(sorted(p.name for p in target.glob(f'{wheel.project[:1]}*')))}",
                    "run `rackwell build --relock`: the index no longer offers the locked file",
                )
            )
        if sha256_of(path) != wheel.sha256:
            raise _mismatch(f"{filename} is not what the lock says: {wheel.sha256} expected, {sha256_of(path)} found")
        _check(path)
        blobs.add_file(path, wheel.sha256)
    return len(wanted)


def _from_mirror(mirror: Mirror, wanted: dict[str, LockedWheel], blobs: Blobs, folder: Path) -> None:
    for filename, wheel in wanted.items():
        entry = mirror.find(wheel.sha256)
        if entry is None:
            raise mirror.lacks(f"the wheel {filename} ({wheel.sha256[:12]})")
        mirror.bring(entry, folder / filename)
        _check(folder / filename)
        blobs.add_file(folder / filename, wheel.sha256)


def _check(path: Path) -> None:
    """Not even a wheel with the right hash may write outside its environment."""
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_unsafe(archive, path.name)
    except MALFORMED as error:
        raise RackwellError(
            Problem(
                "wheel-malformed",
                "a downloaded wheel cannot be used",
                path.name,
                str(error) or type(error).__name__,
                "ask for another version of it, and tell the index's operator",
            )
        ) from error


def pip_command(requirements: Path, target: Path, python: str) -> list[str]:
    """The command that downloads what the file `requirements` pins into `target`. It names no index."""
    options: list[str] = []
    for platform in platforms():
        options += ["--platform", platform]
    return [
        sys.executable,
        *("-m", "pip", "download", "--requirement", str(requirements), "--dest", str(target)),
        *("--require-hashes", "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python),
        *options,
        *("--progress-bar", "off", "--no-input", "--disable-pip-version-check"),
    ]


def _run(command: Sequence[str], folder: Path, wanted: dict[str, LockedWheel], progress: Callable[[str], None]) -> None:
    """Run pip, and tell of each wheel as it comes."""
    count = 0

    def tell(line: str) -> None:
        nonlocal count
        match = re.match(r"\s*(?:Downloading|Using cached|Processing|File was already downloaded)\s+(\S+)", line)
        filename = match[1].rsplit("/", 1)[-1] if match else ""
        if filename in wanted:
            count += 1
            size = wanted[filename].size
            progress(f"  {count}/{len(wanted)} {filename}" + (f", {size / 1e6:,.1f} MB" if size else ""))

    done = bounded.run(
        command,
        DEADLINE_S,
        late=late("pip did not bring the locked wheels in time", str(folder)),
        cwd=folder,
        on_line=tell,
    )
    if done.returncode != 0:
        raise _pip_failed(done.stdout.splitlines())


def _pip_failed(said: Sequence[str]) -> RackwellError:
    at = next((n for n, line in enumerate(said) if line.startswith("ERROR:")), max(len(said) - 5, 0))
    text = " ".join(line.strip() for line in said[at:] if line.strip())
    if "DO NOT MATCH THE HASHES" in text:
        return _mismatch(" ".join(line.strip() for line in said[at + 1 :] if line.strip()))
    if "No space left on device" in text or "[Errno 28]" in text:
        return RackwellError(
            Problem("no-space", "pip ran out of space", "", text[-300:], "free space there, then run again")
        )
    return RackwellError(
        Problem(
            "fetch-failed",
            "pip could not download the locked wheels",
            "",
            text[-1500:],
            "make the package index that pip is set up for reachable, then run again",
        )
    )


def _mismatch(why: str) -> RackwellError:
    return RackwellError(
        Problem(
            "hash-mismatch",
            "a downloaded wheel does not have the hash of the lock",
            "",
            why,
            "find out who changed it; if the change is right, run `rackwell build --relock`",
        ),
        ExitCode.FAILED,
    )
