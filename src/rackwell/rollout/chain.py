# SPDX-License-Identifier: Apache-2.0
"""A journal that is only appended to, a JSON object a line, each with the hash of the one before.

A line that a crash cut off stays where it is; the record after it says so (``after_torn``). Whoever changes, removes or
inserts a line breaks the chain from there on, which :func:`read` tells.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

GENESIS = "0" * 64


class ChainError(Exception):
    """The journal is not what was written. ``line`` counts from 1."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}")
        self.path = path
        self.line = line
        self.why = why


def digest(record: dict[str, Any]) -> str:
    """Of everything in a record but its own ``hash``."""
    body = {key: value for key, value in record.items() if key != "hash"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(path: Path) -> list[dict[str, Any]]:
    """All records, after their chain was checked.

    Raises:
        ChainError: a record was changed, removed or inserted, or a line cannot be read that no crash explains.
        OSError: it cannot be read.
    """
    records: list[dict[str, Any]] = []
    last = GENESIS
    torn = 0
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        record = None if number == len(lines) else _parse(line)
        if record is None:
            if line:
                torn = torn or number
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


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "hash" in value else None


class Chain:
    """One journal, open for appending by one process at a time.

    Args:
        path: made when it is absent.

    Raises:
        ChainError: what is there is broken.
        OSError: it cannot be written; BlockingIOError when another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.records = read(path)
            self._torn = not path.read_bytes().endswith(b"\n") and os.fstat(self._file).st_size > 0
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write a record and return it as it stands there; it is on the disk when this returns. Raises OSError."""
        before = self.records[-1]["hash"] if self.records else GENESIS
        whole = {**record, "seq": len(self.records) + 1, "prev": before}
        if self._torn:
            whole["after_torn"] = True
        whole["hash"] = digest(whole)
        text = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        self._write(b"\n" + text if self._torn else text)
        self._torn = False
        self.records.append(whole)
        return whole

    def _write(self, text: bytes) -> None:
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, text)
            if written != len(text):
                raise OSError(28, "the journal could not be written whole", str(self.path))
            os.fsync(self._file)
        except OSError:
            # half a record would look like a crash to the next reader
            os.ftruncate(self._file, size)
            raise

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
