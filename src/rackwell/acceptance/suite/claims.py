# SPDX-License-Identifier: Apache-2.0
"""How a test says what it expected, what it found, and how that is mended."""

from __future__ import annotations

import dataclasses
from typing import Any

_LONGEST = 400


class NotSoError(AssertionError):
    """Something is not as it is declared to be."""

    def __init__(self, expected: str, found: str, fix: str, held: bool) -> None:
        self.expected, self.found, self.fix, self.held = expected, found, fix, held
        super().__init__(f"expected: {expected}\nfound:    {found}\nfix:      {fix}")


@dataclasses.dataclass
class Claims:
    """What one test claimed so far."""

    shown: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, good: bool, *, expected: Any, found: Any, fix: str, held: bool = False) -> None:
        """Claim that something holds.

        Args:
            held: when it does not, it is because the boot gate keeps the server down.

        Raises:
            NotSoError: it does not.
        """
        expected, found = _text(expected), _text(found)
        if not good:
            raise NotSoError(expected, found, fix, held)
        self.shown.append(found)

    def note(self, text: Any) -> None:
        """Something to show that nothing depends on."""
        self.shown.append(_text(text))

    @property
    def evidence(self) -> str:
        """What was found, in a line."""
        return _text("; ".join(dict.fromkeys(filter(None, self.shown))))


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        value = ", ".join(sorted(map(str, value)) if isinstance(value, (set, frozenset)) else map(str, value)) or "none"
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
