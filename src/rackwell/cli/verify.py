# SPDX-License-Identifier: Apache-2.0
"""``rackwell verify``."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
