# SPDX-License-Identifier: Apache-2.0
"""Questions about files that are answered, not raised, whatever text was given as a path; and files that are whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def place(text: str | Path) -> Path:
    """`text` as a path, ``~`` resolved where there is such a user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_file(path: Path) -> bool:
    """Whether it is a regular file; a name that is too long, or a folder that must not be searched, holds none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Whether something is there, or may be: what must not be looked at counts, and fails when it is read."""
    try:
        return path.exists()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False


def stems(folder: Path) -> list[str]:
    """The names of the YAML files in `folder`, without ``.yml``; none when it cannot be listed."""
    try:
        return sorted(entry.stem for entry in folder.glob("*.yml"))
    except (OSError, ValueError):
        return []


def write(path: Path, text: str) -> None:
    """Write a file beside its place, make it durable, and move it in: it is whole or as it was.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
