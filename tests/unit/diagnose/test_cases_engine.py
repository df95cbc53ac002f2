# SPDX-License-Identifier: Apache-2.0
"""Reports about SGLang, FlashInfer, NCCL, models, answers and benchmarks: what is said first.

`data/engine.jsonl` holds reports written after the rules, in other words than the rules' own examples: `expect`
is the rule that must be first (or one of a list), ``normal`` when nothing may be raised, or ``unknown``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.diagnose import Diagnoser, diagnoser

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "engine.jsonl").read_text("utf-8").splitlines()]
SAMPLES = Path(__file__).parents[4] / "shared" / "samples" / "sglang-0.5.16"

#: What real logs of SGLang 0.5.16 must give; these lie beside the repository, and are not part of it.
REAL = {
    "gpu-occupied.log": "sglang-memory-unbalanced",
    "mem-fraction-too-large.log": "sglang-fraction-too-large",
    "mem-fraction-too-small.log": "sglang-fraction-too-small",
    "no-gpu.log": "sglang-no-accelerator",
    "no-such-model.log": "model-path-missing",
    "port-taken.log": "sglang-port-taken",
    "tp2-rank-killed.log": "nccl-peer-gone",
    "tp4-on-2-gpus.log": "sglang-invalid-device-ordinal",
    "unknown-flag.log": "sglang-flag-unknown",
    "bench-dead-server.stdout": "bench-server-not-ready",
    "chat-too-long.txt": "sglang-prompt-too-long",
}
HEALTHY = ["cold-start-tp1.log", "glm-dsa-tp2.log", "bench-n256-c64.stdout", "bench-n256-c64.jsonl", "server_info.json"]


@pytest.fixture(scope="module")
def rules() -> Diagnoser:
    return diagnoser()


def said(rules: Diagnoser, text: str | bytes) -> set[str]:
    """The first finding's rule, ``normal`` if nothing is wrong, ``unknown`` if nothing is known."""
    told = rules.diagnose([("", text)])
    if not told.findings:
        return {"unknown"}
    first = told.findings[0]
    return {first.id, "normal"} if first.severity == "noise" else {first.id}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_cause_is_first(rules: Diagnoser, case: dict[str, Any]) -> None:
    expected = case["expect"] if isinstance(case["expect"], list) else [case["expect"]]
    assert said(rules, case["input"]) & set(expected)


@pytest.mark.parametrize("name", REAL)
def test_real_failures(rules: Diagnoser, name: str) -> None:
    if not (SAMPLES / name).is_file():
        pytest.skip("the samples are not here")
    assert REAL[name] in said(rules, (SAMPLES / name).read_bytes())


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_raises_nothing(rules: Diagnoser, name: str) -> None:
    if not (SAMPLES / name).is_file():
        pytest.skip("the samples are not here")
    assert said(rules, (SAMPLES / name).read_bytes()) & {"normal", "unknown"}


@pytest.mark.parametrize("area", ["sglang", "flashinfer", "nccl", "model", "quality", "bench"])
def test_each_rule_is_first_on_its_own_examples(rules: Diagnoser, area: str) -> None:
    from rackwell.diagnose import examples

    wrong = [str(fault) for fault in examples.faults(rules, lambda rule: rule.area == area) if fault.kind != "no-clean"]
    assert not wrong
