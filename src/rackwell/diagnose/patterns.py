# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of rules, which run in time linear in the text whatever the text and the expression are (RE2).

A `Filter` holds all expressions at once: it knows the literals that each one needs, and runs only those whose literals
stand in a text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import re2  # type: ignore[import-untyped]

_MEMORY = 1 << 20
_MORE = 8 << 20
"""For the few expressions that are larger."""
_TOGETHER = 4 << 20
_MOST = 16 << 20
_LARGE = 3000
"""Texts that a filter is asked about before it is divided, which takes as long as some ten thousand of them."""
_FEW = 8
_REPEATED = re.compile(r"\{\d+(?:,\d*)?\}")


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


@functools.lru_cache(maxsize=16384)
def finder(pattern: str) -> Callable[[bytes], bool]:
    """Whether an expression is found in a text: without the wrapper, which costs more than a short line's match.

    Raises:
        PatternError: it does not hold.
    """
    for memory in (_MEMORY, _MORE):
        expression = re2._re2.RE2(pattern.encode(), _options(False, memory))
        if expression.ok():
            break
    else:
        raise PatternError(f"'{pattern}' is no RE2 expression")
    match, anywhere = expression.Match, re2._Anchor.UNANCHORED

    def find(text: bytes) -> bool:
        return bool(match(anywhere, text, 0, len(text))[0][0] >= 0)

    return find


def several(patterns: Sequence[str], memory: int = _TOGETHER) -> Callable[[bytes], list[int]] | None:
    """What gives the places of those of a few expressions that are found in a text; None if they are too large.

    Their number is always among the places: where it is not, the automaton had not the memory that it needs.
    """
    found = re2._re2.Set(re2._Anchor.UNANCHORED, _options(False, memory))
    if any(found.Add(pattern.encode()) < 0 for pattern in (*patterns, "")) or not found.Compile():
        return None
    match: Callable[[bytes], list[int]] = found.Match
    return match


class Filter:
    """Many expressions at once."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = list(patterns)
        self._parts = _parts(list(enumerate(self.patterns)))
        self._bare: list[int] = []
        self._together: Callable[[bytes], list[int]] | None = None
        self._times = 0

    def found(self, text: bytes) -> list[int]:
        """Indexes of those that are found in `text`."""
        self._times += 1
        if self._times == _LARGE:
            self._divide()
        found = [indexes[place] for indexes, match in self._parts for place in match(text, False)]
        if self._together is not None:
            places = self._together(text)
            if len(self._bare) not in places:  # see `several`
                self._together, self._parts = None, _parts(list(enumerate(self.patterns)))
                return self.found(text)
            found += [self._bare[place] for place in places if place < len(self._bare)]
            found.sort()
        return found

    def _divide(self) -> None:
        """For a large text: those without literals, which else run one by one over each line, become one automaton.

        Not those with counted repetitions, which make it so large that it is slower.
        """
        bare = {indexes[place] for indexes, match in self._parts for place in match(b"\x01", True)}
        bare = {index for index in bare if not _REPEATED.search(self.patterns[index])}
        if len(bare) < _FEW:
            return
        self._bare = sorted(bare)
        self._together = several([self.patterns[index] for index in self._bare], _MOST)
        if self._together is not None:
            self._parts = []  # both at once would be the most memory that is ever taken
            self._parts = _parts([pair for pair in enumerate(self.patterns) if pair[0] not in bare])


_Part = tuple[list[int], Callable[[bytes, bool], list[int]]]


def _parts(patterns: list[tuple[int, str]]) -> list[_Part]:
    """Filters of all expressions, as few as RE2 takes: the literals of some three thousand are too many for one."""
    if not patterns:
        return []
    whole: Any = re2.Filter()
    options, large = _options(False), _options(False, _MORE)
    for _, pattern in patterns:
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
        return _parts(patterns[:half]) + _parts(patterns[half:])
    # past the wrapper, which costs as much as the match of a short line
    return [([index for index, _ in patterns], whole._filter.Match)]
