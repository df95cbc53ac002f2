# SPDX-License-Identifier: Apache-2.0
"""The table of tests/gpu: whose figure stands beside whose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))

import compare


def _report(**measurements: Any) -> dict[str, Any]:
    return {"measurements": measurements}


def _copies(engine: str, op: str, ways: int, forward: float, backward: float) -> list[dict[str, Any]]:
    entry = {"engine": engine, "op": op, "ways": ways}
    return [{**entry, "src": 0, "dst": 1, "gb_per_s": forward}, {**entry, "src": 1, "dst": 0, "gb_per_s": backward}]


def _run(test: str, matrix: list[list[float | None]]) -> dict[str, Any]:
    return {"test": test, "status": "Passed", "matrix": matrix, "seconds": 1.0}


@pytest.mark.parametrize(
    ("test", "op", "source_is_row"),
    [("device_to_device_memcpy_write_ce", "write", True), ("device_to_device_memcpy_read_ce", "read", False)],
)
def test_a_direction_is_compared_with_the_same_direction(test: str, op: str, source_is_row: bool) -> None:
    inside = _report(p2p={"bandwidth": _copies("copy", op, 1, 50.0, 25.0)})
    matrix = [[None, 50.0], [25.0, None]] if source_is_row else [[None, 25.0], [50.0, None]]
    rows = compare.compare(inside, inside, {"nvbandwidth": [_run(test, matrix)]})
    assert [(row["pair"], row["to_peer"], row["to_outside"]) for row in rows] == [
        ([0, 1], 0.0, 0.0),
        ([1, 0], 0.0, 0.0),
    ]


def test_of_both_ways_the_first_matrix_counts_which_is_one_direction() -> None:
    inside = _report(p2p={"bandwidth": _copies("copy", "write", 2, 391.8, 391.8)})
    three: list[list[float | None]] = [[None, 391.8], [391.8, None], [None, 391.7], [391.7, None], [None, 783.5]]
    peers = {"nvbandwidth": [_run("device_to_device_bidirectional_memcpy_write_ce", [*three, [783.5, None]])]}
    assert {row["peer"] for row in compare.compare(inside, {}, peers)} == {391.8}


def test_nanoseconds_become_microseconds_and_belong_to_the_gpu_that_reads() -> None:
    inside = _report(p2p={"latency": [{"src": 1, "dst": 0, "kind": "remote-read", "us": 0.8}]})
    peers = {"nvbandwidth": [_run("device_to_device_latency_sm", [[None, 800.0], [900.0, None]])]}
    (row,) = compare.compare(inside, {}, peers)
    assert (row["pair"], row["peer"], row["to_peer"]) == ([1, 0], 0.8, 0.0)


def test_repeated_tests_of_the_peer_count_by_their_median() -> None:
    inside = _report(p2p={"bandwidth": _copies("copy", "write", 1, 50.0, 50.0)})
    runs = [_run("device_to_device_memcpy_write_ce", [[None, value], [value, None]]) for value in (50.0, 10.0, 50.0)]
    assert {row["to_peer"] for row in compare.compare(inside, {}, {"nvbandwidth": runs})} == {0.0}


def test_allreduce_stands_beside_the_same_size() -> None:
    points = [{"bytes": 8192, "busbw": 1.0}, {"bytes": 8192, "busbw": 9.0, "in_place": True}]
    inside = _report(collectives={"points": points})
    peers = {"torch": {"points": [{"bytes": 8192, "busbw": 1.05}, {"bytes": 32768, "busbw": 3.0}]}}
    peers["nccl_tests"] = {"points": [{"bytes": 8192, "busbw": 0.8}]}
    rows = {row["what"].rpartition(" ")[2]: row["to_peer"] for row in compare.compare(inside, {}, peers)}
    assert rows == {"torch": pytest.approx(-0.0476, abs=1e-4), "nccl_tests": 0.25}


def test_what_is_beyond_its_limit_is_marked() -> None:
    inside = _report(p2p={"bandwidth": _copies("copy", "write", 1, 50.0, 50.0)})
    outside = _report(p2p={"bandwidth": _copies("copy", "write", 1, 50.0, 51.0)})
    lines = compare.table(compare.compare(inside, outside, {}))
    assert [line.endswith("!") for line in lines] == [False, False, True]
