# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that find what ships with rackwell."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable

import yaml

_COLLECTION = Path(__file__).parents[2]
#: what the wait for a start understands of a rule; a rule with more is left to the diagnosis afterwards
_UNDERSTOOD = {"all", "any", "none"}


def _catalogs() -> list[Path]:
    """Where the catalogue may lie: in the collection, or beside it where both are installed from one wheel."""
    return [_COLLECTION / "catalog", _COLLECTION.parents[2] / "rackwell" / "data" / "catalog"]


def profile_file(name: str, site: str) -> str:
    """The file of a serving profile: the site's own, else the one of that name that ships with rackwell.

    A profile that neither site nor catalogue has is the site's, so that an error says where to write it.
    """
    own = Path(site) / "profiles" / f"{name}.yml"
    candidates = [own, *(catalog / "profiles" / f"{name}.yml" for catalog in _catalogs())]
    return str(next((path for path in candidates if path.is_file()), own))


@functools.lru_cache(maxsize=1)
def _fatal() -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = []
    for catalog in _catalogs():
        for path in sorted((catalog / "rules" / "diagnose").rglob("*.yml")):
            text = path.read_text(encoding="utf-8")
            # most rules are not: reading them all would cost each run a second
            if "\nfatal: true" not in text:
                continue
            rule = yaml.load(text, loader)  # noqa: S506 - it is the safe loader, in C where there is one
            match = rule.get("match")
            plain = not isinstance(match, dict) or not set(match) - _UNDERSTOOD
            # what depends on a version or a flag is for the diagnosis, which knows them
            if rule.get("fatal") is True and plain and "when" not in rule:
                found.append({"id": rule["id"], "match": match})
        if found:
            break
    return found


def fatal_rules(more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The catalogue's diagnosis rules that say that a start is lost, behind `more`: ``{"id", "match"}`` each."""
    return [*more, *_fatal()]


class FilterModule:
    """Registers the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"profile_file": profile_file, "fatal_rules": fatal_rules}
