# SPDX-License-Identifier: Apache-2.0
"""The files of an activation: written so that a crash leaves the old or the new one, never half of one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.MULTILINE)
_KEY_FLAG = re.compile(r"(--(?:admin-)?api-key[ =]+)(\S.*?)(\s*\\?)$", re.MULTILINE)
# what is shorter is no secret, and would be blotted out wherever it stands: "true", "0"
_SHORTEST_SECRET = 8


def read_text(path: str) -> str | None:
    """The text of a file; ``None`` when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _sync_directory(path: str) -> None:
    handle = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stage(path: str, text: str, mode: int) -> str:
    """Write the new text beside the file, on the disk, without touching the file.

    Returns:
        The path to give to :func:`commit`.

    Raises:
        OSError: no space, or not allowed; nothing is left behind.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    staged = f"{path}.rackwell-new"
    try:
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(handle, mode)
            stream.write(text)
            stream.flush()
            os.fsync(handle)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        # a full disk is reported without the file's name
        error.filename = path
        raise
    return staged


def commit(staged: str, path: str) -> None:
    """Put a staged file in place."""
    os.replace(staged, path)
    _sync_directory(os.path.dirname(path))


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Replace a file."""
    commit(stage(path, text, mode), path)


def remove(path: str) -> None:
    """Remove a file that may not be there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def slot_release(root: str, slot: str) -> str | None:
    """The digest that a slot points to; ``None`` when it points nowhere."""
    try:
        return os.path.basename(os.readlink(os.path.join(root, slot)))
    except OSError:
        return None


def switch_slot(root: str, slot: str, release: str | None) -> None:
    """Point a slot at a release, in one step; ``None`` removes the slot."""
    path = os.path.join(root, slot)
    if release is None:
        remove(path)
        return
    new = f"{path}.rackwell-new"
    remove(new)
    os.symlink(os.path.join("releases", release), new)
    os.replace(new, path)
    _sync_directory(root)


def append_record(path: str, **record: Any) -> None:
    """Append one line to the journal of the host."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    line = json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **record}, sort_keys=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (line + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def exclusive(path: str) -> Iterator[bool]:
    """Hold a lock for as long as this process lives; gives whether it could be had."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # not inherited: a service that is started from here must not hold it
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


def secret_values(text: str) -> set[str]:
    """The values in a file of secret options, a JSON object; those that are no name's alone to hide."""
    try:
        return {str(value) for value in json.loads(text or "{}").values() if value}
    except (ValueError, AttributeError):
        return {text}


def without_secrets(text: str) -> str:
    """A unit or environment file as it may be shown in a diff."""

    def hide(found: re.Match[str]) -> str:
        return f"{found.group(1)}=***" if _SECRET_NAME.search(found.group(1)) else found.group(0)

    return _KEY_FLAG.sub(r"\1***\3", _ASSIGNMENT.sub(hide, text))


def secrets_in(text: str) -> set[str]:
    """The values that :func:`without_secrets` hides, as they are written and as they are meant."""
    written = [found.group(2) for found in _ASSIGNMENT.finditer(text) if _SECRET_NAME.search(found.group(1))]
    written += [found.group(2) for found in _KEY_FLAG.finditer(text)]
    bare = [value[1:-1] if value[:1] == value[-1:] == '"' else value for value in written]
    return {one for value in bare for one in (value, re.sub(r"\\(.)", r"\1", value)) if len(one) >= _SHORTEST_SECRET}
