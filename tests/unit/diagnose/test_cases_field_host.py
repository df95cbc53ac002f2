# SPDX-License-Identifier: Apache-2.0
"""Reports from hosts and containers, after public ones: what is said first.

`data/field-host.jsonl`: the letter and number before an id name the round; each was written apart from the rules and
tried once as it was, and the rules were mended by kind afterwards. `expect` is as in `test_cases_host`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.diagnose import Diagnoser, diagnoser

FILE = Path(__file__).parent / "data" / "field-host.jsonl"
CASES = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def rules() -> Diagnoser:
    return diagnoser()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_cause_is_first(rules: Diagnoser, case: dict[str, Any]) -> None:
    told = rules.diagnose([("", case["input"])]).findings
    first = "unknown" if not told else "normal" if told[0].severity == "noise" else told[0].id
    assert first in case["expect"]
