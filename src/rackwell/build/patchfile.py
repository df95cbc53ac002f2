# SPDX-License-Identifier: Apache-2.0
"""A strict reader and applier of unified diffs.

A hunk applies where its whole old side, context included, stands in the file byte for byte. It may stand at another
line than the diff says only when it stands at one place alone. There is no fuzz and no guessing: whatever is not
certain is refused with the patch, file, hunk and reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

_HUNK = re.compile(rb"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
#: as many lines of context at each end as patch(1) ignores when it is not told otherwise
_MOST_FUZZ = 2
#: what may follow a hunk though it begins as one of its lines: the next file, and the signature of a mail
_ENDS_DIFF = re.compile(rb"--- |-- ?\r?$")
_UNSUPPORTED = (
    b"rename from ",
    b"rename to ",
    b"copy from ",
    b"copy to ",
    b"old mode ",
    b"new mode ",
    b"GIT binary patch",
    b"Binary files ",
)


class PatchError(Exception):
    """A diff that cannot be read or does not apply.

    Attributes:
        reason: what was found against what the diff expects.
        line: line in the diff, from 1.
        file: path in the tree, or empty.
        hunk: number of the hunk in its file, from 1, or 0.
        present: the change is in the file already.
        fuzz: how many lines of context a lenient tool would have to ignore to apply the hunk; 0: that would not help.
    """

    def __init__(
        self, reason: str, line: int, file: str = "", hunk: int = 0, *, present: bool = False, fuzz: int = 0
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.file = file
        self.hunk = hunk
        self.present = present
        self.fuzz = fuzz


@dataclasses.dataclass(frozen=True)
class Hunk:
    """One hunk: its two sides as lines with their line ends, and where the diff says that they stand (from 1)."""

    number: int
    line: int
    old_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True)
class FilePatch:
    """All hunks of one file. `creates` and `deletes` tell that a side is ``/dev/null``."""

    path: str
    line: int
    creates: bool
    deletes: bool
    hunks: tuple[Hunk, ...]


def parse(data: bytes) -> list[FilePatch]:
    """Read a unified diff whose paths carry one leading component (``a/``, ``b/``). Text around the diffs is ignored.

    Raises:
        PatchError: malformed, empty, a file twice, a path outside the tree, or a kind of change that is not supported.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    files: list[FilePatch] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith(_UNSUPPORTED):
            raise PatchError(f"'{_text(line)}' is not supported: only changes of text are", index + 1)
        if line.startswith(b"--- ") and index + 1 < len(lines) and lines[index + 1].startswith(b"+++ "):
            patch, index = _file(lines, index)
            if index < len(lines) and lines[index].startswith((b"+", b"-")) and not _ENDS_DIFF.match(lines[index]):
                raise PatchError("the hunk has more lines than its header promises", index + 1, patch.path)
            if any(other.path == patch.path for other in files):
                raise PatchError("the file stands in the patch twice", patch.line, patch.path)
            files.append(patch)
        elif line.startswith(b"@@ "):
            raise PatchError("a hunk without a file header before it", index + 1)
        else:
            index += 1
    if not files:
        raise PatchError("no file header ('--- a/…' and '+++ b/…') in it", 1)
    return files


def apply(content: bytes | None, patch: FilePatch) -> bytes | None:
    """The content of a file after `patch`; None stands for a file that does not exist.

    Raises:
        PatchError: with ``present`` set when every hunk is in the file already.
    """
    if patch.creates:
        new = b"".join(patch.hunks[0].new)
        if content is not None:
            raise PatchError("it creates a file that exists", patch.line, patch.path, 1, present=content == new)
        return new
    if content is None:
        raise PatchError("there is no such file", patch.line, patch.path, present=patch.deletes)
    lines = _split(content)
    places: list[int] = []
    floor = 0
    failures: list[PatchError] = []
    for hunk in patch.hunks:
        try:
            place = _locate(lines, hunk, patch.path, floor)
        except PatchError as error:
            failures.append(error)
            continue
        places.append(place)
        floor = place + len(hunk.old)
    if failures:
        # what no leniency would mend says most, then what fuzz would
        first = min(failures, key=lambda error: (error.present, error.fuzz > 0))
        first.present = len(failures) == len(patch.hunks) and all(error.present for error in failures)
        raise first
    for hunk, place in reversed(list(zip(patch.hunks, places, strict=True))):
        lines[place : place + len(hunk.old)] = hunk.new
    result = b"".join(lines)
    if patch.deletes:
        if result:
            raise PatchError("it deletes the file, yet lines would remain in it", patch.line, patch.path)
        return None
    return result


def _file(lines: Sequence[bytes], index: int) -> tuple[FilePatch, int]:
    start = index
    old, new = _path(lines[index], index + 1), _path(lines[index + 1], index + 2)
    if old is not None and new is not None and old != new:
        raise PatchError(f"the two sides name different files, {old} and {new}", index + 1)
    path = new if new is not None else old
    if path is None:
        raise PatchError("both sides are /dev/null", index + 1)
    index += 2
    hunks: list[Hunk] = []
    while index < len(lines) and lines[index].startswith(b"@@"):
        hunk, index = _hunk(lines, index, len(hunks) + 1, path)
        hunks.append(hunk)
    if not hunks:
        raise PatchError("no hunk follows the file header", start + 1, path)
    creates, deletes = old is None, new is None
    if creates and (len(hunks) > 1 or hunks[0].old):
        raise PatchError("a new file must come as one hunk of added lines", hunks[0].line, path, 1)
    return FilePatch(path, start + 1, creates, deletes, tuple(hunks)), index


