# SPDX-License-Identifier: Apache-2.0
"""What the orchestration tells whoever watches. The command line prints it; tests collect it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rackwell.ansible.events import Step


class Progress(Protocol):
    """Receives progress.

    Attributes:
        log: the run's log file, once there is one.
        safety: one sentence that says in what state things are, should the run end right now.
    """

    log: Path | None
    safety: str

    def line(self, where: str, text: str) -> None:
        """Something was done or is being done `where` (a host, or "controller")."""

    def detail(self, where: str, text: str) -> None:
        """How far the thing of the last line has come: one of many such news, of which the newest counts."""

    def step(self, step: Step) -> None:
        """A task of a play started or ended."""
