# SPDX-License-Identifier: Apache-2.0
"""The lines in which the expressions of the rules were found; bounded, whatever the size of the text."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

MOST = 100
"""Lines of an expression of which all is kept, from its beginning and from its end."""
_NEAR = 1000


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
    """The lines of one expression: how many, the first, the last, those near others, the first of each rank."""

    __slots__ = ("count", "first", "last", "near", "ranks")

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Hit] = []
        self.last: collections.deque[Hit] = collections.deque(maxlen=MOST)
        self.near: collections.deque[Hit] = collections.deque(maxlen=_NEAR)
        self.ranks: dict[str, Hit] = {}

    @property
    def full(self) -> bool:
        """Whether the first ones are all kept."""
        return len(self.first) >= MOST

    def add(self, hit: Hit) -> None:
        """One more line."""
        self.count += 1
        if len(self.first) < MOST:
            self.first.append(hit)
        else:
            self.last.append(hit)
        if hit.rank and hit.rank not in self.ranks and len(self.ranks) < MOST:
            self.ranks[hit.rank] = hit

    def passed(self, count: int, last: Iterable[Hit]) -> None:
        """`count` more lines, of which these are the last; none is among the first, and none has a new rank."""
        self.count += count
        self.last = collections.deque(sorted((*self.last, *last), key=lambda hit: hit.number), maxlen=MOST)

    def known(self) -> list[Hit]:
        """Those that are kept, in order, each line once."""
        kept = {hit.number: hit for hit in (*self.last, *self.near, *reversed(self.first))}
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

    def take(self, other: Store) -> None:
        """Add what `other` holds, all of it behind what is here."""
        for pattern, theirs in other.hits.items():
            mine = self.hits.setdefault(pattern, Hits())
            count = mine.count + theirs.count
            for hit in (*theirs.first, *theirs.last):
                mine.add(hit)
            mine.count = count
            mine.near.extend(theirs.near)
            for rank, hit in theirs.ranks.items():
                if len(mine.ranks) < MOST:
                    mine.ranks.setdefault(rank, hit)
