# SPDX-License-Identifier: Apache-2.0
"""Whether the lines that were found are what a rule's `match` asks for, and which of them say so."""

from __future__ import annotations

import bisect
import dataclasses

from rackwell.diagnose.hits import Hit, Store
from rackwell.diagnose.patterns import compiled
from rackwell.diagnose.tree import Bound, Group, Leaf, Match, Node

_MOST = 400


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One way in which a part of `match` holds: the line that the next entry is measured from, and all lines."""

    at: int
    pairs: tuple[tuple[str, Hit], ...]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The lines that say so, with the expression that each was found by, and what their named groups hold."""

    pairs: tuple[tuple[str, Hit], ...]
    count: int
    ranks: tuple[str, ...]
    values: dict[str, str]

    @property
    def first(self) -> int:
        """The number of the earliest line."""
        return min(hit.number for _, hit in self.pairs)


def evaluate(match: Match, store: Store) -> Evidence | None:
    """The evidence for a match; None when there is none."""
    pairs: tuple[tuple[str, Hit], ...] = ()
    for count in match.counts:
        hits = store.get(count.leaf.pattern)
        if hits is None or hits.count < count.at_least:
            return None
        pairs += ((count.leaf.pattern, hits.first[0]),)
    if match.node is not None:
        ways = _ways(match.node, store)
        near = [leaf for leaf in match.none if leaf.bound.within is not None]
        ways = [way for way in ways if not any(_close(leaf, way, store) for leaf in near)]
        if match.differ:
            ways = [way for way in ways if _differ(match.differ, _values(way.pairs))]
        if not ways or not all(_apart(match, pair, store) for pair in match.apart):
            return None
        pairs = ways[0].pairs + pairs
    for leaf in match.none:
        if (leaf.bound.within is None or match.node is None) and store.get(leaf.pattern) is not None:
            return None
    return _evidence(pairs, store)


def _evidence(pairs: tuple[tuple[str, Hit], ...], store: Store) -> Evidence:
    values = _values(pairs)
    ranks: dict[str, int] = {}
    counts = []
    for pattern, _ in pairs:
        hits = store.get(pattern)
        if hits is not None:
            counts.append(hits.count)
            for rank, first in hits.ranks.items():
                ranks.setdefault(rank, first.number)
    ordered = tuple(sorted(ranks, key=lambda rank: ranks[rank]))
    return Evidence(pairs, min(counts, default=1), ordered, values)


def _values(pairs: tuple[tuple[str, Hit], ...]) -> dict[str, str]:
    """What the named groups hold; the first line that gives one counts."""
    values: dict[str, str] = {}
    for pattern, hit in pairs:
        expression = compiled(pattern)
        if expression.groupindex:
            found = expression.search(hit.message)
            for name, value in (found.groupdict() if found else {}).items():
                if value and name not in values:
                    values[name] = value
    return values


def _differ(pairs: tuple[tuple[str, str], ...], values: dict[str, str]) -> bool:
    return all(
        bool(values.get(first)) and bool(values.get(second)) and values[first] != values[second]
        for first, second in pairs
    )


def _apart(match: Match, pair: tuple[str, str], store: Store) -> bool:
    """Both groups are given somewhere, and no text is that of both."""
    first, second = (_texts(match, name, store) for name in pair)
    return bool(first) and bool(second) and not first & second


def _texts(match: Match, name: str, store: Store) -> set[str]:
    texts: set[str] = set()
    for leaf in match.leaves:
        expression, hits = compiled(leaf.pattern), store.get(leaf.pattern)
        if name in expression.groupindex and hits is not None:
            found = [expression.search(hit.message) for hit in hits.known()]
            texts |= {each.group(name) for each in found if each is not None and each.group(name)}
    return texts


def _close(leaf: Leaf, way: Found, store: Store) -> bool:
    hits = store.get(leaf.pattern)
    if hits is None or leaf.bound.within is None:
        return False
    numbers = [hit.number for hit in hits.known()]
    return any(_between(numbers, hit.number, leaf.bound) is not None for _, hit in way.pairs)


def _ways(node: Node, store: Store) -> list[Found]:
    """All ways in which `node` holds, by the number of their line, without regard to its own bound."""
    if isinstance(node, Leaf):
        hits = store.get(node.pattern)
        return [] if hits is None else [Found(hit.number, ((node.pattern, hit),)) for hit in hits.known()]
    if not node.every:
        ways = [way for entry in node.entries for way in _ways(entry, store)]
        return sorted(ways, key=lambda way: way.at)[:_MOST]
    return _chain(node, store)


def _chain(group: Group, store: Store) -> list[Found]:
    ways: list[Found] | None = None
    for entry in group.entries:
        here = _ways(entry, store)
        ways = here if ways is None else _join(ways, here, entry.bound)
        if not ways:
            return []
    return sorted(ways or [], key=lambda way: way.at)[:_MOST]


def _join(before: list[Found], here: list[Found], bound: Bound) -> list[Found]:
    if bound.within is None and not bound.order:
        first = before[0]
        return [Found(way.at, first.pairs + way.pairs) for way in here]
    numbers = [way.at for way in before]
    joined = []
    for way in here:
        index = _between(numbers, way.at, bound)
        if index is not None:
            joined.append(Found(way.at, before[index].pairs + way.pairs))
    return joined


def _between(numbers: list[int], at: int, bound: Bound) -> int | None:
    """The index of an earlier entry's line that `at` may stand beside; the nearest one. Numbers are sorted."""
    span = bound.within if bound.within is not None else 1 << 60
    low = at - span if bound.order != "before" else at + 1
    high = at + span if bound.order != "after" else at - 1
    left, right = bisect.bisect_left(numbers, low), bisect.bisect_right(numbers, high)
    if left >= right:
        return None
    if bound.within is None:
        return left
    return min(range(left, right), key=lambda index: abs(numbers[index] - at))
