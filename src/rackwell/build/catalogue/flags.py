# SPDX-License-Identifier: Apache-2.0
"""Server flags that a patch needs, held against those of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackwell.build.catalogue.meta import FlagValue


def told(flag: str, value: FlagValue | list[FlagValue]) -> str:
    """A flag and what it needs to be, as a profile would have it."""
    values = value if isinstance(value, list) else [value]
    return f"{flag}: {' or '.join(_yaml(item) for item in values)}"


def satisfied(flags: Mapping[str, Any], flag: str, wanted: FlagValue | list[FlagValue]) -> bool:
    """Whether a profile's `flags` have `flag` as it is needed; ``false`` is as good as absent."""
    given = flags.get(flag)
    values = wanted if isinstance(wanted, list) else [wanted]
    return any(_same(given, value) for value in values)


def _same(given: Any, wanted: FlagValue) -> bool:
    if wanted is False:
        return given is None or given is False
    # True and 1 are equal in Python, and not in a profile
    return bool(given == wanted) and isinstance(given, bool) == isinstance(wanted, bool)


def _yaml(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
