# SPDX-License-Identifier: Apache-2.0
"""Every rule of the catalogue against its own examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rackwell.lint import checks, ignore
from rackwell.lint.example import context
from rackwell.lint.expression import holes
from rackwell.lint.rules import GROUPS, Rule, folder, load_rule, load_rules
from rackwell.lint.run import Linter

CATALOG = Path(__file__).parents[3] / "catalog"
FILES = sorted(folder(CATALOG).glob("*.yml"))
LINTER = Linter(CATALOG)
RULES = {rule.id: rule for rule in LINTER.rules}


def _found(rule: Rule, example: dict[str, Any]) -> set[str]:
    """The codes of what the example gives, of the whole catalogue."""
    if "text" in example:
        finding = LINTER.lint(context({"flags": {"tp-size": 4}}, CATALOG, LINTER.tables))
        comments = list(ignore.parse(example["text"], "flags"))
        # the example's comment stands where a finding is
        placed = [ignore.Ignore(c.code, c.reason, "flags.tp-size", c.where) for c in comments]
        return {code for code, _, _ in ignore.faults(placed, finding, RULES)}
    return {finding.code for finding in LINTER.lint(context(example, CATALOG, LINTER.tables))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_holds_and_finds_what_its_examples_say(path: Path) -> None:
    rule = load_rule(path)
    for example in rule.examples.match:
        assert rule.id in _found(rule, example), f"{rule.id} does not match {example}"
    for example in rule.examples.clean:
        assert rule.id not in _found(rule, example), f"{rule.id} matches {example}"


def test_each_rule_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "lint.md").read_text(encoding="utf-8")
    for code in RULES:
        assert f"### {code}: " in page


def test_there_are_rules_of_every_group() -> None:
    assert {code[2] for code in RULES} == set(GROUPS)
    assert len(RULES) >= 40


def test_every_named_check_is_used_and_every_one_that_is_used_is_there() -> None:
    assert {rule.check for rule in RULES.values() if rule.check} == set(checks.CHECKS)


def test_conditions_name_nothing_that_no_context_has() -> None:
    scope = context({}, CATALOG, LINTER.tables).scope
    for rule in RULES.values():
        assert rule.condition is None or rule.condition.names() <= set(scope), rule.id
        if not rule.check:  # a check fills in names of its own
            for text in (rule.what, rule.why, rule.fix):
                for hole in holes(text):
                    assert hole.names() <= set(scope), rule.id


def test_other_rules_that_a_rule_names_are_there() -> None:
    for rule in RULES.values():
        assert set(rule.unless) <= set(RULES), rule.id


def test_the_fast_reading_and_the_careful_one_are_equal() -> None:
    assert [rule.model_dump() for rule in load_rules(CATALOG)] == [load_rule(path).model_dump() for path in FILES]
