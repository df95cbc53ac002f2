# SPDX-License-Identifier: Apache-2.0
"""Lines that a person wrote about a fault are weaker evidence than lines that a program printed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rackwell.diagnose.rules import Confidence

_LESS: dict[Confidence, Confidence] = {"high": "likely", "likely": "possible", "possible": "possible"}
#: Of a document: a point of a list with emphasis or a link in it, a link, a heading.
_DOCUMENT = re.compile(r"^\s*(?:[-*+]|\d+\.) .*(?:\*\*|\]\(http)|\]\(https?://|^#{1,6} [A-Z]")
_WORDS = re.compile(r"[A-Za-z']+")
_SMALL = {
    "a", "an", "the", "is", "are", "was", "were", "be", "been", "it", "its", "this", "that", "of", "to", "in", "on",
    "at", "by", "for", "from", "with", "without", "and", "or", "but", "when", "while", "if", "after", "before",
    "only", "not", "no", "we", "our", "i", "my", "you", "so", "as", "than", "then",
}  # fmt: skip
#: What programs print, also in sentences.
_PRINTED = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Warning)\b|\b(?:ERROR|WARN|WARNING|INFO|FATAL|CRITICAL)\b|(?i:\berror:|\bfailed:)|NVRM|"
    r"\bXid\b|^\s*File \"|^\[|^\S+\[\d+\]|==|--[a-z]+[- ]|0x[0-9a-f]|\{\"|\w+\(.*\)$|/\w+/\w+"
)
_LEAST = 9


def a_document(text: str) -> bool:
    """Whether the line is of a document that speaks of many things, not of a log or a report."""
    return _DOCUMENT.search(text) is not None


def a_sentence(text: str) -> bool:
    """Whether the line reads as a person's words."""
    if _PRINTED.search(text):
        return False
    words = _WORDS.findall(text)
    return len(words) >= _LEAST and sum(word.lower() in _SMALL for word in words) >= len(words) // 4


def loose(pattern: str) -> bool:
    """Whether an expression is made for people's words: in any case, with anything between its parts."""
    return pattern.startswith("(?i)") and (".*" in pattern or ".{" in pattern or "\\W" in pattern or "\\D" in pattern)


def doubted(confidence: Confidence, pairs: Iterable[tuple[str, str]]) -> Confidence:
    """How sure a finding is by what its evidence is.

    Args:
        pairs: (expression, line that it was found in).
    """
    kept = list(pairs)
    if kept and all(a_document(text) for _, text in kept):
        return "possible"
    if kept and all(loose(pattern) and a_sentence(text) for pattern, text in kept):
        return _LESS[confidence]
    return confidence
