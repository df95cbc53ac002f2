# SPDX-License-Identifier: Apache-2.0
"""Blocks of whole lines, what is known of where each line comes from, and the cleaning of their bytes."""

from __future__ import annotations

import dataclasses
import re

BLOCK = 1 << 18
LONGEST = 1 << 16
"""Bytes of a line that are looked at."""

_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]{0,40}[ -/]{0,10}[@-~]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)?"
    rb"|[PX^_][^\x1b\n]{0,400}(?:\x1b\\)?|[ -/]{0,4}[0-~])"
)
CONTROL = bytes(set(range(32)) - {9, 10, 11, 13, 27}) + b"\x7f"
_PROGRESS = re.compile(rb"\d%\||\d(?:it|s)/(?:s|it)\b")


@dataclasses.dataclass(slots=True)
class Origin:
    """What a journal's record says of its line."""

    name: str = ""
    unit: str = ""
    pid: str = ""
    invocation: str = ""
    boot: str = ""


@dataclasses.dataclass(slots=True)
class Block:
    """Whole lines, cleaned. `number` is that of the first; `origins` are those of each, for a journal's records.

    A line that held several (a carriage return, a record's message) has them separated by vertical tabs.
    """

    data: bytes
    number: int
    origins: list[Origin] | None = None
    numbers: list[int] | None = None


@dataclasses.dataclass
class Reading:
    """How the reading went."""

    lines: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    kind: str = "text"
    cut: int = 0
    first_cut: int = 0
    complete: bool = True

    def note(self, text: str) -> None:
        """Something that the reader of the result must know, once."""
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)


def clean(data: bytes) -> bytes:
    """Lines without escapes of terminals, control characters, and the states that a progress bar went through."""
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
        if data.endswith(b"\r"):
            data = data[:-1]
        if b"\r" in data:
            data = b"\n".join(_last_state(line) if b"\r" in line else line for line in data.split(b"\n"))
    return data.translate(None, CONTROL)


def _last_state(line: bytes) -> bytes:
    parts = [part for part in line.split(b"\r") if part.strip()]
    bars = [bool(_PROGRESS.search(part[-2000:])) for part in parts]
    kept = [
        part for index, part in enumerate(parts) if not (bars[index] and index + 1 < len(parts) and bars[index + 1])
    ]
    return b"\x0b".join(kept)
