# SPDX-License-Identifier: Apache-2.0
"""Rules that end the wait for a start: what fulfils them, and what only looks like it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rackwell.gpu.plugins.filter.shipped import fatal_rules
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_fatal import FatalRules

REPOSITORY = Path(__file__).parents[3]
STAMP = "[2026-11-29 20:00:02 TP3] "


def lost(match: Any, *lines: str) -> str | None:
    return FatalRules([{"id": "it", "match": match}]).take(lines)


@pytest.mark.parametrize(
    ("match", "lines", "is_lost"),
    [
        ("^no kernel", [STAMP + "no kernel image"], True),
        ("^no kernel", ["\x1b[31m[rank1]: no kernel image"], True),
        (["a1", "b2"], ["x", "b2"], True),
        ({"all": ["a1", "b2"]}, ["a1", "x"], False),
        ({"all": ["a1", "b2"]}, ["b2", "a1"], True),
        ({"all": ["a1", {"re": "b2", "within": 2}]}, ["a1", "x", "x", "b2"], False),
        ({"all": ["a1", {"re": "b2", "within": 2}]}, ["a1", "x", "b2"], True),
        ({"all": ["a1", {"after": "b2"}]}, ["b2", "a1"], False),
        ({"all": ["a1", {"before": "b2"}]}, ["b2", "a1"], True),
        ({"all": ["a1", {"any": ["b2", "c3"]}]}, ["c3", "a1"], True),
        ({"any": ["a1"], "none": ["all is well"]}, ["a1", "all is well"], False),
        ({"all": ["a1"], "any": ["b2", "c3"]}, ["a1"], False),
    ],
)
def test_what_fulfils_a_rule(match: Any, lines: list[str], is_lost: bool) -> None:
    assert lost(match, *lines) == ("it" if is_lost else None)


@pytest.mark.parametrize(
    "line",
    [
        STAMP + "Receive: obj=GenerateReqInput(text='why do I see: CUDA error: no kernel image', rid='1')",
        STAMP + "Finish: obj=GenerateReqInput(rid='1'), out={'text': 'CUDA error: no kernel image'}",
        "[2026-11-29 20:00:01] server_args=ServerArgs(model_path='/m', chat_template='CUDA error: no kernel image')",
        STAMP + 'INFO:     127.0.0.1:1 - "GET /?q=CUDA error: no kernel image HTTP/1.1" 404 Not Found',
    ],
)
def test_a_request_that_quotes_an_error_fools_nobody(line: str) -> None:
    assert lost("CUDA error: no kernel image", line) is None


def test_lines_that_come_one_after_another_count_together() -> None:
    rules = FatalRules([{"id": "it", "match": {"all": ["a1", "b2"]}}])
    assert [rules.take(["a1"]), rules.take(["x"]), rules.take(["b2"])] == [None, None, "it"]


def test_a_rule_that_python_cannot_read_or_that_counts_is_left_out() -> None:
    rules = [{"id": "bad", "match": "("}, {"id": "counts", "match": {"count": {"re": "x"}}}, {"id": "it", "match": "x"}]
    assert FatalRules(rules).take(["x"]) == "it"


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = fatal_rules([])
    return rules


def _files() -> dict[str, dict[str, Any]]:
    found = (REPOSITORY / "catalog/rules/diagnose").rglob("*.yml")
    texts = [path.read_text(encoding="utf-8") for path in found]
    loaded = [yaml.safe_load(text) for text in texts if "fatal:" in text]
    return {rule["id"]: rule for rule in loaded if rule.get("fatal")}


def _text(example: Any) -> list[str]:
    text = example if isinstance(example, str) else str(example.get("text", "")) if isinstance(example, dict) else ""
    return text.splitlines()


def test_the_catalogues_fatal_rules_are_met_by_their_examples_and_by_no_near_miss() -> None:
    """What ends a wait on a host says the same as the diagnosis does on the controller."""
    files = _files()
    for rule in _rules():
        examples = files[rule["id"]].get("examples") or {}
        for text in examples.get("match") or []:
            assert FatalRules([rule]).take(_text(text)), (rule["id"], text)
        for text in examples.get("clean") or []:
            assert not FatalRules([rule]).take(_text(text)), (rule["id"], text)


def test_the_real_engines_good_start_ends_no_wait() -> None:
    logs = REPOSITORY.parent / "shared/samples/sglang-0.5.16"
    if not logs.is_dir():
        pytest.skip("the logs of the real engine are not on this machine")
    for name in ("cold-start-tp1.log", "glm-dsa-tp2.log"):
        text = (logs / name).read_text(encoding="utf-8", errors="replace")
        ready = re.split(r"The server is fired up", text)[0]
        assert FatalRules(_rules()).take(ready.splitlines()) is None
