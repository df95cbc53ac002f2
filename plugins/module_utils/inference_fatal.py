# SPDX-License-Identifier: Apache-2.0
"""Rules of the catalogue that say that a start is lost, held against the lines of one start while it is waited for.

The controller hands them over as plain data (filter ``fatal_rules``), so that a new rule needs nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

# of a longer line only the beginning is looked at: the patterns run in Python's engine, which may be slow on long ones
_LONGEST = 2000
# so many hits of one pattern are remembered
_MOST_HITS = 64
_PREFIX = re.compile(
    r"^(?:\x1b\[[0-9;]*m|\[\d{4}-\d\d-\d\d[ T][^\]]*\]\s*|\[rank\d+\]:\s*|\((?:\w+ )?pid=\d+\)\s*"
    r"|[\w.-]+:\d+:\d+ (?=\[\d+\] )|\[\d+\] (?=NCCL ))+"
)
# what may quote a client: logged requests, access lines; and the engine's own arguments
_QUOTES = re.compile(r"^(?:Receive|Finish)\b|GenerateReqInput\(|EmbeddingReqInput\(|server_args=|\"(?:GET|POST|PUT) ")


class FatalRules:
    """Watches the lines of one start.

    Args:
        rules: ``{"id", "title", "match"}`` each; ``match`` is a tree of ``all``, ``any``, ``none`` whose leaves are
            regular expressions, or ``{"re" | "after" | "before", "within"}``. One that Python cannot read is left out.
    """

    def __init__(self, rules: Sequence[Mapping[str, Any]] = ()) -> None:
        self._hits: dict[str, list[int]] = {}
        self._patterns: dict[str, Any] = {}
        self._rules: list[Mapping[str, Any]] = []
        self._seen = 0
        for rule in rules:
            try:
                found = {text: re.compile(text) for text in _leaves(rule["match"])}
            except (re.error, KeyError, TypeError, ValueError):
                continue
            self._patterns.update(found)
            self._rules.append(rule)

    def take(self, lines: Sequence[str]) -> Optional[str]:
        """The id of the first rule that all lines so far fulfil. ``lines``: those that came since the last call."""
        news = False
        for line in lines:
            self._seen += 1
            text = _PREFIX.sub("", line[:_LONGEST])
            if not text.strip() or _QUOTES.search(text):
                continue
            for source, pattern in self._patterns.items():
                hits = self._hits.setdefault(source, [])
                if len(hits) < _MOST_HITS and pattern.search(text):
                    hits.append(self._seen)
                    news = True
        if not news:
            return None
        return next((str(rule["id"]) for rule in self._rules if self._places(rule["match"])), None)

    def _places(self, node: Any) -> set[int]:
        """Where a node of a tree is fulfilled; empty when it is not."""
        if isinstance(node, str):
            return set(self._hits.get(node, ()))
        if isinstance(node, list):
            return set().union(*(self._places(one) for one in node)) if node else set()
        if any(self._places(one) for one in _list(node.get("none"))):
            return set()
        found: set[int] = set()
        if "all" in node:
            found = self._chain(_list(node["all"]))
            if not found:
                return set()
        if "any" in node:
            either = self._places(_list(node["any"]))
            if not either:
                return set()
            found = found | either
        leaf = _leaf(node)
        return set(self._hits.get(leaf, ())) if leaf else found

    def _chain(self, entries: Sequence[Any]) -> set[int]:
        before: Optional[set[int]] = None
        for entry in entries:
            places = self._places(entry)
            if before is not None and isinstance(entry, dict):
                within, after, ahead = entry.get("within"), "after" in entry, "before" in entry
                places = {
                    place
                    for place in places
                    if any(
                        (within is None or abs(place - other) <= int(within))
                        and (not after or place > other)
                        and (not ahead or place < other)
                        for other in before
                    )
                }
            if not places:
                return set()
            before = places
        return before or set()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _leaf(node: Mapping[str, Any]) -> str:
    return str(node.get("re") or node.get("after") or node.get("before") or "")


def _leaves(node: Any) -> set[str]:
    """Every regular expression of a tree. Raises ValueError for what is not understood here."""
    if isinstance(node, str):
        return {node}
    if isinstance(node, list):
        return set().union(*(_leaves(one) for one in node)) if node else set()
    if not isinstance(node, dict) or set(node) - {"all", "any", "none", "re", "after", "before", "within"}:
        raise ValueError("not understood")
    found = set().union(*(_leaves(_list(node.get(key))) for key in ("all", "any", "none")))
    leaf = _leaf(node)
    return found | {leaf} if leaf else found
