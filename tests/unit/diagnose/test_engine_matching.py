# SPDX-License-Identifier: Apache-2.0
"""What `match` asks for: all, any, distance, order, absence, number, differences; what follows from what."""

from __future__ import annotations

from typing import Any

import pytest

from rackwell.diagnose import Diagnoser, Facts
from rackwell.diagnose.rules import Rule


def rule(name: str, match: Any, **more: Any) -> Rule:
    data = {
        "id": name, "area": "sglang", "title": name, "severity": "blocker", "match": match, "cause": f"cause of {name}",
        "remedy": "mend it", "examples": {"match": ["x"], "clean": []},
    }  # fmt: skip
    return Rule.model_validate({**data, **more})


def found(text: str, *rules: Rule, facts: Facts | None = None) -> list[str]:
    return [finding.id for finding in Diagnoser(rules).diagnose([("", text)], facts).findings]


NO_RADIX = {"profile": {"flag": "disable-radix-cache", "absent": True}}
NO_P2P = {"profile": {"environment": "NCCL_P2P_DISABLE", "equals": 1}}
FAR = "quiet line\n" * 50


@pytest.mark.parametrize(
    ("match", "text", "holds"),
    [
        ("alpha", "xx alpha yy", True),
        ("alpha", "xx ALPHA yy", False),
        ("(?i)alpha", "xx ALPHA yy", True),
        (["alpha", "beta"], "beta", True),
        ({"all": ["alpha", "beta"]}, "beta\nalpha", True),
        ({"all": ["alpha", "beta"]}, "beta", False),
        ({"all": ["alpha", {"after": "beta"}]}, "beta\nalpha", False),
        ({"all": ["alpha", {"after": "beta"}]}, "beta\nalpha\nbeta", True),
        ({"all": ["alpha", {"before": "beta"}]}, "beta\nalpha", True),
        ({"all": ["alpha", {"before": "beta"}]}, "alpha\nbeta", False),
        ({"all": ["alpha", {"re": "beta", "within": 3}]}, f"alpha\n{FAR}beta", False),
        ({"all": ["alpha", {"re": "beta", "within": 3}]}, f"alpha\n{FAR}alpha\nx\nbeta", True),
        ({"all": ["alpha", {"re": "beta", "within": 0}]}, "alpha\nbeta", False),
        ({"all": ["alpha", {"re": "beta", "within": 0}]}, "beta alpha", True),
        ({"all": ["alpha", {"after": "beta", "within": 2}]}, "beta\nalpha\nx\nbeta", True),
        ({"all": ["alpha", {"any": ["beta", "gamma"], "within": 2}]}, "alpha\ngamma", True),
        ({"all": ["alpha", {"any": ["beta", "gamma"], "within": 2}]}, f"alpha\n{FAR}gamma", False),
        ({"all": ["alpha", {"any": ["beta", "gamma"], "order": "after"}]}, "gamma\nalpha", False),
        ({"all": ["alpha"], "any": ["beta", "gamma"]}, "alpha\ngamma", True),
        ({"all": ["alpha"], "any": ["beta", "gamma"]}, "alpha", False),
        ({"any": ["alpha"], "none": ["beta"]}, "alpha\nbeta", False),
        ({"any": ["alpha"], "none": ["beta"]}, "alpha", True),
        ({"any": ["alpha"], "none": [{"re": "beta", "within": 5}]}, f"alpha\n{FAR}beta", True),
        ({"any": ["alpha"], "none": [{"re": "beta", "within": 5}]}, "alpha\nbeta", False),
        ({"any": ["alpha"], "none": [{"re": "beta", "within": 5}]}, f"alpha\nbeta\n{FAR}alpha", True),
        ({"count": {"re": "alpha", "at_least": 3}}, "alpha\nalpha", False),
        ({"count": {"re": "alpha", "at_least": 3}}, "alpha\nalpha\nx\nalpha", True),
        ({"count": {"re": "alpha", "at_least": 301}}, "alpha\n" * 300, False),
        ({"count": {"re": "alpha", "at_least": 300}}, "alpha\n" * 300, True),
        ({"all": ["v=(?P<a>\\d+)", "w=(?P<b>\\d+)"], "differ": ["a", "b"]}, "v=1\nw=1", False),
        ({"all": ["v=(?P<a>\\d+)", "w=(?P<b>\\d+)"], "differ": ["a", "b"]}, "v=1\nw=2", True),
        ({"all": ["v=(?P<a>\\d+)", "w=(?P<b>\\d+)"], "apart": ["a", "b"]}, "v=1\nw=2\nw=1", False),
        ({"all": ["v=(?P<a>\\d+)", "w=(?P<b>\\d+)"], "apart": ["a", "b"]}, "v=1\nv=3\nw=2", True),
        ("^alpha$", "Nov 29 19:23:22 ct sglang[702]: [2026-11-29 19:23:22 TP1] alpha", True),
        ("^alpha$", "not alpha", False),
    ],
)
def test_match(match: Any, text: str, holds: bool) -> None:
    assert found(text, rule("r", match)) == (["r"] if holds else [])


