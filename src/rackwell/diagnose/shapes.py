# SPDX-License-Identifier: Apache-2.0
"""What is found in the lines that differ in numbers alone: looked at once, whatever their number.

Such lines have one shape (`blur`), and with it the place of their message and of their rank. Expressions that tell
digits apart are asked of each line, unless the shape already says that they are found in all of its lines, or in none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from rackwell.diagnose.blur import Blurred, blurred, zeros
from rackwell.diagnose.patterns import Filter, finder, several
from rackwell.diagnose.prefix import Line, Part, split

_KEPT = 20_000
_ASKED = 1000
_OFTEN = 200
LONGEST = 2000
"""Bytes of a line up to which its shape is remembered."""


class Asked:
    """Expressions that lines are asked for; asked often, they are one automaton.

    `finds` gives the places of those that are found, and behind them their number.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._each = [finder(pattern) for pattern in patterns]
        self._times = 0
        self.finds: Callable[[bytes], list[int]] = self.slowly

    def slowly(self, message: bytes) -> list[int]:
        """As `finds`."""
        self._times += 1
        if self._times == _OFTEN:
            self.finds = several(self._patterns) or self.slowly
        return [*(place for place, find in enumerate(self._each) if find(message)), len(self._each)]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Of lines with the same text but for their digits.

    Attributes:
        start: where the message begins: the characters before it.
        plain: all of the line is ASCII, in which a character is a byte.
        parts: of the rank.
        certain: indexes of the expressions that are found in each. open: those that each is asked for, by `asked`.
        message: that of the first of them, its digits as zeros.
    """

    start: int
    plain: bool
    parts: tuple[Part, ...]
    name: str
    certain: tuple[int, ...]
    open: tuple[int, ...]
    asked: Asked | None
    message: str

    def places(self, raw: bytes) -> tuple[int, ...]:
        """Places in `open` of the expressions that are found in one of its lines, and its length; for `found`."""
        if self.asked is None:
            return ()
        return tuple(self.asked.finds(raw[self.start :] if self.plain else self._message(raw)))

    def found(self, places: tuple[int, ...], raw: bytes) -> tuple[int, ...]:
        """Indexes of what is found in a line of which `places` are known."""
        if self.asked is None:
            return self.certain
        if len(self.open) not in places:
            self.asked.finds = self.asked.slowly
            places = tuple(self.asked.finds(self._message(raw)))
        more = (self.open[place] for place in places if place < len(self.open))
        return tuple(sorted((*self.certain, *more)))

    def _message(self, raw: bytes) -> bytes:
        return raw.decode("utf-8", "replace")[self.start :].encode("utf-8", "replace")


class Shapes:
    """The shapes of lines, by the line with its digits as zeros; bounded. None where nothing is found."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = list(patterns)
        self._blurred: list[Blurred] = [blurred(pattern) for pattern in self._patterns]
        self._filter = Filter([each.wide for each in self._blurred])
        self._known: dict[bytes, Shape | None] = {b"": None}
        self._asked: dict[tuple[int, ...], Asked] = {}

    def of(self, line: bytes) -> Shape | None:
        """The shape of a line whose digits are zeros."""
        try:
            return self._known[line]
        except KeyError:
            shape = self._look(split(line.decode("utf-8", "replace")), line.isascii())
        if len(line) <= LONGEST:
            if len(self._known) > _KEPT:
                self._known = {b"": None}
            self._known[line] = shape
        return shape

    def message(self, message: str) -> tuple[int, ...]:
        """Indexes of what is found in a line that has no prefix any more."""
        shape = self._look(Line(zeros(message)), plain=message.isascii())
        raw = message.encode("utf-8", "replace")
        return shape.found(shape.places(raw), raw) if shape is not None else ()

    def _look(self, said: Line, plain: bool) -> Shape | None:
        message = said.message.encode("utf-8", "replace")
        certain: list[int] = []
        asked: list[int] = []
        for index in self._filter.found(message):
            narrow = self._blurred[index].narrow
            if narrow is None or finder(narrow)(message):
                certain.append(index)
            else:
                asked.append(index)
        if not certain and not asked:
            return None
        answers = self._askers(tuple(asked)) if asked else None
        return Shape(said.start, plain, said.parts, said.name, tuple(certain), tuple(asked), answers, said.message)

    def _askers(self, asked: tuple[int, ...]) -> Asked:
        known = self._asked.get(asked)
        if known is None:
            if len(self._asked) > _ASKED:
                self._asked = {}
            known = self._asked[asked] = Asked([self._patterns[index] for index in asked])
        return known
