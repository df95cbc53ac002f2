# SPDX-License-Identifier: Apache-2.0
"""The rules of a catalogue, kept in the user's cache once they were found to hold: read so in a quarter of the time.

What is kept is JSON, under the hash of all that it depends on: the files of the rules and this package's own. It is
written to, and taken from, the user's own folder alone, and whatever is wrong there, the rules are read as they stand.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any

import pydantic

from rackwell.diagnose.rules import CHECKED, Rule, files, load

_LARGEST = 64 << 20
_KEPT = 4
_NAME = re.compile(r"[0-9a-f]{64}\.json")


def rules(catalog: Path) -> list[Rule]:
    """All rules by id.

    Raises:
        RackwellError: one does not hold, or two have one id (exit 2).
    """
    digest = ""
    with contextlib.suppress(OSError, ValueError, RuntimeError, pydantic.ValidationError):
        digest = _digest(catalog)
        return [Rule.model_validate(data, context=CHECKED) for data in _read(_folder() / f"{digest}.json")]
    loaded = load(catalog)
    # without a cache it is slower, and nothing else
    with contextlib.suppress(OSError, ValueError, TypeError, RuntimeError):
        if digest == _digest(catalog):
            _write(_folder(), f"{digest}.json", [data for _, data in loaded])
    return [rule for rule, _ in loaded]


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "rackwell" / "rules"


def _digest(catalog: Path) -> str:
    """The hash of the rules and of the program that reads them."""
    told = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *files(catalog)):
        data = path.read_bytes()
        told.update(f"{path.parent.name}/{path.name} {len(data)}\n".encode() + data)
    return told.hexdigest()


def _read(path: Path) -> list[Any]:
    """Raises OSError, ValueError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise ValueError("another user could have written it")
        data = json.loads(stream.read(_LARGEST))
    if not isinstance(data, list) or not data:
        raise ValueError("no list")
    return data


def _write(folder: Path, name: str, data: list[Any]) -> None:
    """Raises OSError, ValueError, TypeError."""
    text = json.dumps(data)
    if json.loads(text) != data:
        raise ValueError("it has dates, or keys that are no texts")
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    _own(there)  # the home of another user stays as it is
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _own(folder)
    handle, fresh = tempfile.mkstemp(dir=folder, prefix=".", suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(fresh).rename(folder / name)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise
    kept = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    for old in sorted(kept, key=lambda path: path.lstat().st_mtime, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)


def _own(folder: Path) -> None:
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise ValueError("it is not the user's own")
