# SPDX-License-Identifier: Apache-2.0
"""One context against all rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rackwell.lint import checks
from rackwell.lint.context import Context, Pointer, in_range
from rackwell.lint.expression import filled
from rackwell.lint.findings import Finding
from rackwell.lint.rules import Rule, load_rules
from rackwell.lint.tables import Tables


class Linter:
    """The rules and tables of a catalogue."""

    def __init__(self, catalog: Path, rules: list[Rule] | None = None) -> None:
        self.rules = load_rules(catalog) if rules is None else rules
        self.tables = Tables(catalog)

    def lint(self, context: Context) -> list[Finding]:
        """What the rules find, by code."""
        found: list[Finding] = []
        codes: set[str] = set()
        # a rule that others make superfluous is asked after them
        for rule in sorted(self.rules, key=lambda rule: (bool(rule.unless), rule.id)):
            if codes & set(rule.unless):
                continue
            mine = list(self.apply(rule, context))
            if mine:
                codes.add(rule.id)
                found += mine
        return sorted(found, key=lambda finding: finding.code)

    def apply(self, rule: Rule, context: Context) -> Iterator[Finding]:
        """What one rule finds."""
        if not applies(rule, context):
            return
        if rule.condition is not None and not rule.condition.value(context.scope):
            return
        if not rule.check:
            yield _finding(rule, context, {}, ())
            return
        for match in checks.CHECKS[rule.check](context, self.tables):
            yield _finding(rule, context, match.values, match.pointers)


def applies(rule: Rule, context: Context) -> bool:
    """Whether the rule is about this role, these versions and this GPU; of an unknown version no range is true."""
    wanted = rule.applies
    if wanted.role != context.role:
        return False
    if wanted.gpu and context.gpu.get("architecture") not in wanted.gpu:
        return False
    for version, versions in ((context.sglang, wanted.sglang), (context.flashinfer, wanted.flashinfer)):
        if versions and (version is None or not in_range(version, versions)):
            return False
    return True


def _finding(rule: Rule, context: Context, values: Mapping[str, Any], pointers: tuple[Pointer, ...]) -> Finding:
    scope = {**context.scope, **values}
    places = [context.line(pointer) for pointer in (*pointers, *(_pointer(text, context) for text in rule.at))]
    places = list(dict.fromkeys(places or [context.line(("flags",))]))
    what, why, fix = (filled(text, scope) for text in (rule.what or rule.title, rule.why, rule.fix))
    return Finding(rule.id, rule.severity, what, places[0], " ".join(why.split()), " ".join(fix.split()), tuple(places))


def _pointer(text: str, context: Context) -> Pointer:
    first, _, rest = text.partition(".")
    if first in {"environment", "limits", "server", "model", "sane"}:
        return (first, rest) if rest else (first,)
    if first == "build":
        return tuple(text.split("."))
    return context.pointer_of(text)