def test_a_long_text_is_held_against_the_same() -> None:
    """What was found often enough is left out of large texts: distances around what is new still hold."""
    filler = "[2026-11-29 19:00:00 TP0] Decode batch, alpha, token usage: 0.10\n"
    near = rule("near", {"all": ["alpha", {"re": "omega", "within": 30}]})
    gone = rule("gone", {"all": ["omega"], "none": [{"re": "alpha", "within": 30}]})
    counted = rule("counted", "Decode batch, alpha")
    assert "near" in found(filler * 9000 + "omega\n" + filler * 50, near, counted)
    assert "gone" not in found(filler * 9000 + "omega\n" + filler * 50, gone, counted)
    assert "gone" in found(filler * 9000 + "x\n" * 40 + "omega\n" + "x\n" * 40, gone, counted)
    (finding,) = Diagnoser([counted]).diagnose([("", filler * 30_000 + "omega\n" + filler)]).findings
    assert finding.count == 30_001


def test_the_count_is_right_across_starts() -> None:
    start = "server_args=ServerArgs(model_path='x')\n"
    noisy = rule("noisy", "alpha Error")
    text = start + "alpha Error\n" * 20_000 + "kill_process_tree called\n" + start + "alpha Error\n" * 15_000
    told = Diagnoser([noisy]).diagnose([("", text)])
    assert told.findings[0].count == 15_000
    assert [(e.first, e.last, e.finding.count) for e in told.earlier] == [(1, 20_002, 20_000)]


def test_the_cause_is_first_and_what_follows_is_folded() -> None:
    a = rule("a", "alpha", explains=["b"], rank=20)
    b = rule("b", "beta", explains=["c-*"], rank=90)
    c = rule("c-x", "gamma", rank=95)
    symptom = rule("s", "sigma", rank=10)
    other = rule("o", "omega", rank=15 + 1)
    told = Diagnoser([a, b, c, symptom, other]).diagnose([("", "sigma\ngamma\nbeta\nalpha\nomega")])
    assert [finding.id for finding in told.findings] == ["a", "o"]
    assert set(told.findings[0].folded) == {"b", "c-x", "s"}


def test_circles_of_explanations_end() -> None:
    a, b, c = (rule(n, n * 3, explains=[e]) for n, e in (("a", "b"), ("b", "c"), ("c", "a")))
    told = Diagnoser([a, b, c]).diagnose([("", "ccc\nbbb\naaa")])
    assert len(told.findings) == 1
    assert len(told.findings[0].folded) == 2


def test_the_earliest_is_first_among_equals_and_doubt_costs() -> None:
    a, b, c = rule("a", "alpha"), rule("b", "beta"), rule("c", "gamma", confidence="possible", rank=60)
    assert found("gamma\nbeta\nalpha", a, b, c) == ["b", "a", "c"]


def test_noise_is_told_alone_only() -> None:
    noise = rule("n", "nu", severity="noise", rank=99)
    bad = rule("b", "beta", rank=1)
    told = Diagnoser([noise, bad]).diagnose([("", "nu\nbeta")])
    assert [finding.id for finding in told.findings] == ["b"]
    assert [finding.id for finding in told.normal] == ["n"]
    alone = Diagnoser([noise, bad]).diagnose([("", "nu")])
    assert alone.findings[0].cause.startswith("normal: ")
    assert alone.first is None
    assert not alone.unknown


