# SPDX-License-Identifier: Apache-2.0
"""docs/diagnosis.md is what the rules say; the HTML page holds all of them and nothing of a network."""

from __future__ import annotations

import re
from pathlib import Path

from rackwell.diagnose import page, rulepage
from rackwell.diagnose.rules import AREAS, RANKS, Rule, load_rules

ROOT = Path(__file__).parents[3]


def test_the_reference_is_made_from_the_rules() -> None:
    made = page.text(ROOT / "catalog")
    kept = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert kept == made, "python -m rackwell.diagnose.page docs/diagnosis.md"


def test_the_guide_names_every_key_and_the_ranks() -> None:
    guide = (ROOT / "docs" / "diagnose-rules.md").read_text(encoding="utf-8")
    for name, field in Rule.model_fields.items():
        assert f"`{field.alias or name}`" in guide
    told = guide.partition("Ranks when absent: ")[2].replace("\n", " ")
    for area, rank in RANKS.items():
        assert f"{area} {rank}" in told


def test_the_page_holds_every_rule_and_asks_nothing_of_a_network() -> None:
    rules = load_rules(ROOT / "catalog")
    made = rulepage.render(rules)
    assert set(re.findall(r'<article class="rule \w+" id="([^"]+)"', made)) == {rule.id for rule in rules}
    assert set(re.findall(r'<section data-area="([^"]+)"', made)) == {rule.area for rule in rules} <= set(AREAS)
    assert re.search("default-src (?:'|&#39;)none", made)
    assert not re.search(r"<(?:script|img|link)[^>]+(?:src|href)=\"(?!data:)", made)


def test_words_of_rules_cannot_become_markup() -> None:
    rule = load_rules(ROOT / "catalog")[0].model_copy(
        update={"title": "<b>x</b>", "cause": "</script><script>1</script>", "evidence": ["javascript:alert(1)"]}
    )
    made = rulepage.render([rule])
    assert "<b>x</b>" not in made
    assert "</script><script>" not in made
    assert 'href="javascript' not in made
