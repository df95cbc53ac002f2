# SPDX-License-Identifier: Apache-2.0
"""The lines in which the expressions of the rules were found; bounded, whatever the size of the text."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

_MOST = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """One line. `number` counts over all sources; `source` and `line` are what a person is told."""

    number: int
    line: int
    text: str
    message: str
    rank: str = ""
    source: str = ""


class Hits:
    """The lines of one expression: how many, the first and the last of them, and the first of each rank."""

    __slots__ = ("count", "first", "last", "ranks")

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Hit] = []
        self.last: collections.deque[Hit] = collections.deque(maxlen=_MOST)
        self.ranks: dict[str, Hit] = {}

    def add(self, hit: Hit) -> None:
        """One more line."""
        self.count += 1
        if len(self.first) < _MOST:
            self.first.append(hit)
        else:
            self.last.append(hit)
        if hit.rank and hit.rank not in self.ranks and len(self.ranks) < _MOST:
            self.ranks[hit.rank] = hit

    def known(self) -> list[Hit]:
        """Those that are kept, in order."""
        return [*self.first, *self.last]


class Store:
    """Expression -> its lines."""

    def __init__(self) -> None:
        self.hits: dict[str, Hits] = {}

    def add(self, pattern: str, hit: Hit) -> None:
        """`pattern` was found in a line."""
        mine = self.hits.get(pattern)
        if mine is None:
            mine = self.hits[pattern] = Hits()
        mine.add(hit)

    def get(self, pattern: str) -> Hits | None:
        """The lines of an expression; None for none."""
        return self.hits.get(pattern)

    def take(self, other: Store, patterns: Iterable[str] | None = None) -> None:
        """Add what `other` holds, of `patterns` only when given. `other` stands after this one in the text."""
        for pattern, theirs in other.hits.items():
            if patterns is not None and pattern not in patterns:
                continue
            mine = self.hits.setdefault(pattern, Hits())
            kept = theirs.known()
            for hit in kept:
                mine.add(hit)
            mine.count += theirs.count - len(kept)