def test_the_same_of_all_ranks_is_one_with_the_first_rank_first() -> None:
    text = "".join(f"[2026-11-29 19:00:00 TP{n}] alpha {n}\n" for n in (3, 0, 1, 2))
    (finding,) = Diagnoser([rule("a", "alpha (?P<n>\\d)", cause="it is ${n}")]).diagnose([("", text)]).findings
    assert finding.ranks == ("TP3", "TP0", "TP1", "TP2")
    assert finding.count == 4
    assert finding.cause == "it is 3"
    assert finding.lines[0].number == 1


@pytest.mark.parametrize(
    ("when", "text", "holds"),
    [
        ({"sglang": "<0.5.13"}, "alpha", True),
        ({"sglang": "<0.5.13", "require": True}, "alpha", False),
        ({"sglang": "<0.5.13"}, "alpha\nsglang==0.5.16", False),
        ({"sglang": "<0.5.13"}, "alpha\nsglang 0.5.8.post1, x", True),
        ({"sglang": ">=0.5.10"}, "$ pip show sglang | grep Version\nVersion: 0.5.20\nalpha", True),
        ({"sglang": "<0.5.10"}, "$ pip show sglang | grep Version\nVersion: 0.5.20\nalpha", False),
        ({"driver": "<580"}, "NVIDIA-SMI 570.1  Driver Version: 570.124.06  CUDA Version: 12.8\nalpha", True),
        ({"nccl": "<2.27"}, "NCCL version 2.27.3+cu128\nalpha", False),
        ({"torch": ">=2.11"}, "torch   2.11.0+cu130\nalpha", True),
        ({"gpu": ["sm120"]}, "NVIDIA RTX PRO 6000 Blackwell Server Edition, 12.0\nalpha", True),
        ({"gpu": ["sm120"]}, "NVIDIA H200, 9.0\nalpha", False),
        (NO_RADIX, "alpha\nserver_args=ServerArgs(a=1, disable_radix_cache=True)", False),
        (NO_RADIX, "alpha\nserver_args=ServerArgs(a=1, disable_radix_cache=False)", True),
        ({"profile": {"flag": "kv-cache-dtype", "equals": "fp8_e4m3"}}, "x --kv-cache-dtype fp8_e4m3\nalpha", True),
        (NO_P2P, "NCCL_P2P_DISABLE set by environment to 1\nalpha", True),
        (NO_P2P, "NCCL_P2P_DISABLE=0\nalpha", False),
    ],
)  # fmt: skip
def test_conditions(when: dict[str, Any], text: str, holds: bool) -> None:
    assert found(text, rule("r", "alpha", when=when)) == (["r"] if holds else [])


def test_what_is_known_beforehand_comes_first() -> None:
    old = rule("r", "alpha", when={"sglang": "<0.5.13"})
    assert found("alpha\nsglang==0.5.9", old, facts=Facts.of({"sglang": "0.5.16"})) == []


def test_secrets_in_facts_are_not_told() -> None:
    text = "server_args=ServerArgs(model_path='/m', api_key='hush', admin_api_key='hush2')"
    told = Diagnoser([rule("r", "alpha")]).diagnose([("", text)])
    assert "hush" not in str(told.facts.as_dict())


def test_what_is_normal_does_not_make_normal_what_nobody_knows() -> None:
    noise = rule("n", ["nu deprecated", "NCCL WARN nu"], severity="noise")
    told = Diagnoser([noise]).diagnose([("", "nu deprecated\nTraceback (most recent call last):\nFooError: broken")])
    assert told.unknown
    assert [finding.id for finding in told.normal] == ["n"]
    assert [line.number for line in told.telling] == [3]
    assert not Diagnoser([noise]).diagnose([("", "nu deprecated\nNCCL WARN nu failed, error")]).unknown


def test_what_rackwell_itself_advises_is_no_sign() -> None:
    bad = rule("b", "NVRM: Xid")
    for line in ("  do      look for NVRM: Xid 79", "gate held: cuda-no-device: look for NVRM: Xid 79"):
        assert found(line, bad) == []
    assert found("  why     12: NVRM: Xid 79", bad) == ["b"]
