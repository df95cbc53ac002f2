# SPDX-License-Identifier: Apache-2.0
"""What the suite found on one container and its host."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

PASS, FAIL, SKIPPED, UNKNOWN = "pass", "fail", "not-declared", "unknown"
SCHEMA = "rackwell.acceptance_container/1"


@dataclasses.dataclass(frozen=True)
class Check:
    """One test.

    Attributes:
        item: ``area/name``. title: what holds when it passes. machine: the one that it is about.
        verdict: pass, fail, not-declared (there is nothing to hold it against), or unknown (it could not be looked at).
        held: it fails because the boot gate keeps the server down.
    """

    item: str
    title: str
    machine: str
    verdict: str
    seconds: float
    expected: str = ""
    found: str = ""
    fix: str = ""
    why: str = ""
    held: bool = False

    @property
    def evidence(self) -> str:
        """What was seen, in a line."""
        if self.verdict == FAIL and self.expected:
            return f"expected {self.expected}; found {self.found}"
        return self.why or self.found

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Accepted:
    """All tests of a container.

    Attributes:
        junit, report, log: files in the run's directory; None for one that was not written.
        broken: why the suite did not come to its end; empty when it did.
    """

    container: str
    host: str
    checks: tuple[Check, ...]
    seconds: float
    junit: Path | None = None
    report: Path | None = None
    log: Path | None = None
    broken: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many of each verdict."""
        counted = Counter(check.verdict for check in self.checks)
        return {verdict: counted[verdict] for verdict in (PASS, FAIL, UNKNOWN, SKIPPED)}

    @property
    def verdict(self) -> str:
        """pass, fail, or unknown when something could not be looked at and nothing failed."""
        if self.counts[FAIL]:
            return FAIL
        return UNKNOWN if self.broken or self.counts[UNKNOWN] or not self.counts[PASS] else PASS

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``, and the file of the run's directory."""
        return {
            "schema": SCHEMA,
            "container": self.container,
            "host": self.host,
            "verdict": self.verdict,
            "counts": self.counts,
            "seconds": round(self.seconds, 1),
            "checks": [check.as_dict() for check in self.checks],
            "broken": self.broken,
            **{name: str(path) if path else None for name, path in self.files().items()},
        }

    def files(self) -> dict[str, Path | None]:
        """The files of it, by name."""
        return {"junit": self.junit, "report": self.report, "log": self.log}


def read(lines: Path) -> tuple[Check, ...]:
    """The tests that ended, from what the suite wrote; a line that was cut by a kill is left out."""
    found = []
    names = {field.name for field in dataclasses.fields(Check)}
    try:
        text = lines.read_text(encoding="utf-8")
    except OSError:
        return ()
    for line in text.splitlines():
        try:
            data = json.loads(line)
            found.append(Check(**{name: value for name, value in data.items() if name in names}))
        except (ValueError, TypeError):
            continue
    return tuple(found)
