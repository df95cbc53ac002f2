# SPDX-License-Identifier: Apache-2.0
"""One thing that is wrong, as rules make it, fold it and report it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from rackwell.probe.codes import CODES, DEGRADED, FAIL, worst
from rackwell.probe.topology import Pair

FLOOR, BASELINE, DECLARED, RULE = "floor", "baseline", "declared", "rule"


@dataclasses.dataclass
class Finding:
    """A code with its facts.

    Attributes:
        what: one line with the number; where: UUID and bus id, node or host; why, fix: cause and the command.
        check: the row of the report it belongs to; verdict: fail, degraded or not-measured.
        measured, expected: numbers in ``unit``; basis: where ``expected`` comes from.
        gpus, pairs: indices it is about; consequences: findings that this one explains.
    """

    code: str
    what: str
    where: str
    why: str
    fix: str
    check: str
    verdict: str
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    basis: str | None = None
    gpus: tuple[int, ...] = ()
    pairs: tuple[Pair, ...] = ()
    consequences: list[Finding] = dataclasses.field(default_factory=list)

    def absorb(self, effect: Finding) -> None:
        """Explain another finding; what it makes worse makes this one worse."""
        self.consequences.append(effect)
        self.verdict = worst((self.verdict, effect.verdict), self.verdict)

    def touches(self) -> set[int]:
        """All GPUs it is about."""
        return set(self.gpus) | {index for pair in self.pairs for index in pair}

    def as_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        fields["gpus"], fields["pairs"] = list(self.gpus), [list(pair) for pair in self.pairs]
        fields["consequences"] = [finding.as_dict() for finding in self.consequences]
        return fields


def make(code: str, what: str, where: str, *, fill: dict[str, str] | None = None, **facts: Any) -> Finding:
    """A finding of :data:`CODES`; ``fill`` completes ``{node}``, ``{bus_id}`` and ``{bdf}`` in its fix.

    ``facts`` may hold ``why``, ``fix``, ``check`` and ``verdict`` where the rule knows better than the table.
    """
    entry = CODES[code]
    names = {"node": "/dev/nvidiaN", "bus_id": "BUS_ID", "bdf": "BDF", **(fill or {})}
    fix = facts.pop("fix", None) or entry.fix
    for name, value in names.items():
        fix = fix.replace("{" + name + "}", value)
    why = facts.pop("why", None) or entry.why
    check, verdict = facts.pop("check", entry.check), facts.pop("verdict", entry.verdict)
    facts["gpus"], facts["pairs"] = tuple(facts.get("gpus", ())), tuple(facts.get("pairs", ()))
    return Finding(code, what, where, why, fix, check, verdict, **facts)


def problems_of(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The findings that fail or degrade, in the shape of rackwell's problems."""
    return [
        {"code": f.code, "what": f.what, "where": f.where, "why": f.why, "fix": f.fix}
        for f in findings
        if f.verdict in (FAIL, DEGRADED)
    ]


def listed(items: Sequence[str], most: int = 4) -> str:
    """``a, b, c and 5 more``."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def pair_names(pairs: Sequence[Pair], most: int = 4) -> str:
    """``0 -> 1, 1 -> 0 and 3 more``."""
    return listed([f"{source} -> {target}" for source, target in pairs], most)
