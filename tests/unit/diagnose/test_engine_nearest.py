# SPDX-License-Identifier: Apache-2.0
"""What is said of a text that no rule knows: the nearest kinds by their words, as possible ones, or nothing."""

from __future__ import annotations

from rackwell.diagnose import Diagnoser
from rackwell.diagnose.render import text
from rackwell.diagnose.rules import CHECKED, Rule


def rule(name: str, match: str, words: str, severity: str = "blocker") -> Rule:
    data = {
        "id": name, "area": "pve", "title": words, "severity": severity, "match": match, "fatal": severity == "blocker",
        "cause": words, "remedy": f"mend {words}", "examples": {"match": [match], "clean": ["x"]},
    }  # fmt: skip
    return Rule.model_validate(data, context=CHECKED)


RULES = [
    rule("flux-inverted", "flux: inverted", "the flux capacitor refuses its thirteenth coil because quenching failed"),
    rule("gate-shut", "gate: shut", "the sluice gate stays shut while mercury drains from the upper basin"),
    rule("loud-pump", "pump: loud", "the turbine pump hums audibly during priming of the second stage", "noise"),
    # a word is worth the more the fewer rules have it
    *(rule(f"other-{number}", f"other{number}", f"thing{number} of kind{number}") for number in range(80)),
]
NEAR = "error: thirteenth coil refused by flux capacitor, quenching has failed because of it\nsee the capacitor"


def test_the_nearest_kind_is_possible_and_the_text_stays_unknown() -> None:
    told = Diagnoser(RULES).diagnose([("", NEAR)], guess=True)
    assert [(each.id, each.confidence, each.fatal) for each in told.findings] == [("flux-inverted", "possible", False)]
    assert told.unknown
    assert told.collect
    assert not told.fatal
    assert "no rule knows this text" in text(told)
    assert "mend the flux capacitor" in text(told)


def test_nothing_is_guessed_unasked() -> None:
    assert not Diagnoser(RULES).diagnose([("", NEAR)]).findings


def test_nothing_is_guessed_where_nothing_is_near_or_nothing_looks_like_trouble() -> None:
    far = "error: the ledger of the harbour master was lost when a courier failed to reach the northern pier in time"
    quiet = "thirteenth coil, flux capacitor, quenching: all of them were looked at by the capacitor's maker today"
    normal = "error? the turbine pump hums audibly during priming of the second stage, and failed nothing"
    for each in (far, quiet, normal):
        assert not Diagnoser(RULES).diagnose([("", each)], guess=True).findings


def test_of_a_long_text_its_telling_lines_count() -> None:
    long = "\n".join([*(f"harmless line {number} of the ledger" for number in range(300)), NEAR])
    assert Diagnoser(RULES).diagnose([("", long)], guess=True).findings[0].id == "flux-inverted"
