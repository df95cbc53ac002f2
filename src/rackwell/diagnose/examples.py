# SPDX-License-Identifier: Apache-2.0
"""The examples of all rules against all rules: what is not found, what is found wrongly, and which rules clash."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from rackwell.diagnose.order import ordered
from rackwell.diagnose.rules import Rule
from rackwell.diagnose.run import Diagnoser

Kind = Literal["missed", "wrong", "clash", "no-clean", "no-rule"]
"""`missed`: an example of the rule does not give it. `wrong`: a clean one does. `clash`: on an example of the rule
another is first. `no-clean`: it has no near miss. `no-rule`: `explains` names nothing."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that is wrong. `other` is the rule that is first instead."""

    rule: str
    kind: Kind
    example: str
    other: str = ""

    def __str__(self) -> str:
        told = {
            "missed": "its example gives nothing of it",
            "wrong": "its clean example gives it",
            "clash": f"{self.other} is first on its example",
            "no-clean": "it has no clean example",
            "no-rule": f"it explains {self.other}, and there is no such rule",
        }[self.kind]
        first = self.example.strip().splitlines()[:1]
        return f"{self.rule}: {told}" + (f": {first[0][:120]}" if first else "")


def faults(diagnoser: Diagnoser, wanted: Callable[[Rule], bool] | None = None) -> Iterator[Fault]:
    """What is wrong with the rules that are `wanted`, held against all."""
    known = [rule.id for rule in diagnoser.rules]
    for rule in filter(wanted, diagnoser.rules):  # all of them when None
        yield from of_rule(diagnoser, rule, known)


def of_rule(diagnoser: Diagnoser, rule: Rule, known: list[str]) -> Iterator[Fault]:
    """What is wrong with one rule."""
    import fnmatch

    for pattern in rule.explains:
        if not fnmatch.filter(known, pattern):
            yield Fault(rule.id, "no-rule", "", pattern)
    for example in rule.examples.match:
        held = diagnoser.held(example)
        causes, _ = ordered(held)
        names = {each.rule.id for each in held}
        first = causes[0][0].rule.id if causes else ""
        if rule.id not in names:
            yield Fault(rule.id, "missed", example)
        elif first != rule.id:
            yield Fault(rule.id, "clash", example, first)
    for example in rule.examples.clean:
        if rule.id in {each.rule.id for each in diagnoser.held(example)}:
            yield Fault(rule.id, "wrong", example)
    if not rule.examples.clean:
        yield Fault(rule.id, "no-clean", "")


@dataclasses.dataclass(frozen=True)
class Scored:
    """What was said to one case."""

    id: str
    area: str
    first: str
    title: str
    cause: str
    remedy: str
    confidence: str
    others: tuple[str, ...]
    normal: bool
    expected_normal: bool
    expected_cause: str
    expected_remedy: str

    @property
    def suspicious(self) -> str:
        """What can be said without a person: unknown, an alarm over what is normal, or the reverse."""
        if not self.first:
            return "" if self.expected_normal else "unknown"
        if self.expected_normal != self.normal:
            return "alarm" if self.expected_normal else "taken for normal"
        return ""


def score(diagnoser: Diagnoser, case: Mapping[str, Any]) -> Scored:
    """One case: a mapping with `input`, and `id`, `area`, `cause`, `remedy`, `severity` as far as they are known."""
    told = diagnoser.diagnose([("", str(case["input"]))])
    first = told.findings[0] if told.findings else None
    return Scored(
        str(case.get("id", "")),
        str(case.get("area", "")),
        first.id if first else "",
        first.title if first else "",
        first.cause if first else "",
        first.remedy if first else "",
        first.confidence if first else "",
        tuple(finding.id for finding in told.findings[1:]),
        first is not None and first.severity == "noise",
        str(case.get("severity", "")) == "noise" and str(case.get("cause", "")).lower().startswith("normal"),
        str(case.get("cause", "")),
        str(case.get("remedy", "")),
    )
