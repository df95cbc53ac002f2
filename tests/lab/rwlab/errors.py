# SPDX-License-Identifier: Apache-2.0
"""How the laboratory says that something is wrong: what, where, why, fix, code, as rackwell itself does."""

from __future__ import annotations


class LabError(Exception):
    """Ends a command of the laboratory.

    Attributes:
        code: stable kebab-case name. what/where/why/fix: one line each, ``where`` a path, host or container.
        exit_code: 1 failed, 2 usage, 5 locked.
    """

    def __init__(
        self, code: str, what: str, *, where: str = "", why: str = "", fix: str = "", exit_code: int = 1
    ) -> None:
        super().__init__(what)
        self.code, self.what, self.where, self.why, self.fix = code, what, where, why, fix
        self.exit_code = exit_code

    def as_dict(self) -> dict[str, str]:
        """The error as it stands in ``--json`` output."""
        return {"code": self.code, "what": self.what, "where": self.where, "why": self.why, "fix": self.fix}

    def text(self) -> str:
        """The error for people, one part a line."""
        head = f"{self.what} ({self.where})" if self.where else self.what
        rest = [f"  {name}: {value}" for name, value in (("why", self.why), ("fix", self.fix)) if value]
        return "\n".join([f"rackwell lab: {head} [{self.code}]", *rest])
