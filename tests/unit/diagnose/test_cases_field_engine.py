# SPDX-License-Identifier: Apache-2.0
"""Reports of the engine's side, after public ones: what is said first.

`data/field-engine.jsonl`: rounds (an id begins with its round). The reports of a round were written, with cause and
remedy, before the rules were tried on them; what the rules missed was mended by kind afterwards. `expect` is as in
`test_cases_exam`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.diagnose import Diagnoser, diagnoser

DATA = Path(__file__).parent / "data" / "field-engine.jsonl"
CASES = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def rules() -> Diagnoser:
    return diagnoser()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_cause_is_first(rules: Diagnoser, case: dict[str, Any]) -> None:
    told = rules.diagnose([("", case["input"])]).findings
    first = "unknown" if not told else "normal" if told[0].severity == "noise" else told[0].id
    assert first in case["expect"]
