# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rackwell.errors import ExitCode, Problem, RackwellError

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `path` by way of a new file beside it and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def link_atomically(link: Path, target: str) -> bool:
    """Let the symbolic link `link` lead to `target`, by rename. Returns whether that changed anything."""
    if link.is_symlink() and str(link.readlink()) == target:
        return False
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}.partial")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    try:
        fresh.replace(link)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    return True


@contextlib.contextmanager
def scratch(state: Path) -> Iterator[Path]:
    """A folder inside `state`, gone afterwards; what an earlier run that was killed left there goes first."""
    base = state / "tmp"
    base.mkdir(parents=True, exist_ok=True)
    for left in base.glob("build-*"):
        owner = left.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"build-{os.getpid()}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def telling_file_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses, a lack of space above all, into an error that says where."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise no_space(path, None) from error
        raise RackwellError(
            Problem(
                "filesystem",
                "a file operation failed",
                str(error.filename or path),
                error.strerror or str(error),
                "make it readable and writable, then run again",
            )
        ) from error


def no_space(path: Path, needed: int | None) -> RackwellError:
    """The error for a full file system. `needed` in bytes, None when it is not known."""
    available = shutil.disk_usage(_existing(path)).free
    wanted = f"{needed:,} bytes are needed, " if needed is not None else ""
    return RackwellError(
        Problem(
            "no-space",
            "there is not enough space for the release",
            str(path),
            f"{wanted}{available:,} bytes are available",
            f"free space on the file system of {path}, then run again",
        ),
        ExitCode.FAILED,
    )


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
