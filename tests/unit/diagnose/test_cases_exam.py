# SPDX-License-Identifier: Apache-2.0
"""Reports of all areas, after public ones: what is said first.

`data/exam.jsonl`: sets (an id begins with the number of its set) and healthy outputs (`n`). Each set was written
apart from the rules and tried once as it was; the rules were mended by kind afterwards. `expect` is as in
`test_cases_host`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.diagnose import Diagnoser, diagnoser

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "exam.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def rules() -> Diagnoser:
    return diagnoser()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_cause_is_first(rules: Diagnoser, case: dict[str, Any]) -> None:
    told = rules.diagnose([("", case["input"])]).findings
    first = "unknown" if not told else "normal" if told[0].severity == "noise" else told[0].id
    assert first in case["expect"]
