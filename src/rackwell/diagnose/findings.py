# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from rackwell.diagnose.facts import Facts
from rackwell.diagnose.rules import Confidence, Severity

_DOUBT = {"high": 0, "likely": 4, "possible": 25}
_HARM = {"blocker": 0, "wrong-output": 3, "degraded": 6, "noise": 0}


def standing(rank: int, confidence: Confidence, severity: Severity) -> int:
    """How far ahead a finding stands: its rank, less what is doubtful about it, and what harms less."""
    return rank - _DOUBT[confidence] - _HARM[severity]


@dataclasses.dataclass(frozen=True)
class Said:
    """A line of the text."""

    number: int
    text: str
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        told: dict[str, Any] = {"number": self.number, "text": self.text}
        return {**told, "source": self.source} if self.source else told


@dataclasses.dataclass(frozen=True)
class Finding:
    """One cause.

    Attributes:
        lines: those that say so. count: lines in which its most frequent expression was found.
        ranks: that it was found on, the first one first.
        folded: ids of rules that found what follows from it.
        naive: the reading that suggests itself, refuted.
        lint: the code of the lint rule that sees it in a declaration.
    """

    id: str
    area: str
    title: str
    severity: Severity
    confidence: Confidence
    cause: str
    remedy: str
    naive: str
    lines: tuple[Said, ...]
    count: int
    ranks: tuple[str, ...]
    evidence: tuple[str, ...]
    folded: tuple[str, ...]
    rank: int
    fatal: bool
    lint: str = ""

    @property
    def sentence(self) -> str:
        """The cause, with how sure it is."""
        doubt = {"high": "", "likely": "likely: ", "possible": "possibly: "}[self.confidence]
        return f"{doubt}{self.cause}"

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        told = dataclasses.asdict(self)
        told["not"] = told.pop("naive")
        told["lines"] = [line.as_dict() for line in self.lines]
        for key in ("ranks", "evidence", "folded"):
            told[key] = list(told[key])
        return told


@dataclasses.dataclass(frozen=True)
class EarlierStart:
    """What an earlier start of the server, in lines `first` to `last`, ended with: no part of this one."""

    first: int
    last: int
    finding: Finding
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        found = self.finding
        return {
            "first": self.first, "last": self.last, "id": found.id, "title": found.title, "cause": found.cause,
            "remedy": found.remedy, "lines": [line.as_dict() for line in found.lines],
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Findings, the cause first; or none, and what to look at.

    Attributes:
        normal: findings of severity noise that stand beside worse ones.
        telling: lines that look like trouble, for a text that is unknown.
        collect: commands whose output would tell more.
        notes: what the reader must know of how the text was read.
    """

    findings: tuple[Finding, ...] = ()
    normal: tuple[Finding, ...] = ()
    earlier: tuple[EarlierStart, ...] = ()
    unknown: bool = False
    telling: tuple[Said, ...] = ()
    collect: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Facts = dataclasses.field(default_factory=Facts)
    lines: int = 0

    @property
    def first(self) -> Finding | None:
        """The cause; None when none is known, or when all that is found is normal."""
        found = self.findings[0] if self.findings else None
        return found if found is not None and found.severity != "noise" else None

    @property
    def fatal(self) -> bool:
        """Whether a start of which this is the log will not succeed, whatever is waited for."""
        return any(finding.fatal for finding in self.findings)

    def with_findings(self, extra: Iterable[Finding]) -> Diagnosis:
        """It with findings that others made, at their ranks; where there are any, nothing is unknown."""
        added = list(extra)
        if not added:
            return self
        everything = [*self.findings, *added]
        real = [finding for finding in everything if finding.severity != "noise"]
        noise = [finding for finding in everything if finding.severity == "noise"]
        ordered = sorted(
            real or noise, key=lambda finding: -standing(finding.rank, finding.confidence, finding.severity)
        )
        normal = (*self.normal, *noise) if real else self.normal
        return dataclasses.replace(
            self, findings=tuple(ordered), normal=tuple(normal), unknown=False, telling=(), collect=()
        )

    def as_dict(self) -> dict[str, Any]:
        """The payload of ``rackwell diagnose --json``."""
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "normal": [finding.id for finding in self.normal],
            "earlier": [start.as_dict() for start in self.earlier],
            "unknown": self.unknown,
            "telling": [line.as_dict() for line in self.telling],
            "collect": list(self.collect),
            "notes": list(self.notes),
            "facts": self.facts.as_dict(),
            "lines": self.lines,
        }
