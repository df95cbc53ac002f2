# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of rules, which run in time linear in the text whatever the text and the expression are (RE2).

A `Filter` holds all expressions at once: it knows the literals that each one needs, and runs only those whose literals
stand in a text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
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
        self._filter: Any = re2.Filter()
        options, large = _options(False), _options(False, _MORE)
        for pattern in self.patterns:
            try:
                self._filter.Add(pattern, options)
            except re2.error:
                self._filter.Add(pattern, large)
        if self.patterns:
            self._filter.Compile()
            # past the wrapper, which costs as much as the match of a short line
            self._match = self._filter._filter.Match

    def possible(self, text: bytes) -> list[int]:
        """Indexes of those whose literals stand in `text` (and of those without any): quick, and never too few."""
        return self._match(text, True) if self.patterns else []

    def found(self, text: bytes) -> list[int]:
        """Indexes of those that are found in `text`."""
        return self._match(text, False) if self.patterns else []
