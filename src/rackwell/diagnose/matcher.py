# SPDX-License-Identifier: Apache-2.0
"""All expressions of the rules, of the facts and of the starts together, ready for texts of any size."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence

from rackwell.diagnose import facts, starts, unknown
from rackwell.diagnose.rules import Rule
from rackwell.diagnose.shapes import Shapes
from rackwell.diagnose.tree import Group, Leaf, Node


class Kind(enum.Enum):
    """What an expression is for."""

    RULE = enum.auto()
    FACT = enum.auto()
    START = enum.auto()
    TELLING = enum.auto()


class Matcher:
    """The expressions of rules.

    Attributes:
        everything: the expressions. kinds: what each is for. shapes: what is found in lines.
        lasting: those of rules whose kernel lines outlive a start.
        partners: for an expression those that rules want to have, or not to have, near it, and how far off at most.
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
        self.partners = _partners(rules)
        self.shapes = Shapes(self.everything)


def _partners(rules: Iterable[Rule]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for rule in rules:
        wide = _widest(rule)
        if not wide:
            continue
        patterns = {leaf.pattern for leaf in (*rule.tree.leaves, *rule.tree.none)}
        for pattern in patterns:
            near = found.setdefault(pattern, {})
            for other in patterns - {pattern}:
                near[other] = max(near.get(other, 0), wide)
    return found


def _widest(rule: Rule) -> int:
    bounds = [leaf.bound.within or 0 for leaf in (*rule.tree.leaves, *rule.tree.none)]
    return max([*bounds, *_group_bounds(rule.tree.node)])


def _group_bounds(node: Node | None) -> list[int]:
    if not isinstance(node, Group):
        return []
    return [node.bound.within or 0, *(bound for entry in node.entries for bound in _group_bounds(entry))]


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
