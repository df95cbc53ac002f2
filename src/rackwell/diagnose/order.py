# SPDX-License-Identifier: Apache-2.0
"""Which finding is the cause: what follows from another is folded under it, and the rest ordered by rank and line."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable

from rackwell.diagnose.evaluate import Evidence
from rackwell.diagnose.findings import standing
from rackwell.diagnose.rules import SYMPTOM, Rule


@dataclasses.dataclass(frozen=True)
class Held:
    """A rule that holds."""

    rule: Rule
    evidence: Evidence


def key(held: Held) -> tuple[int, int, int, str]:
    """The smaller, the nearer to the root."""
    rule = held.rule
    parts = len(rule.tree.leaves)
    return (-standing(rule.level, rule.confidence, rule.severity), held.evidence.first, -parts, rule.id)


def ordered(held: Iterable[Held]) -> tuple[list[tuple[Held, list[Held]]], list[Held]]:
    """(cause, what is folded under it) in order; and what is normal, beside these."""
    everything = sorted(held, key=key)
    noise = [each for each in everything if each.rule.severity == "noise"]
    real = [each for each in everything if each.rule.severity != "noise"]
    if not real:
        return [(each, []) for each in noise], []
    parent: dict[str, Held] = {}
    for each in real:
        for other in real:
            follows = other is not each and other.rule.id not in parent and _explains(each.rule, other.rule)
            if follows and not _above(each, other, parent):
                parent[other.rule.id] = each
    roots = [each for each in real if each.rule.id not in parent]
    causes = [each for each in roots if each.rule.level > SYMPTOM]
    if causes:
        for each in roots:
            if each.rule.level <= SYMPTOM:
                parent[each.rule.id] = causes[0]
        roots = causes
    folded: dict[str, list[Held]] = {each.rule.id: [] for each in roots}
    for each in real:
        top = each
        while top.rule.id in parent:
            top = parent[top.rule.id]
        if top is not each:
            folded[top.rule.id].append(each)
    return [(each, folded[each.rule.id]) for each in roots], noise


def _explains(rule: Rule, other: Rule) -> bool:
    return any(fnmatch.fnmatchcase(other.id, pattern) for pattern in rule.explains)


def _above(each: Held, other: Held, parent: dict[str, Held]) -> bool:
    """Whether `other` is already among what explains `each`: no circle is closed."""
    top = each
    while top.rule.id in parent:
        top = parent[top.rule.id]
        if top is other:
            return True
    return False
