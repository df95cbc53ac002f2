# SPDX-License-Identifier: Apache-2.0
"""The lines in which the expressions of the rules were found; bounded, whatever the size of the text."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable

_MOST = 100


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

    @property
    def full(self) -> bool:
        """Whether the first ones are all kept."""
        return len(self.first) >= _MOST

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
        """Those that are kept, in order, each line once."""
        kept = {hit.number: hit for hit in (*self.last, *reversed(self.first))}
        return [kept[number] for number in sorted(kept)]


class Store:
    """Expression -> its lines."""

    def __init__(self) -> None:
        self.hits: dict[str, Hits] = {}

    def add(self, pattern: str, hit: Hit) -> Hits:
        """`pattern` was found in a line."""
        mine = self.hits.get(pattern)
        if mine is None:
            mine = self.hits[pattern] = Hits()
        mine.add(hit)
        return mine

    def get(self, pattern: str) -> Hits | None:
        """The lines of an expression; None for none."""
        return self.hits.get(pattern)

    def take(self, other: Store, patterns: Collection[str] | None = None) -> None:
        """Add what `other` holds, of `patterns` only when given."""
        for pattern, theirs in other.hits.items():
            if patterns is None or pattern in patterns:
                mine = self.hits.setdefault(pattern, Hits())
                kept: Iterable[Hit] = (*theirs.first, *theirs.last)
                before = mine.count
                for hit in kept:
                    mine.add(hit)
                mine.count = before + theirs.count
