# SPDX-License-Identifier: Apache-2.0
"""The journal of a host: only appended to, a JSON object a line, each with the hash of the one before.

The same as ``src/rackwell/rollout/chain.py`` on the controller, which cannot be imported here; a test holds them equal.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from typing import Any

GENESIS = "0" * 64


class ChainError(Exception):
    """The journal is not what was written; ``line`` counts from 1."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}")
        self.line = line
        self.why = why


def digest(record: dict[str, Any]) -> str:
    """Of everything in a record but its own ``hash``."""
    body = {key: value for key, value in record.items() if key != "hash"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse(path: str, text: bytes) -> list[dict[str, Any]]:
    """All records, after their chain was checked. A line that a crash cut off is gone over. Raises ChainError."""
    records: list[dict[str, Any]] = []
    last = GENESIS
    torn = 0
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        record = None if number == len(lines) else _record(line)
        if record is None:
            torn = torn or (number if line else 0)
            continue
        if bool(torn) != bool(record.get("after_torn")):
            raise ChainError(path, torn or number, "a line cannot be read" if torn else "a line before it is missing")
        if record.get("prev") != last or record.get("hash") != digest(record):
            raise ChainError(path, number, "the record does not follow from the one before it")
        if record.get("seq") != len(records) + 1:
            raise ChainError(path, number, f"its number is {record.get('seq')}, not {len(records) + 1}")
        records.append(record)
        last, torn = str(record["hash"]), 0
    return records


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "hash" in value else None


def append(path: str, record: dict[str, Any]) -> dict[str, Any]:
    """Write one record and return it as it stands there; it is on the disk when this returns.

    Raises:
        ChainError: what is there is broken.
        OSError: it cannot be written; nothing of it stays then.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        before = os.pread(handle, size, 0)
        records = parse(path, before)
        whole = {**record, "seq": len(records) + 1, "prev": records[-1]["hash"] if records else GENESIS}
        torn = bool(before) and not before.endswith(b"\n")
        if torn:
            whole["after_torn"] = True
        whole["hash"] = digest(whole)
        text = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        _write(handle, path, size, b"\n" + text if torn else text)
        return whole
    finally:
        os.close(handle)


def _write(handle: int, path: str, size: int, text: bytes) -> None:
    try:
        if os.write(handle, text) != len(text):
            raise OSError(errno.ENOSPC, "the journal could not be written whole", path)
        os.fsync(handle)
    except OSError:
        # half a record would look like a crash to the next reader
        os.ftruncate(handle, size)
        raise
