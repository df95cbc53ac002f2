# SPDX-License-Identifier: Apache-2.0
"""One thing that a named check found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rackwell.lint.context import Pointer


@dataclasses.dataclass(frozen=True)
class Match:
    """What fills the rule's texts, and where it is; `pointers` come before the rule's own places."""

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pointers: tuple[Pointer, ...] = ()
