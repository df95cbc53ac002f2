# SPDX-License-Identifier: Apache-2.0
"""Ranges of versions, closed at both ends: nobody can have tried a patch on a version that is not there yet."""

from __future__ import annotations

import dataclasses
import re

from packaging.version import InvalidVersion, Version

_BOTH = re.compile(r"^>=\s*([^\s,<>=]+)\s*,\s*<\s*([^\s,<>=]+)$")
_GRAMMAR = "must be one version such as 0.5.9, or a range such as >=0.5.10,<0.5.13"


@dataclasses.dataclass(frozen=True)
class VersionRange:
    """From `low` on and below `high`; only `low` itself where `high` is None.

    A post-release counts as newer than its release, a release candidate as older, as they are ordered.
    """

    low: Version
    high: Version | None

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Raises ValueError for a text that is neither one version nor ``>=A,<B`` with A below B."""
        both = _BOTH.match(text.strip())
        try:
            if both is None:
                return cls(Version(text), None)
            found = cls(Version(both[1]), Version(both[2]))
        except InvalidVersion as error:
            raise ValueError(_GRAMMAR) from error
        if found.high is not None and found.low >= found.high:
            raise ValueError(f"holds no version: {found.low} is not below {found.high}")
        return found

    def __contains__(self, version: str) -> bool:
        asked = Version(version)
        return self.low == asked if self.high is None else self.low <= asked < self.high

    def __str__(self) -> str:
        return str(self.low) if self.high is None else f">={self.low},<{self.high}"

    def overlaps(self, other: VersionRange) -> bool:
        """Whether a version can be in both."""
        if self.high is None:
            return str(self.low) in other
        if other.high is None:
            return str(other.low) in self
        return self.low < other.high and other.low < self.high

    def reaches(self, version: str) -> bool:
        """Whether it holds `version` or a later one."""
        end = Version(version)
        return self.low >= end if self.high is None else self.high > end


def check_range(text: str) -> str:
    """`text` as it stands, if it is a range. Raises ValueError."""
    VersionRange.parse(text)
    return text


def key_for(version: str, ranges: dict[str, object]) -> str | None:
    """The first key of `ranges` that holds `version`."""
    return next((text for text in ranges if version in VersionRange.parse(text)), None)
