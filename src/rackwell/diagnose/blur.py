# SPDX-License-Identifier: Apache-2.0
"""Expressions for lines in which every digit is written as 0.

The lines of a log that differ in numbers alone are one line then, and need to be looked at once. Of an expression two
others are made: the `wide` one is found in such a line whenever the expression is found in any line that became it;
the `narrow` one is found only when the expression is found in all of them. Between the two, each line is asked itself.
"""

from __future__ import annotations

import dataclasses
import re

ZEROS = bytes.maketrans(b"123456789", b"000000000")
_TEXT = str.maketrans("123456789", "000000000")

_NOTHING = r"[^\x00-\x{10FFFF}]"
_ALL = frozenset("0123456789")
_NONE: frozenset[str] = frozenset()
_REPEAT = re.compile(r"\{\d+(?:,\d*)?\}")
_GROUP = re.compile(r"\(\?(?:P?<\w+>|[imsU-]*[:)])|\(")
_ESCAPE = re.compile(r"\\(?:x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|[pP]\{\^?\w+\}|[pP]\w|[0-7]{1,3}|.)", re.DOTALL)
_SAME = re.compile(rf"(?:[^\\\[{{(0-9]|\\[^xpPQEC0-9]|{_REPEAT.pattern}|{_GROUP.pattern})*+")
"""No digit, and no class that might have some: most expressions are so."""
_NAMED = re.compile(r"\[:\^?\w+:\]")
_DIGITS_OF = {r"\d": _ALL, r"\w": _ALL, r"\S": _ALL}
_NAMES = {"[:digit:]", "[:alnum:]", "[:xdigit:]", "[:word:]", "[:graph:]", "[:print:]", "[:ascii:]"}


@dataclasses.dataclass(frozen=True, slots=True)
class Blurred:
    """`narrow` is None when the expression does not tell digits apart: then it is `wide` itself."""

    wide: str
    narrow: str | None


class _UnknownError(Exception):
    pass


def zeros(text: str) -> str:
    """`text` with every digit as 0."""
    return text.translate(_TEXT)


def blurred(pattern: str) -> Blurred:
    """The two expressions of an expression of RE2."""
    if _SAME.fullmatch(pattern):
        return Blurred(pattern, None)
    try:
        wide, narrow = _parts(pattern)
    except _UnknownError:
        return Blurred("(?:)", _NOTHING)  # each line is asked itself
    return Blurred(wide, None if narrow == wide else narrow)


def _parts(pattern: str) -> tuple[str, str]:
    wide, narrow, at = [], [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "[":
            end, here, less = _class(pattern, at)
        elif char == "\\":
            end, digit = _escape(pattern, at)
            here = pattern[at:end] if digit is None else "0"
            less = here if digit is None else _NOTHING
        elif char in _ALL:
            end, here, less = at + 1, "0", _NOTHING
        else:
            kept = {"{": _REPEAT, "(": _GROUP}.get(char)
            found = kept.match(pattern, at) if kept is not None else None
            end = found.end() if found is not None else at + 1
            here = less = pattern[at:end]
        wide.append(here)
        narrow.append(less)
        at = end
    return "".join(wide), "".join(narrow)


def _escape(pattern: str, at: int) -> tuple[int, str | None]:
    """The end of an escape, and the digit that it stands for."""
    found = _ESCAPE.match(pattern, at)
    if found is None or found[0] in {r"\Q", r"\E", r"\C"}:
        raise _UnknownError
    code = _code(found[0])
    return found.end(), chr(code) if code is not None and chr(code) in _ALL else None


def _code(escape: str) -> int | None:
    """The character's number of `\\x41`, `\\x{41}`, `\\101`, `\\-`; None for a class of characters or a place."""
    if escape[1] == "x":
        return int(escape[2:].strip("{}"), 16)
    if escape[1] in "01234567":
        return int(escape[1:], 8)
    return None if escape[1].isalnum() else ord(escape[1])


def _class(pattern: str, at: int) -> tuple[int, str, str]:
    """The end of a bracketed class, and it with all digits or none, where it has only some."""
    start = at + 1
    negated = pattern.startswith("^", start)
    start += negated
    items, at = [], start
    while at == start or not pattern.startswith("]", at):
        if at >= len(pattern):
            raise _UnknownError
        item, at = _item(pattern, at)
        items.append(item)
    end = at + 1
    digits = frozenset[str]().union(*(item.digits for item in items))
    if digits in (_NONE, _ALL):
        return end, pattern[start - 1 - negated : end], pattern[start - 1 - negated : end]
    without = "".join(item.without for item in items)
    more, less = f"{without}0-9", without
    if negated:
        return end, f"[^{less}]" if less else r"(?s:.)", f"[^{more}]"
    return end, f"[{more}]", f"[{less}]" if less else _NOTHING


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """Of a class: the digits among it, and how it is written without them."""

    digits: frozenset[str]
    without: str


def _item(pattern: str, at: int) -> tuple[_Item, int]:
    named = _NAMED.match(pattern, at)
    if named is not None:
        name = named[0].replace("^", "")
        digits = _ALL if (name in _NAMES) != ("^" in named[0]) else _NONE
        return _Item(digits, "" if digits else named[0]), named.end()
    low, end, escape = _char(pattern, at)
    if low is None:
        digits = _of_escape(escape)
        return _Item(digits, "" if digits else escape), end
    high = low
    if pattern.startswith("-", end) and not pattern.startswith("]", end + 1):
        high_or_none, end, _ = _char(pattern, end + 1)
        if high_or_none is None:
            raise _UnknownError
        high = high_or_none
    digits = frozenset(digit for digit in _ALL if low <= ord(digit) <= high)
    parts = [(low, min(high, ord("0") - 1)), (max(low, ord("9") + 1), high)]
    return _Item(digits, "".join(rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b in parts if a <= b)), end


def _of_escape(escape: str) -> frozenset[str]:
    if escape[1] in "pP":
        number = escape[2:].strip("{}").lstrip("^")[:1] == "N"
        if (number != (escape[1] == "P")) == ("^" not in escape):
            raise _UnknownError  # numbers, among which other signs than digits are
        return _NONE
    return _DIGITS_OF.get(escape, _NONE)


def _char(pattern: str, at: int) -> tuple[int | None, int, str]:
    if at >= len(pattern):
        raise _UnknownError
    if pattern[at] != "\\":
        return ord(pattern[at]), at + 1, ""
    found = _ESCAPE.match(pattern, at)
    if found is None:
        raise _UnknownError
    code = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}.get(found[0][1]) if len(found[0]) == 2 else None
    return _code(found[0]) if code is None else code, found.end(), found[0]
