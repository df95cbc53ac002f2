# SPDX-License-Identifier: Apache-2.0
"""The journal keeps what was written, and tells when it is something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackwell.rollout.chain import Chain, ChainError, read


def written(path: Path, count: int = 3) -> list[dict[str, object]]:
    with Chain(path) as chain:
        for number in range(count):
            chain.append({"kind": "note", "text": f"{number}\n{{}}"})
    return read(path)


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "journal.jsonl"
    assert [record["text"] for record in written(path)] == ["0\n{}", "1\n{}", "2\n{}"]
    with Chain(path) as chain:
        chain.append({"kind": "note"})
    assert [record["seq"] for record in read(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[1].replace("1\\n", "9\\n"), *lines[2:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: ["{", *lines],
        lambda lines: lines[1:],
    ],
)
def test_a_changed_journal_is_told(tmp_path: Path, change: object) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")  # type: ignore[operator]
    with pytest.raises(ChainError):
        read(path)


def test_a_line_that_a_crash_cut_off_is_gone_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path)
    text = path.read_text()
    for cut in (1, 20, len(text.splitlines()[-1])):
        path.write_text(text[: -cut - 1])
        # the last record may be whole but for the end of its line: it was never confirmed to be on the disk
        assert read(path) == whole[:2]
        with Chain(path) as chain:
            assert chain.append({"kind": "note"}).get("after_torn", False) is (cut < len(text.splitlines()[-1]))
        assert [record["seq"] for record in read(path)] == [1, 2, 3]


def test_a_removed_torn_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    path.write_text(path.read_text() + '{"half')
    with Chain(path) as chain:
        chain.append({"kind": "note"})
    lines = [line for line in path.read_text().splitlines() if line != '{"half']
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ChainError):
        read(path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Chain(path), pytest.raises(BlockingIOError):
        Chain(path)
    with Chain(path) as chain:
        assert json.loads(json.dumps(chain.append({"kind": "note"})))["seq"] == 1
