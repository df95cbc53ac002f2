# SPDX-License-Identifier: Apache-2.0
"""All containers of a site on one HTML page: what each serves, how fast, against itself and against the others."""

from __future__ import annotations

from collections.abc import Sequence

from rackwell import page
from rackwell.bench.fleet.rows import Member, rows
from rackwell.bench.fleet.view import view

__all__ = ["Member", "render", "rows"]


def render(members: Sequence[Member], *, site: str, now: str) -> str:
    """The page.

    Args:
        members: as :func:`gather` collects them. site: its name. now: when the page is made, ISO 8601 in UTC.
    """
    return page.render(__name__, view(rows(members, now), site, now), {})
