# SPDX-License-Identifier: Apache-2.0
"""The kinds whose words are nearest to a text that no rule knows: a hint for a person, never more than possible.

Rules are looked at as documents (title, cause, remedy, expressions, examples) and ranked by BM25. A guess is made only
where a good part of what is particular in the text is found in one of them.
"""

from __future__ import annotations

import collections
import heapq
import math
import re
from collections.abc import Iterable, Sequence

from rackwell.diagnose.rules import Rule

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*|0x[0-9a-f]+")
_PART = re.compile(r"[_-]")
#: what expressions are written with, and is no word of theirs
_SYNTAX = re.compile(r"\\.|\(\?(?:P<\w+>|[i:]+)")
_K, _B = 1.2, 0.6
_LEAST = 22.0
_SHARE = 0.28
_FEWEST = 9
_WORDS = 600


def words(text: str) -> list[str]:
    """The words of a text in lower case, and the parts of compound ones."""
    found = []
    for word in _WORD.findall(text):
        whole = word.lower()
        found.append(whole)
        parts = _PART.split(whole)
        if len(parts) > 1:
            found += [part for part in parts if len(part) > 2]
    return found


class Nearest:
    """The index of all rules; building it takes some tenths of a second."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = list(rules)
        counted = [collections.Counter(words(_document(rule))) for rule in self._rules]
        lengths = [sum(count.values()) for count in counted]
        mean = sum(lengths) / max(1, len(lengths))
        self._weight: dict[str, float] = {}
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for index, count in enumerate(counted):
            norm = _K * (1 - _B + _B * lengths[index] / mean)
            for word, times in count.items():
                share = times * (_K + 1) / (times + norm)
                self._postings.setdefault(word, []).append((index, share))
        for word, found in self._postings.items():
            self._weight[word] = math.log(1 + len(self._rules) / (1 + len(found)))

    def of(self, lines: Iterable[str], most: int = 2) -> list[Rule]:
        """The nearest rules, the first one first; none if nothing is near enough, or what is nearest is normal."""
        asked = set(words("\n".join(lines))[:_WORDS])
        if len(asked) < _FEWEST:
            return []
        rare = math.log(1 + len(self._rules))
        total = sum(self._weight.get(word, rare) for word in asked) * (_K + 1)
        scores: dict[int, float] = collections.defaultdict(float)
        for word in asked:
            for index, share in self._postings.get(word, ()):
                scores[index] += self._weight[word] * share
        best = heapq.nlargest(most, scores.items(), key=lambda pair: (pair[1], -pair[0]))
        least = max(_LEAST, total * _SHARE)
        near = [self._rules[index] for index, score in best if score >= least]
        if not near or near[0].severity == "noise":
            return []
        return [rule for rule in near if rule.severity != "noise"]


def _document(rule: Rule) -> str:
    patterns = " ".join(_SYNTAX.sub(" ", leaf.pattern) for leaf in rule.tree.leaves)
    examples = " ".join(rule.examples.match)
    return f"{rule.title} {rule.title} {rule.cause} {rule.remedy} {patterns} {examples} {examples}"