def _path(header: bytes, line: int) -> str | None:
    name = header[4:].split(b"\t", 1)[0].rstrip(b"\r").decode("utf-8", "backslashreplace").strip()
    if name == "/dev/null":
        return None
    if not name.isprintable():
        raise PatchError(f"the file name {name!r} holds a control character", line)
    if name.startswith('"') or "\\" in name:
        raise PatchError(f"the file name {name} is quoted, which is not supported", line)
    parts = PurePosixPath(name).parts
    if name.startswith("/") or len(parts) < 2 or ".." in parts:
        raise PatchError(f"the file name {name} must be relative, with one leading component such as a/ or b/", line)
    return "/".join(parts[1:])


def _hunk(lines: Sequence[bytes], index: int, number: int, path: str) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[index])
    if match is None:
        raise PatchError(f"'{_text(lines[index])}' is not a hunk header", index + 1, path, number)
    start = index
    old_start = int(match[1])
    old_left = int(match[2]) if match[2] is not None else 1
    new_left = int(match[4]) if match[4] is not None else 1
    old: list[bytes] = []
    new: list[bytes] = []
    index += 1
    while old_left > 0 or new_left > 0:
        if index >= len(lines):
            raise PatchError("the patch ends inside the hunk", index, path, number)
        kind, text = lines[index][:1], lines[index][1:] + b"\n"
        if kind not in {b" ", b"-", b"+"}:
            found = f"here stands '{_text(lines[index])}' (a context line begins with a space)"
            raise PatchError(f"the hunk's header promises more lines, but {found}", index + 1, path, number)
        if kind != b"+":
            old.append(text)
            old_left -= 1
        if kind != b"-":
            new.append(text)
            new_left -= 1
        if index + 1 < len(lines) and lines[index + 1].startswith(b"\\"):
            index += 1
            for side, ends in ((old, kind != b"+"), (new, kind != b"-")):
                if ends:
                    side[-1] = side[-1][:-1]
        index += 1
    if old_left < 0 or new_left < 0:
        raise PatchError("the hunk's header and its lines do not agree", start + 1, path, number)
    return Hunk(number, start + 1, old_start, tuple(old), tuple(new)), index


def _split(content: bytes) -> list[bytes]:
    *whole, rest = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _locate(lines: list[bytes], hunk: Hunk, path: str, floor: int) -> int:
    """Index of the line where the hunk's old side stands."""
    stated = hunk.old_start - 1
    if not hunk.old:
        if not lines:
            return 0
        raise PatchError("the hunk has no context, so its place cannot be checked", hunk.line, path, hunk.number)
    if stated >= floor and _stands(lines, hunk.old, stated):
        return stated
    places = _places(lines, hunk.old)
    if len(places) == 1 and places[0] >= floor:
        return places[0]
    if len(places) == 1:
        reason = f"its context stands in line {places[0] + 1}, before the end of the hunk before it"
        raise PatchError(reason, hunk.line, path, hunk.number)
    if places:
        shown = ", ".join(str(place + 1) for place in places[:5])
        reason = f"its context is not in line {hunk.old_start} but in {len(places)} other places (lines {shown})"
        raise PatchError(reason, hunk.line, path, hunk.number)
    if hunk.new and len(_places(lines, hunk.new)) == 1:
        raise PatchError("the change is in the file already", hunk.line, path, hunk.number, present=True)
    reason = _difference(lines, hunk, stated)
    line, fuzz = _fuzzy(lines, hunk)
    if fuzz:
        reason += f"; it would fit at line {line} if {fuzz} line{'s' if fuzz > 1 else ''} of context were ignored"
    raise PatchError(reason, hunk.line, path, hunk.number, fuzz=fuzz)


def _stands(lines: list[bytes], block: Sequence[bytes], at: int) -> bool:
    return at >= 0 and lines[at : at + len(block)] == list(block)


def _places(lines: list[bytes], block: Sequence[bytes]) -> list[int]:
    return [at for at, line in enumerate(lines) if line == block[0] and _stands(lines, block, at)]


def _fuzzy(lines: list[bytes], hunk: Hunk) -> tuple[int, int]:
    """Where (line from 1) and with how much fuzz a lenient tool would apply `hunk`; fuzz 0 when it would not."""
    ahead = _common(hunk.old, hunk.new)
    behind = _common(hunk.old[::-1], hunk.new[::-1])
    for fuzz in range(1, _MOST_FUZZ + 1):
        start, end = min(fuzz, ahead), len(hunk.old) - min(fuzz, behind)
        for block, drop in ((hunk.old[start:end], start), (hunk.old[start:], start), (hunk.old[:end], 0)):
            if block and (places := _places(lines, block)):
                nearest = min(places, key=lambda place: abs(place - drop - hunk.old_start + 1))
                return nearest - drop + 1, fuzz
    return 0, 0


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many lines the two begin with in common."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def _difference(lines: list[bytes], hunk: Hunk, stated: int) -> str:
    """The first line that keeps the hunk from its best place: where most of its leading lines match."""
    starts = [at for at, line in enumerate(lines) if line == hunk.old[0]] or [max(stated, 0)]

    def matching(at: int) -> int:
        count = 0
        while count < len(hunk.old) and at + count < len(lines) and lines[at + count] == hunk.old[count]:
            count += 1
        return count

    best = max(starts, key=lambda at: (matching(at), -abs(at - stated)))
    count = min(matching(best), len(hunk.old) - 1)
    found = f"'{_text(lines[best + count])}'" if best + count < len(lines) else "the end of the file"
    expected = _text(hunk.old[count])
    return f"its context is not in the file; line {best + count + 1} is {found}, the patch expects '{expected}'"


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace").rstrip("\n")
    text = text.strip() or text
    return text if len(text) <= 120 else text[:117] + "..."
