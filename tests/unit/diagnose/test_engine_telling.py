# SPDX-License-Identifier: Apache-2.0
"""What people wrote is believed less than what programs printed."""

from __future__ import annotations

import pytest

from rackwell.diagnose import telling

LOOSE, EXACT = r"(?i)all_?reduce.*(?:hang|stuck)", r"Xid \([^)]*\): 79"
TOLD = "after the update the all-reduce hangs for a while and then it is stuck with both GPUs at full load"
PRINTED = "[2026-11-29 19:23:22 TP1] ERROR the all-reduce is stuck for 300 s with 8 ranks and it does not end"
POINT = "- **P2P**: all-reduce hangs on this board, see [the thread](https://example.org/1)"


@pytest.mark.parametrize(
    ("pairs", "sure"),
    [
        ([(LOOSE, TOLD)], "likely"),
        ([(EXACT, TOLD)], "high"),
        ([(LOOSE, PRINTED)], "high"),
        ([(LOOSE, TOLD), (EXACT, "NVRM: Xid (PCI:0000:c1:00): 79")], "high"),
        ([(EXACT, POINT)], "possible"),
        ([], "high"),
    ],
)
def test_words_of_people_make_it_less_sure(pairs: list[tuple[str, str]], sure: str) -> None:
    assert telling.doubted("high", pairs) == sure


def test_a_doubtful_finding_stays_one() -> None:
    assert telling.doubted("possible", [(LOOSE, TOLD)]) == "possible"
    assert telling.doubted("likely", [(LOOSE, TOLD)]) == "possible"
