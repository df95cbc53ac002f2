# SPDX-License-Identifier: Apache-2.0
"""`match` of a rule: which expressions must be found, how far apart and in which order, and which must be absent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rackwell.diagnose.patterns import PatternError, compiled

_DEEPEST = 6


class MatchError(ValueError):
    """`match` does not hold."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """Where an entry must stand, as seen from the entry before it: lines apart at most, and ``after`` or ``before``."""

    within: int | None = None
    order: str = ""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One expression."""

    pattern: str
    bound: Bound = Bound()

    @property
    def leaves(self) -> Iterator[Leaf]:
        """Itself."""
        yield self


@dataclasses.dataclass(frozen=True)
class Group:
    """Entries of which all, or any must be found."""

    every: bool
    entries: tuple[Leaf | Group, ...]
    bound: Bound = Bound()

    @property
    def leaves(self) -> Iterator[Leaf]:
        """All its expressions."""
        for entry in self.entries:
            yield from entry.leaves


Node = Leaf | Group


@dataclasses.dataclass(frozen=True)
class Count:
    """An expression that must be found in so many lines."""

    leaf: Leaf
    at_least: int


@dataclasses.dataclass(frozen=True)
class Match:
    """The whole. `none` must be absent: everywhere, or near the lines that are found.

    `differ` are pairs of named groups that must both be given, with different texts; `apart` are pairs of which no line
    gives the other's text.
    """

    node: Node | None
    none: tuple[Leaf, ...] = ()
    counts: tuple[Count, ...] = ()
    differ: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def leaves(self) -> list[Leaf]:
        """All expressions that must be found."""
        return [*(self.node.leaves if self.node else ()), *(count.leaf for count in self.counts)]

    @classmethod
    def parse(cls, value: Any) -> Match:
        """From YAML's data.

        Raises:
            MatchError: it has another form.
        """
        if isinstance(value, (str, list)):
            value = {"any": value if isinstance(value, list) else [value]}
        if not isinstance(value, dict):
            raise MatchError(
                "`match` is an expression, a list, or a mapping with `all`, `any`, `none`, `count`, `differ`, `apart`"
            )
        if unknown := sorted(map(str, set(value) - {"all", "any", "none", "count", "differ", "apart"})):
            raise MatchError(f"`match` has no {', '.join(unknown)}")
        nodes = [_group(key == "all", value[key], Bound(), 0) for key in ("all", "any") if key in value]
        node: Node | None = nodes[0] if nodes else None
        if len(nodes) == 2:
            node = Group(True, (*_flat(nodes[0]), nodes[1]))
        none = tuple(_leaf(entry) for entry in _list(value.get("none", []), "none"))
        given = value.get("count", [])
        counts = tuple(_count(entry) for entry in (given if isinstance(given, list) else [given]))
        if node is None and not counts:
            raise MatchError("`match` names nothing that must be there")
        pairs = [_pairs(value.get(key, []), key) for key in ("differ", "apart")]
        return cls(node, none, counts, *pairs)

    def check(self) -> None:
        """Compile all expressions, which takes its time.

        Raises:
            MatchError: one does not hold, or is found everywhere.
        """
        for leaf in (*self.leaves, *self.none):
            try:
                if compiled(leaf.pattern).search(""):
                    raise MatchError(f"'{leaf.pattern}' is found in an empty line, and so everywhere")
            except PatternError as error:
                raise MatchError(str(error)) from error


def _pairs(value: Any, key: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list):
        raise MatchError(f"`{key}` is a list of two names of groups, or of such lists")
    pairs = value if all(isinstance(pair, list) for pair in value) else [value]
    if not all(len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in pairs):
        raise MatchError(f"`{key}` is two names of groups, or a list of such pairs")
    return tuple((first, second) for first, second in pairs)


def _flat(node: Node) -> tuple[Node, ...]:
    return node.entries if isinstance(node, Group) and node.every else (node,)


def _group(every: bool, entries: Any, bound: Bound, depth: int) -> Group:
    if depth > _DEEPEST:
        raise MatchError("`match` is nested too deeply")
    name = "all" if every else "any"
    nodes = tuple(_entry(entry, depth + 1) for entry in _list(entries, name))
    if not nodes:
        raise MatchError(f"`{name}` is empty")
    if not every and any(isinstance(entry, dict) and set(entry) & {"within", "after", "before"} for entry in entries):
        raise MatchError("entries of `any` have no order: put within, after or before on the `any` itself")
    return Group(every, nodes, bound)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        value = [value]
    if not all(isinstance(entry, (str, dict)) for entry in value):
        raise MatchError(f"each entry of `{name}` is an expression or a mapping")
    return list(value)


def _entry(entry: Any, depth: int) -> Node:
    if isinstance(entry, dict) and ("all" in entry or "any" in entry):
        if unknown := sorted(map(str, set(entry) - {"all", "any", "within", "order"})):
            raise MatchError(f"an entry with `all` or `any` has no {', '.join(unknown)} (order: after or before)")
        if "all" in entry and "any" in entry:
            raise MatchError("an entry has `all`, or `any`")
        key = "all" if "all" in entry else "any"
        return _group(key == "all", entry[key], _bound(entry, str(entry.get("order", ""))), depth)
    return _leaf(entry)


def _leaf(entry: Any) -> Leaf:
    if isinstance(entry, str):
        entry = {"re": entry}
    if unknown := sorted(map(str, set(entry) - {"re", "after", "before", "within"})):
        raise MatchError(f"an entry has no {', '.join(unknown)}")
    keys = [key for key in ("re", "after", "before") if key in entry]
    if len(keys) != 1:
        raise MatchError("an entry has one of `re`, `after`, `before`")
    order = "" if keys[0] == "re" else keys[0]
    pattern = entry[keys[0]]
    if not isinstance(pattern, str) or not pattern:
        raise MatchError(f"`{keys[0]}` is an expression, in quotes")
    return Leaf(pattern, _bound(entry, order))


def _bound(entry: dict[str, Any], order: str) -> Bound:
    within = entry.get("within")
    if within is not None and (isinstance(within, bool) or not isinstance(within, int) or within < 0):
        raise MatchError("`within` is a number of lines")
    if order not in {"", "after", "before"}:
        raise MatchError("`order` is after or before")
    return Bound(within, order)


def _count(entry: Any) -> Count:
    if not isinstance(entry, dict) or set(entry) != {"re", "at_least"}:
        raise MatchError("`count` has `re` and `at_least`")
    most = entry["at_least"]
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise MatchError("`at_least` is a number of lines")
    return Count(_leaf({"re": entry["re"]}), most)
