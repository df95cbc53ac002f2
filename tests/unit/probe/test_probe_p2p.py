# SPDX-License-Identifier: Apache-2.0
"""The measurement of pairs, on the stand-in for the bindings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rackwell.probe.p2p import work

Order = Callable[..., None]
SIZE = 1 << 16
COPIES = [("copy", "write"), ("copy", "read"), ("kernel", "write"), ("kernel", "read")]


def measure(deadline: float = 60, **arguments: Any) -> dict[str, Any]:
    return work.measure({"size": SIZE, **arguments}, deadline)


def wrong(found: dict[str, Any]) -> set[tuple[int, int, str, str]]:
    return {(row["src"], row["dst"], row["engine"], row["op"]) for row in found["data"] if not row["ok"]}


def speeds(found: dict[str, Any], engine: str, op: str, ways: int) -> dict[tuple[int, int], float]:
    return {
        (row["src"], row["dst"]): row["gb_per_s"]
        for row in found["bandwidth"]
        if (row["engine"], row["op"], row["ways"]) == (engine, op, ways)
    }


def test_all_ordered_pairs_are_verified_and_measured(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, gb_per_s={"default": 50, "2>0": 38}, us={"default": 1.3, "0>2": 14})
    found = measure()
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert (found["state"], found["errors"], found["at"], found["size"]) == ("done", [], None, SIZE)
    assert [(row["src"], row["dst"]) for row in found["capability"]] == pairs
    assert [(r["src"], r["dst"], r["engine"], r["op"]) for r in found["data"]] == [
        (*p, *c) for p in pairs for c in COPIES
    ]
    assert all(row["ok"] and row["bytes"] == SIZE for row in found["data"])
    for engine, op in COPIES:
        for ways in (1, 2):
            expected = {pair: 38 if pair == (2, 0) else 50 for pair in pairs}
            assert speeds(found, engine, op, ways) == pytest.approx(expected, rel=0.001)
    reads = {(row["src"], row["dst"]): row["us"] for row in found["latency"] if row["kind"] == "remote-read"}
    assert reads == pytest.approx({pair: 14 if pair == (0, 2) else 1.3 for pair in pairs}, rel=0.001)
    assert {row["gpu"] for row in found["memory"]} == {0, 1, 2}
    assert found["devices"][2]["bus_id"] == "0000:03:00.0"
    assert set(found["link_load"]) == {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}


@pytest.mark.parametrize(("kind", "told"), [("drop", "dropped"), ("zero", "zero"), ("flip", "other")])
def test_one_direction_that_lies(fake_cuda: Order, kind: str, told: str) -> None:
    fake_cuda(gpus=3, corrupt={"0>1": kind})
    found = measure(tests=["data"])
    assert wrong(found) == {(0, 1, engine, op) for engine, op in COPIES}
    row = next(row for row in found["data"] if not row["ok"])
    assert (row["kind"], row["source_intact"]) == (told, True)
    if kind == "flip":
        assert (row["wrong"], row["first"]) == (8, SIZE // 2)
    else:
        assert (row["wrong"], row["first"]) == (SIZE, 0)


def test_only_the_kernels_copies_are_wrong(fake_cuda: Order) -> None:
    fake_cuda(corrupt={"1>0/kernel": "flip"})
    assert wrong(measure(tests=["data"])) == {(1, 0, "kernel", "write"), (1, 0, "kernel", "read")}


def test_a_source_that_is_spoiled_meanwhile(fake_cuda: Order) -> None:
    fake_cuda(bad_source={"0>1": True}, corrupt={"0>1": "flip"})
    row = next(row for row in measure(tests=["data"])["data"] if not row["ok"])
    assert row["source_intact"] is False


def test_bytes_that_go_wrong_only_under_the_timed_copies(fake_cuda: Order) -> None:
    fake_cuda(corrupt={"0>1/copy": "late"})
    found = measure(tests=["bandwidth"])
    assert wrong(found) == {(0, 1, "copy", "write"), (0, 1, "copy", "read")}
    assert len(speeds(found, "copy", "write", 1)) == 2  # what was measured is told nevertheless


def test_pointers_of_a_pair_that_misreads_are_not_followed(fake_cuda: Order) -> None:
    fake_cuda(corrupt={"0>1/kernel": "zero"})
    found = measure(tests=["data", "latency"])
    assert [(r["src"], r["dst"]) for r in found["latency"] if r["kind"] == "remote-read"] == [(1, 0)]


def test_a_pair_without_access_is_told_and_not_measured(fake_cuda: Order) -> None:
    fake_cuda(no_access=[[0, 1]])
    found = measure()
    told = {(row["src"], row["dst"]): (row["write"], row["read"]) for row in found["capability"]}
    assert told == {(0, 1): (False, True), (1, 0): (True, False)}
    assert (found["data"], found["bandwidth"], found["latency"], found["errors"]) == ([], [], [], [])


def test_atomics_where_the_driver_offers_them(fake_cuda: Order) -> None:
    fake_cuda(atomics=True)
    found = measure(tests=["data"])
    assert [row["ok"] for row in found["data"] if row["op"] == "atomic"] == [True, True]
    assert all(row["atomics"] for row in found["capability"])


def test_atomics_that_lose_additions(fake_cuda: Order) -> None:
    fake_cuda(atomics=True, lossy_atomics=True)
    assert wrong(measure(tests=["data"])) == {(0, 1, "kernel", "atomic"), (1, 0, "kernel", "atomic")}


def test_a_hang_names_pair_and_step(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, hang="cuMemcpyAsync@1>2")
    found = measure(deadline=5)
    assert found["state"] == "hung"
    assert found["at"] == {"pair": [1, 2], "step": "copy write and compare"}
    assert found["errors"][0]["error"]["name"] == "HANG"
    assert (found["errors"][0]["src"], found["errors"][0]["dst"]) == (1, 2)
    assert (0, 1, "copy", "write") in {(r["src"], r["dst"], r["engine"], r["op"]) for r in found["data"]}


def test_a_pair_that_fails_does_not_keep_the_others_from_their_turn(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, errors={"cuMemcpyAsync@0>1": 205})
    found = measure(tests=["data"])
    assert {(e["src"], e["dst"], e["error"]["code"]) for e in found["errors"]} == {(0, 1, 205)}
    assert "BAR1" in found["errors"][0]["error"]["cause"]
    good = {(row["src"], row["dst"]) for row in found["data"] if row["engine"] == "copy"}
    assert good == {(0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}


def test_a_lost_context_ends_the_measurement_once(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, errors={"cuMemcpyAsync@0>1": 719})
    found = measure(tests=["data"])
    assert [(e["src"], e["dst"], e["error"]["code"]) for e in found["errors"]] == [(0, 1, 719)]
    assert found["data"] == []


def test_a_failure_before_any_pair_has_no_pair(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuMemAlloc@1": 2})
    (error,) = measure()["errors"]
    assert (error["src"], error["dst"], error["step"]) == (None, None, "prepare the GPUs")


def test_named_pairs_with_more_samples(fake_cuda: Order) -> None:
    fake_cuda(gpus=4)
    found = measure(pairs=[[2, 1]], tests=["bandwidth", "latency"], samples=7)
    one_way = [row for row in found["bandwidth"] if row["ways"] == 1]
    assert {(row["src"], row["dst"], len(row["samples"])) for row in one_way} == {(2, 1, 7)}
    both = {(row["src"], row["dst"]) for row in found["bandwidth"] if row["ways"] == 2}
    assert both == {(1, 2), (2, 1)}
    assert {(row["src"], row["dst"], len(row["samples"])) for row in found["latency"]} == {(2, 1, 7)}
    assert found["data"] == []


def test_a_quick_look_reaches_every_gpu_both_ways(fake_cuda: Order) -> None:
    fake_cuda(gpus=6)
    switches = [[0, 1, 2], [3, 4, 5]]
    found = measure(quick=True, switches=switches, tests=["capability", "data"], size=4096)
    assert len(found["capability"]) == 30
    verified = {(row["src"], row["dst"]) for row in found["data"] if row["ok"] and row["engine"] == "kernel"}
    assert verified == {(row["src"], row["dst"]) for row in found["data"]}
    for members in switches:
        for one in members:
            for within in (True, False):
                partners = [other for other in range(6) if other != one and (other in members) is within]
                assert any((one, other) in verified for other in partners)
                assert any((other, one) in verified for other in partners)
    assert len(verified) < 30


def test_buffers_shrink_where_memory_is_short(fake_cuda: Order) -> None:
    fake_cuda(free=8 << 20)
    found = measure(size=64 << 20, tests=["capability"])
    assert (found["size"], found["not_measured"]) == (1 << 20, None)


def test_no_room_is_not_measured_and_says_why(fake_cuda: Order) -> None:
    fake_cuda(free=7 << 20)
    found = measure(size=64 << 20)
    assert "7 MiB free" in found["not_measured"]
    assert (found["state"], found["errors"], found["data"]) == ("done", [], [])


def test_more_gpus_than_one_may_have_peers(fake_cuda: Order) -> None:
    fake_cuda(gpus=10)
    found = measure(size=4096, tests=["data"])
    assert found["errors"] == []
    assert sum(row["ok"] for row in found["data"]) == 90 * len(COPIES)


def test_without_a_gpu_nothing_is_measured(fake_cuda: Order) -> None:
    fake_cuda(gpus=0)
    found = measure()
    assert (found["state"], found["errors"], found["not_measured"]) == ("done", [], "CUDA finds no GPU")


def test_one_gpu_has_no_pairs_and_yet_a_link_and_memory(fake_cuda: Order) -> None:
    fake_cuda(gpus=1)
    found = measure()
    assert (found["errors"], found["capability"], found["data"]) == ([], [], [])
    assert (list(found["link_load"]), len(found["memory"])) == (["0000:01:00.0"], 1)
