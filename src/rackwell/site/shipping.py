# SPDX-License-Identifier: Apache-2.0
"""The serving profiles that ship with rackwell: found by name, and a site's own of the same name wins."""

from __future__ import annotations

from pathlib import Path

from rackwell import shipped
from rackwell.site import files

FOLDER = "profiles"


def profile_file(own: Path) -> Path:
    """`own`, the place of a profile in a site; the profile of that name that ships where the site has none."""
    ships = shipped.catalog() / FOLDER / own.name
    return ships if not files.is_file(own) and files.is_file(ships) else own


def profile_names() -> list[str]:
    """What there is."""
    return files.stems(shipped.catalog() / FOLDER)
