# SPDX-License-Identifier: Apache-2.0
"""All expressions of the rules, of the facts and of the starts together, ready for texts of any size."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rackwell.diagnose import facts, starts, unknown
from rackwell.diagnose.patterns import Filter, compiled, together
from rackwell.diagnose.rules import Rule
from rackwell.diagnose.tree import Group, Leaf, Node

_CACHED = 5000
ENOUGH = 100
"""Lines of an expression after which further ones tell nothing new, unless they are counted."""


class Kind(enum.Enum):
    """What an expression is for."""

    RULE = enum.auto()
    FACT = enum.auto()
    START = enum.auto()
    TELLING = enum.auto()


class Matcher:
    """The expressions of rules.

    Attributes:
        everything: the expressions. kinds: what each is for.
        lasting: those of rules whose kernel lines outlive a start.
        counted: those whose lines are counted to the last one; of the others `ENOUGH` are.
        anchored: indexes of those that ask where a message begins.
        bare: indexes of those without a literal that could be searched for quickly.
        around: the widest `within` of the rules that have an expression, for each of them.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = list(rules)
        mine = sorted({leaf.pattern for rule in rules for leaf in (*rule.tree.leaves, *rule.tree.none)})
        parts = [
            (Kind.RULE, mine),
            (Kind.FACT, list(facts.PATTERNS)),
            (Kind.START, list(starts.PATTERNS)),
            (Kind.TELLING, list(unknown.PATTERNS)),
        ]
        self.everything = [pattern for _, patterns in parts for pattern in patterns]
        self.kinds = [kind for kind, patterns in parts for _ in patterns]
        self.lasting = {leaf.pattern for rule in rules if rule.stays for leaf in rule.tree.leaves}
        self.counted = {pattern for rule in rules for pattern in _counted(rule)}
        around: dict[str, int] = {}
        for rule in rules:
            wide = _widest(rule)
            for leaf in (*rule.tree.leaves, *rule.tree.none):
                around[leaf.pattern] = max(around.get(leaf.pattern, 0), wide)
        self.around = [around.get(pattern, 0) for pattern in self.everything]
        self.anchored = {i for i, pattern in enumerate(self.everything) if _begins(pattern) != pattern}
        self._found = Filter(self.everything)
        self._begun = [_begins(pattern) for pattern in self.everything]
        self._every = Filter(self._begun)
        self.bare = frozenset(self._every.possible(b"\x01"))
        self._cache: dict[str, list[int]] = {}
        self._searches: dict[int, Any] = {}
        self._often: set[int] = set()
        self._together: Any = None
        self._vain: dict[int, int] = {}
        self._asked = 0

    def message(self, message: str) -> list[int]:
        """What is found in a message."""
        known = self._cache.get(message)
        if known is None:
            known = self._every.found(message.encode("utf-8", "replace"))
            if not self.anchored.isdisjoint(known):
                known = [
                    index
                    for index in known
                    if index not in self.anchored or compiled(self.everything[index]).search(message)
                ]
            if len(message) < 1000:
                if len(self._cache) > _CACHED:
                    self._cache.clear()
                self._cache[message] = known
        return known

    def new(self, lines: bytes, known: Collection[int]) -> list[int]:
        """What may be found in lines, but for what is known and the bare ones."""
        asked = [i for i in self._every.possible(lines) if i not in known and i not in self.bare]
        if not asked:
            return asked
        if self._often.issuperset(asked) and self._together is not None and not self._together.search(lines):
            return []
        found = [i for i in asked if self._search(i)(lines)]
        if len(found) < len(asked):
            self._in_vain(set(asked).difference(found))
        return found

    def _in_vain(self, asked: set[int]) -> None:
        """Expressions whose literals stand everywhere, and which are found nowhere, are searched for in one pass."""
        for index in asked - self._often:
            self._vain[index] = self._vain.get(index, 0) + 1
        self._asked += 1
        if self._asked % 200 == 0:
            often = {index for index, times in self._vain.items() if times > 50} - self._often
            if often:
                self._often |= often
                self._together = together(self._begun[index] for index in sorted(self._often))

    def anything(self, lines: bytes, known: Collection[int]) -> bool:
        """Whether `new` may find something: quick, for many lines."""
        return any(index not in known and index not in self.bare for index in self._every.possible(lines))

    def _search(self, index: int) -> Any:
        search = self._searches.get(index)
        if search is None:
            # of several lines at once, each ends where a line ends
            search = self._searches[index] = compiled(f"(?m:{self._begun[index]})").search
        return search

    def only(self, wanted: Iterable[int]) -> tuple[list[int], Filter]:
        """Some of the expressions, and what finds them in a line."""
        indexes = sorted(wanted)
        return indexes, Filter([self._begun[index] for index in indexes])


_ANCHOR = re.compile(r"(?<!\\)((?:\\\\)*)(?:(?<!\[)\^|\\A)")


def _begins(pattern: str) -> str:
    """The expression without the demand that it stands at the beginning."""
    return _ANCHOR.sub(r"\1", pattern)


def _widest(rule: Rule) -> int:
    bounds = [leaf.bound.within or 0 for leaf in (*rule.tree.leaves, *rule.tree.none)]
    return max([*bounds, *_group_bounds(rule.tree.node)])


def _group_bounds(node: Node | None) -> list[int]:
    if not isinstance(node, Group):
        return []
    return [node.bound.within or 0, *(bound for entry in node.entries for bound in _group_bounds(entry))]


def _counted(rule: Rule) -> list[str]:
    patterns = [count.leaf.pattern for count in rule.tree.counts if count.at_least > ENOUGH]
    return patterns + telling(rule)


def telling(rule: Rule) -> list[str]:
    """The expressions of a rule that say most; the others stand around them."""
    return [] if rule.tree.node is None else _telling(rule.tree.node)


def _telling(node: Node) -> list[str]:
    """The expressions of which the lines are counted: of several that must be there, the one that says most."""
    if isinstance(node, Leaf):
        return [node.pattern]
    if not node.every:
        return [pattern for entry in node.entries for pattern in _telling(entry)]
    leaves = [entry.pattern for entry in node.entries if isinstance(entry, Leaf)]
    trouble = [pattern for pattern in leaves if _TROUBLE.search(pattern)]
    return [max(trouble, key=len)] if trouble else []


_TROUBLE = re.compile(
    r"(?i)error|fail|exception|NVRM|WARN|FAULT|cannot|denied|refused|killed|retract|NaN|illegal|invalid"
)
