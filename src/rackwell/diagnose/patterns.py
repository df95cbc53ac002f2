# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of rules, which run in time linear in the text whatever the text and the expression are (RE2).

A `Filter` holds all expressions at once: it knows the literals that each one needs, and runs only those whose literals
stand in a text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import re2  # type: ignore[import-untyped]

_MEMORY = 1 << 20
_MORE = 8 << 20
"""For the few expressions that are larger."""
_MOST = 32 << 20
"""For many expressions in one: with less, RE2 gives its automaton up again and again, and matches slowly."""


class PatternError(ValueError):
    """The text is no regular expression of RE2."""


def _options(capture: bool, memory: int = _MEMORY) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not capture
    options.max_mem = memory
    return options


@functools.lru_cache(maxsize=16384)
def compiled(pattern: str) -> Any:
    """An expression with `search`, `groupindex` and the like, as of `re`.

    Raises:
        PatternError: it does not hold.
    """
    try:
        return re2.compile(pattern, _options(True))
    except re2.error:
        pass
    try:
        return re2.compile(pattern, _options(True, _MORE))
    except re2.error as error:
        told = error.args[0] if error.args else error
        said = told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
        raise PatternError(f"'{pattern}' is no RE2 expression: {said}") from error


def together(patterns: Iterable[str]) -> Any:
    """One expression that is found where any of `patterns` is, in several lines at once; none if it is too large."""
    parts = "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        return re2.compile(f"(?m:{parts})", _options(False, _MOST))
    except re2.error:
        return None


class Filter:
    """Many expressions at once."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = list(patterns)
        self._parts = _parts(self.patterns)

    def possible(self, text: bytes) -> list[int]:
        """Indexes of those whose literals stand in `text` (and of those without any): quick, and never too few."""
        return [start + index for start, match in self._parts for index in match(text, True)]

    def found(self, text: bytes) -> list[int]:
        """Indexes of those that are found in `text`."""
        return [start + index for start, match in self._parts for index in match(text, False)]


def _parts(patterns: list[str], start: int = 0) -> list[tuple[int, Callable[[bytes, bool], list[int]]]]:
    """Filters of all expressions, as few as RE2 takes: the literals of some three thousand are too many for one."""
    if not patterns:
        return []
    whole: Any = re2.Filter()
    options, large = _options(False), _options(False, _MORE)
    for pattern in patterns:
        try:
            whole.Add(pattern, options)
        except re2.error:
            whole.Add(pattern, large)
    try:
        whole.Compile()
    except re2.error:
        if len(patterns) == 1:
            raise
        half = len(patterns) // 2
        return _parts(patterns[:half], start) + _parts(patterns[half:], start + half)
    # past the wrapper, which costs as much as the match of a short line
    return [(start, whole._filter.Match)]
