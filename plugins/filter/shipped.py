# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that find what ships with rackwell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

_COLLECTION = Path(__file__).parents[2]


def profile_file(name: str, site: str) -> str:
    """The file of a serving profile: the site's own, else the one of that name that ships with rackwell.

    The catalogue lies in the collection, or beside it where both are installed from one wheel. A profile that neither
    has is the site's, so that an error says where to write it.
    """
    own = Path(site) / "profiles" / f"{name}.yml"
    catalogs = [_COLLECTION / "catalog", _COLLECTION.parents[2] / "rackwell" / "data" / "catalog"]
    candidates = [own, *(catalog / "profiles" / f"{name}.yml" for catalog in catalogs)]
    return str(next((path for path in candidates if path.is_file()), own))


class FilterModule:
    """Registers the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"profile_file": profile_file}
