# SPDX-License-Identifier: Apache-2.0
"""Files: written whole or not at all, and only when they differ."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rwlab.console import say


def write(path: Path, content: str | bytes, mode: int = 0o644, *, durable: bool = True) -> bool:
    """Make ``path`` have this content and mode, by rename. A file that has both is not touched.

    Args:
        durable: wait for the disk. Not for what the next ``up`` makes again.

    Returns:
        Whether anything changed.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        if path.stat().st_mode & 0o7777 == mode:
            return False
        path.chmod(mode)
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(data)
        out.flush()
        if durable:
            os.fsync(out.fileno())
    partial.chmod(mode)  # whatever the umask was
    partial.replace(path)
    return True


def rewrite(path: Path, content: str, mode: int = 0o444) -> bool:
    """As :func:`write`, but the file stays the same one: what is bind-mounted elsewhere shows the new content too.

    A reader in between may see parts of both.
    """
    data = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b") as file:
        os.fchmod(file.fileno(), mode)
        if file.read() == data:
            return False
        os.pwrite(file.fileno(), data, 0)
        os.ftruncate(file.fileno(), len(data))
    return True


def write_json(path: Path, value: Any, mode: int = 0o644) -> bool:
    """As :func:`write`, for JSON that people may read."""
    return write(path, json.dumps(value, indent=1) + "\n", mode)


def read_json(path: Path) -> Any:
    """The JSON in ``path``; None when there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def link(path: Path, target: str) -> bool:
    """Make ``path`` a symbolic link to ``target``.

    Returns:
        Whether anything changed.
    """
    if path.is_symlink() and path.readlink() == Path(target):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(target)
    partial.replace(path)
    return True


def link_or_copy(source: Path, target: Path) -> bool:
    """Make ``target`` the same file as ``source`` (a hard link where the filesystem allows).

    Returns:
        Whether anything changed.
    """
    if target.exists():
        ours, theirs = target.stat(), source.stat()
        if os.path.samestat(ours, theirs):
            return False
        if (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns):
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copy2(source, partial)
    partial.replace(target)
    return True


def digest(*parts: Path | str) -> str:
    """SHA-256 over strings, files and whole directories (names, modes and content), in hex."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(b"text\0" + part.encode() + b"\0")
            continue
        for path in [part, *sorted(part.rglob("*"))] if part.is_dir() else [part]:
            if "__pycache__" in path.parts or not os.path.lexists(path):
                continue
            name = str(path.relative_to(part)).encode()
            total.update(b"path\0" + name + b"\0" + oct(path.lstat().st_mode).encode() + b"\0")
            if path.is_symlink():
                total.update(str(path.readlink()).encode())
            elif path.is_file():
                total.update(path.read_bytes())
    return total.hexdigest()


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock file; waits, and says so. The kernel drops it when the process ends, however it ends."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(what, f"waiting for another laboratory command to end ({path})")
                fcntl.flock(handle, fcntl.LOCK_EX)
            # who held it may have removed the file (a purge): then somebody else can hold the new one
            try:
                current = os.path.samestat(path.stat(), os.fstat(handle.fileno()))
            except FileNotFoundError:
                current = False
            if current:
                yield
                return
