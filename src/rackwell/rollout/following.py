# SPDX-License-Identifier: Apache-2.0
"""The journal of a roll as lines, also while it grows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rackwell.rollout import telling

_PAUSE_S = 0.5


class Told(NamedTuple):
    """One line: seconds since the epoch, a host or "controller", and what happened."""

    time: float
    where: str
    text: str


def lines(record: Mapping[str, Any]) -> Iterator[Told]:
    """What there is to tell of a record."""
    for where, text in telling.lines(record):
        yield Told(float(record.get("time") or 0), where, text)


def follow(path: Path, pause: Callable[[], None] = lambda: time.sleep(_PAUSE_S)) -> Iterator[Told]:
    """The lines of a journal, then those that are appended, until the record that ends the roll.

    A later ``resume`` goes on in the same journal: who follows a roll that is over ends at once. Its chain is not
    checked here; ``rackwell history`` does.

    Args:
        pause: called when there is nothing new.
    """
    with path.open("rb") as stream:
        rest, ended = b"", False
        while True:
            new = stream.read()
            if not new:
                if ended:
                    return
                pause()
                continue
            *whole, rest = (rest + new).split(b"\n")
            for line in whole:
                record = _record(line)
                if record is None:
                    continue  # a line that a crash cut off
                ended = record.get("kind") == "finish"
                yield from lines(record)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
