# SPDX-License-Identifier: Apache-2.0
"""Directories that are bind-mounted in the place of the kernel's own: they stay, their content changes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from rwlab import files


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the kernel's: its content and mode."""

    content: bytes
    mode: int = 0o444


@dataclasses.dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Wanted = Mapping[str, File | Link | None]


def text(value: object, mode: int = 0o444) -> File:
    """A file of one line, as most of the kernel's are."""
    return File(f"{value}\n".encode(), mode)


def show(root: Path, wanted: Wanted) -> None:
    """Make ``root`` hold exactly this. What is as it should be is not touched; nor is a file that others write on in.

    Args:
        wanted: path below ``root`` -> file, link, or None for a directory that may be empty.
    """
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)  # whatever the umask was: an unprivileged container is "other" here
    _remove_others(root, wanted)
    for name, entry in wanted.items():
        path = root / name
        _directories(root, path if entry is None else path.parent)
        if isinstance(entry, Link):
            files.link(path, entry.target)
        elif entry is not None and not (entry.mode & 0o002 and _mode(path) == entry.mode):
            files.write(path, entry.content, entry.mode, durable=False)


def _mode(path: Path) -> int | None:
    return path.lstat().st_mode & 0o7777 if path.is_file() and not path.is_symlink() else None


def _directories(root: Path, path: Path) -> None:
    if path.is_dir():
        return
    for directory in reversed([path, *path.parents]):
        if directory.is_relative_to(root) and not directory.is_dir():
            directory.mkdir()
            directory.chmod(0o755)


def _remove_others(root: Path, wanted: Wanted) -> None:
    kept = {root / name for name in wanted}
    above = {parent for path in kept for parent in path.parents}
    directories = {root / name for name, entry in wanted.items() if entry is None}
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if path not in above | directories:
                shutil.rmtree(path)
        elif path not in kept:
            path.unlink(missing_ok=True)
        elif path in directories:
            path.unlink()
