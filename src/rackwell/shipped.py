# SPDX-License-Identifier: Apache-2.0
"""Where the data that ships with rackwell lies: in the installed package, or in the checkout."""

from __future__ import annotations

from pathlib import Path

import rackwell

_PACKAGE = Path(rackwell.__file__).parent


def checkout() -> Path | None:
    """The checkout that rackwell runs from; None for an installed one."""
    root = _PACKAGE.parents[1]
    return root if (root / "galaxy.yml").exists() and (root / "catalog").is_dir() else None


def _data(installed: str, in_checkout: str) -> Path:
    root = checkout()
    return root / in_checkout if root else _PACKAGE / "data" / installed


def catalog() -> Path:
    """The directory with ``patches/``, ``builds/``, ``profiles/``, ``rules/``, ...."""
    return _data("catalog", "catalog")


def example() -> Path:
    """The site that `rackwell init` copies."""
    return _data("example", "inventory/example")
