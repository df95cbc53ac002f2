# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rackwell.probe import p2p_check

Order = Callable[..., None]
SIZE = 1 << 16


def check(timeout: float = 60, floor: float = 0.0, gpus: int | None = None) -> dict[str, Any]:
    return p2p_check.check(timeout, SIZE, floor, gpus)


def codes(report: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in report["problems"]]


def pair(report: dict[str, Any], source: int, target: int) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in report["pairs"] if (p["src"], p["dst"]) == (source, target))
    return found


def test_all_ordered_pairs_are_verified_and_measured(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, gb_per_s={"default": 50, "2>0": 38})
    report = check(gpus=3)
    assert report["problems"] == []
    assert (report["schema"], report["verdict"]) == ("rackwell.p2p/1", "pass")
    pairs = [(p["src"], p["dst"]) for p in report["pairs"]]
    assert pairs == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert all(p["verified"] is True and p["can_access"] is True for p in report["pairs"])
    assert pair(report, 0, 1)["gb_per_s"] == 50
    assert pair(report, 2, 0)["gb_per_s"] == 38
    assert report["bandwidth"] == {"min": 38, "median": 50, "max": 50}
    assert pair(report, 0, 2)["dst_uuid"] == report["devices"][2]["uuid"]
    assert pair(report, 0, 2)["src_bus_id"] == "0000:01:00.0"


def test_dropped_writes_are_found_where_the_driver_reports_success(fake_cuda: Order) -> None:
    fake_cuda(corrupt={"0>1": "drop"})
    report = check()
    assert codes(report) == ["p2p-wrong-data"]
    problem = report["problems"][0]
    assert "the writes were dropped; the source still holds the right data" in problem["what"]
    assert "GPU 0 GPU-01010101" in problem["where"]
    assert "GPU 1 GPU-02020202" in problem["where"]
    assert "iommu" in problem["fix"]
    assert pair(report, 0, 1)["verified"] is False
    assert pair(report, 1, 0)["verified"] is True


def test_zeros_and_single_bits(fake_cuda: Order) -> None:
    fake_cuda(corrupt={"0>1": "zero", "1>0": "flip"})
    report = check()
    assert "all of them zero" in report["problems"][0]["what"]
    assert f"1 of {SIZE} bytes are wrong, the first at offset {SIZE // 2}" in report["problems"][1]["what"]


def test_corruption_that_begins_under_load(fake_cuda: Order) -> None:
    fake_cuda(corrupt={"0>1": "late"})
    report = check()
    assert codes(report) == ["p2p-wrong-data"]
    assert report["problems"][0]["what"].startswith("GPU 0 -> 1: compare after timing:")
    assert pair(report, 0, 1)["verified"] is False


def test_no_access_is_a_failure_although_the_staged_copy_works(fake_cuda: Order) -> None:
    fake_cuda(no_access=[[0, 1]])
    report = check()
    assert codes(report) == ["p2p-no-access"]
    assert pair(report, 0, 1)["can_access"] is False
    assert pair(report, 0, 1)["verified"] is True


def test_the_floor_names_the_slow_pair(fake_cuda: Order) -> None:
    fake_cuda(gb_per_s={"default": 50, "1>0": 8})
    report = check(floor=30)
    assert codes(report) == ["p2p-slow"]
    assert report["problems"][0]["what"] == "GPU 1 -> 0: 8.0 GB/s, below the floor of 30 GB/s"
    assert check(floor=8)["verdict"] == "pass"


def test_a_hang_names_its_pair_and_the_rest_is_not_reached(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, hang="cuMemcpyPeerAsync@1>0")
    report = check(timeout=2)
    assert codes(report) == ["p2p-hang"]
    assert report["problems"][0]["what"].startswith("GPU 1 -> 0: copy and compare: did not return")
    assert report["problems"][0]["where"].startswith("GPU 1 ")
    assert pair(report, 0, 1)["verified"] is True
    assert pair(report, 1, 0)["verified"] is False
    assert pair(report, 2, 1)["verified"] is None


def test_an_error_of_one_pair_does_not_hide_the_next(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuCtxEnablePeerAccess@0>1": 205})
    report = check()
    assert "BAR1" in report["problems"][0]["fix"]
    # both directions need that mapping
    assert [pair(report, *key)["verified"] for key in ((0, 1), (1, 0))] == [False, False]


def test_start_failure_is_told_once(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuInit": 3})
    report = check()
    assert codes(report) == ["p2p-failed"]
    assert report["pairs"] == []


def test_one_gpu_has_no_pairs(fake_cuda: Order) -> None:
    fake_cuda(gpus=1)
    report = check(gpus=1)
    assert (report["verdict"], report["pairs"], report["bandwidth"]) == ("pass", [], None)


def test_too_few_gpus(fake_cuda: Order) -> None:
    assert codes(check(gpus=8)) == ["gpu-count"]
