# SPDX-License-Identifier: Apache-2.0
"""The table patch x version: every cell found by trying the patch on the real wheel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from packaging.version import Version

from rackwell.build.catalogue.entry import Entry
from rackwell.build.catalogue.judge import Cell, Verdict, judge
from rackwell.build.catalogue.wheels import Held
from rackwell.build.wheelfile import MALFORMED, Wheel
from rackwell.errors import Problem, RackwellError


@dataclasses.dataclass(frozen=True)
class Table:
    """The patches of one project against its versions, oldest first."""

    project: str
    wheels: tuple[Held, ...]
    rows: tuple[tuple[Entry, tuple[Cell, ...]], ...]

    @property
    def head(self) -> list[str]:
        """Its titles."""
        return [self.project, *(wheel.version for wheel in self.wheels)]

    def as_rows(self) -> list[list[str]]:
        """A row for each patch."""
        return [[entry.name, *(shown(cell) for cell in cells)] for entry, cells in self.rows]

    def markdown(self) -> str:
        """The table for a page, and the wheels that it was made from."""
        rows = [self.head, ["---"] * len(self.head), *self.as_rows()]
        wheels = ", ".join(f"{wheel.version} `{wheel.sha256[:12]}`" for wheel in self.wheels)
        return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\nWheels, by sha256: {wheels}.\n"

    def contradictions(self) -> list[Problem]:
        """What patches say that is not so."""
        return [
            Problem(
                "patch-claim-wrong",
                f"the patch {entry.name} does not hold for {self.project} {cell.version}",
                entry.document.where(("applies_to" if cell.claimed else "upstream_since",)),
                cell.contradiction,
                "correct what it says, or make the diff anew: rackwell patches new",
            )
            for entry, cells in self.rows
            for cell in cells
            if cell.contradiction
        ]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "project": self.project,
            "wheels": [
                {"version": w.version, "filename": w.filename, "sha256": w.sha256, "known": w.known}
                for w in self.wheels
            ],
            "rows": [
                {
                    "patch": entry.name,
                    "cells": [
                        {
                            "version": cell.version,
                            "verdict": cell.verdict.value,
                            "diff": cell.diff,
                            "reason": cell.reason,
                            "claimed": cell.claimed,
                            "contradiction": cell.contradiction,
                        }
                        for cell in cells
                    ],
                }
                for entry, cells in self.rows
            ],
        }


def shown(cell: Cell) -> str:
    """A cell for people: the verdict, and whether it contradicts or goes beyond what the patch says."""
    if cell.contradiction:
        return f"{cell.verdict.value} (WRONG)"
    if cell.verdict is Verdict.APPLIES and not cell.claimed:
        return f"{cell.verdict.value} (not claimed)"
    return cell.verdict.value


def make_table(project: str, entries: Sequence[Entry], wheels: Sequence[Held], tell: Callable[[str], None]) -> Table:
    """Try each of `entries`, all of `project`, on each of `wheels`.

    Raises:
        RackwellError: a wheel cannot be read (exit 1).
    """
    ordered = sorted(wheels, key=lambda wheel: Version(wheel.version))
    columns: list[list[Cell]] = []
    for held in ordered:
        tell(f"{project} {held.version}: {held.filename}, sha256 {held.sha256[:12]}")
        try:
            with Wheel(held.path, held.filename) as wheel:
                columns.append([judge(entry, held.version, wheel.read) for entry in entries])
        except MALFORMED as error:
            why = str(error) or type(error).__name__
            fix = f"remove {held.path} and run again"
            problem = Problem("wheel-malformed", f"{held.filename} cannot be read", str(held.path), why, fix)
            raise RackwellError(problem) from error
    rows = tuple((entry, tuple(column[at] for column in columns)) for at, entry in enumerate(entries))
    return Table(project, tuple(ordered), rows)
