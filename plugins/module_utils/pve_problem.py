# SPDX-License-Identifier: Apache-2.0
"""What the modules for Proxmox VE hosts raise when something is wrong, before it becomes the module's failure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in the parts that every error of rackwell has.

    Attributes:
        code: stable kebab-case name. what: one line. where: path, option or container.
        why: found against expected. fix: the command or the edit that mends it.
    """

    code: str
    what: str
    where: str = ""
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """The parts by name."""
        return dataclasses.asdict(self)


class PveError(Exception):
    """Ends the work of a module; carries the finding and what else the module returns with it."""

    def __init__(self, finding: Finding, **extra: object) -> None:
        super().__init__(finding.what)
        self.finding = finding
        self.extra = extra


def problem(code: str, what: str, where: str = "", why: str = "", fix: str = "", **extra: object) -> PveError:
    """A :class:`PveError` from its parts."""
    return PveError(Finding(code, what, where, why, fix), **extra)
