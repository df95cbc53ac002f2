# SPDX-License-Identifier: Apache-2.0
"""Unified diffs whose hunks can be found again: as much context as makes each of them stand in one place alone."""

from __future__ import annotations

import difflib

_LEAST, _MOST = 3, 12
_Opcode = tuple[str, int, int, int, int]


def diff(path: str, old: bytes | None, new: bytes | None) -> bytes:
    """The diff of one file, None for one that does not exist; empty when there is no difference.

    The context is three lines; more for a hunk that would stand in several places of `old`.
    """
    if old == new:
        return b""
    before, after = _lines(old or b""), _lines(new or b"")
    groups = _groups(before, after)
    hunks: list[bytes] = []
    end = 0
    for number, group in enumerate(groups):
        limit = groups[number + 1][0][1] if number + 1 < len(groups) else len(before)
        ahead, behind = _context(before, group, end, limit)
        hunks.append(_hunk(before, after, group, ahead, behind))
        end = group[-1][2] + behind
    names = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
    return f"--- {names[0]}\n+++ {names[1]}\n".encode() + b"".join(hunks)


def _groups(before: list[bytes], after: list[bytes]) -> list[list[_Opcode]]:
    """What differs, in groups with the least context. Only the lines between the first and the last difference are
    compared: the comparison is slow where many lines are alike."""
    shorter = min(len(before), len(after))
    ahead = 0
    while ahead < shorter and before[ahead] == after[ahead]:
        ahead += 1
    behind = 0
    while behind < shorter - ahead and before[-1 - behind] == after[-1 - behind]:
        behind += 1
    skip, keep = max(ahead - _LEAST, 0), max(behind - _LEAST, 0)
    middle = before[skip : len(before) - keep], after[skip : len(after) - keep]
    return [
        [(tag, a + skip, b + skip, c + skip, d + skip) for tag, a, b, c, d in group]
        for group in difflib.SequenceMatcher(None, *middle, autojunk=False).get_grouped_opcodes(_LEAST)
    ]


def _context(before: list[bytes], group: list[_Opcode], floor: int, limit: int) -> tuple[int, int]:
    """How many lines more than it has, ahead and behind, make the hunk of `group` stand in one place alone."""
    first, last = group[0][1], group[-1][2]
    for more in range(_MOST - _LEAST + 1):
        start, end = max(first - more, floor), min(last + more, limit)
        if _places(before, before[start:end]) == 1:
            return first - start, end - last
    return 0, 0


def _lines(content: bytes) -> list[bytes]:
    *whole, rest = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _hunk(before: list[bytes], after: list[bytes], group: list[_Opcode], ahead: int, behind: int) -> bytes:
    old = group[0][1] - ahead, group[-1][2] + behind
    new = group[0][3] - ahead, group[-1][4] + behind
    out = [f"@@ -{_span(*old)} +{_span(*new)} @@\n".encode()]
    out += [_line(b" ", text) for text in before[old[0] : group[0][1]]]
    for tag, first, last, new_first, new_last in group:
        if tag == "equal":
            out += [_line(b" ", text) for text in before[first:last]]
            continue
        out += [_line(b"-", text) for text in before[first:last]]
        out += [_line(b"+", text) for text in after[new_first:new_last]]
    out += [_line(b" ", text) for text in before[group[-1][2] : old[1]]]
    return b"".join(out)


def _span(first: int, last: int) -> str:
    count = last - first
    start = first + 1 if count else first
    return str(start) if count == 1 else f"{start},{count}"


def _line(mark: bytes, text: bytes) -> bytes:
    return mark + text if text.endswith(b"\n") else mark + text + b"\n\\ No newline at end of file\n"


def _places(lines: list[bytes], block: list[bytes]) -> int:
    """In how many places `block` stands; one for an empty block, which only a new file has."""
    if not block:
        return 1
    return sum(1 for at, line in enumerate(lines) if line == block[0] and lines[at : at + len(block)] == block)
