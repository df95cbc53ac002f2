# SPDX-License-Identifier: Apache-2.0
"""Stub."""

from __future__ import annotations

import typer


def register(group: typer.Typer) -> None:
    """Add the command."""
