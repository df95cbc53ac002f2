# SPDX-License-Identifier: Apache-2.0
"""One run at a time for each container: the kernel's file lock, and beside it who holds it."""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import filelock

from rackwell.errors import ExitCode, Problem, RackwellError


@contextlib.contextmanager
def container_lock(state: Path, container: str, verb: str) -> Iterator[None]:
    """Hold the lock of `container` while the block runs. It ends with the process, however that ends.

    Args:
        state: ``SITE/.rackwell``.

    Raises:
        RackwellError: another run holds it (exit 5), or it cannot be written (exit 1).
    """
    folder = state / "locks"
    path = folder / f"{container}.lock"
    owner = folder / f"{container}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path, timeout=0)
        lock.acquire()
    except filelock.Timeout:
        raise RackwellError(_held(container, path, owner), ExitCode.LOCKED) from None
    except OSError as error:
        raise RackwellError(
            Problem("lock-unwritable", "the lock cannot be written", str(path), error.strerror or str(error))
        ) from error
    try:
        with contextlib.suppress(OSError):  # a full disk: the lock is held all the same, only nobody reads by whom
            owner.write_text(json.dumps(_me(verb)) + "\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink()
        lock.release()


def _me(verb: str) -> dict[str, str | int]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return {
        "command": verb,
        "pid": os.getpid(),
        "machine": socket.gethostname(),
        "user": user,
        "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _held(container: str, path: Path, owner: Path) -> Problem:
    why = "its owner has not written who it is"
    fix = "wait until it ends, then run again"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        who = json.loads(owner.read_text(encoding="utf-8"))
        why = (
            f"`rackwell {who['command']}` of {who['user']}@{who['machine']}, process {who['pid']}, since {who['since']}"
        )
    return Problem("locked", f"another run works on {container}", str(path), why, fix)
