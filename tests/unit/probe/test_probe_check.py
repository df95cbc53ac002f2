# SPDX-License-Identifier: Apache-2.0
"""The stages: their order, what is left out and why, what beside a server is not done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated import Machine, codes, record

from rackwell.probe import render
from rackwell.probe.codes import CHECKS
from rackwell.probe.expectation import ExpectationError


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in report["checks"]}


def names(machine: Machine) -> list[str]:
    return [name for name, _ in machine.calls]


def arguments_of(machine: Machine, name: str) -> Any:
    return next(arguments for called, arguments in machine.calls if called == name)


def test_the_order_of_the_stages() -> None:
    machine = Machine()
    machine.check()
    assert names(machine) == ["before", "cuda", "pairs", "concurrent", "collectives", "after"]


def test_the_report_is_plain_and_complete() -> None:
    report = Machine().check()
    assert json.loads(json.dumps(report)) == report
    assert report["schema"] == "rackwell.gpu/1"
    assert report["gpus"][2] == {
        "index": 2,
        "uuid": "GPU-00000001-0000-0000-0000-000000000002",
        "bus_id": "0000:75:00.0",
        "name": "Simulated GPU",
        "compute_capability": "12.0",
        "memory_total": 97887 << 20,
        "minor": 0,
        "numa": 0,
        "root": "0000:70:01.1",
        "switch": "0000:71:00.0",
        "path": ["0000:70:01.1", "0000:71:00.0", "0000:72:02.0", "0000:75:00.0"],
    }
    assert [socket["numa"] for socket in report["topology"]["sockets"]] == [0, 1]
    assert report["topology"]["classes"][0][1] == "same-switch"
    assert set(report["measurements"]) == {"cuda", "p2p", "links", "health", "nvml", "collectives"}
    assert report["started"].endswith("Z")


def test_two_reports_of_the_same_are_the_same() -> None:
    one, two = (Machine(seed=4, sample_noise=0.02).check() for _ in range(2))
    for key in ("started", "seconds"):
        one.pop(key), two.pop(key)
    assert json.dumps(one) == json.dumps(two)


def test_the_quick_check_leaves_out_what_takes_long() -> None:
    machine = Machine()
    report = machine.check(mode="quick")
    assert names(machine) == ["before", "cuda", "pairs", "after"]
    asked = arguments_of(machine, "pairs")
    assert asked["quick"] is True
    assert asked["switches"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for check in ("p2p.concurrent", "collectives"):
        assert (rows(report)[check]["verdict"], rows(report)[check]["summary"]) == (
            "not-measured",
            "only in the full check",
        )
    assert report["verdict"] == "pass"


def test_beside_a_server_only_small_verified_copies() -> None:
    machine = Machine(slow={(0, 1): 0.1})
    report = machine.check(beside_server=True)
    assert names(machine) == ["before", "cuda", "pairs", "after"]
    asked = arguments_of(machine, "pairs")
    assert asked["tests"] == ["capability", "data"]
    assert asked["size"] <= 4 << 20
    for check in ("p2p.bandwidth", "p2p.latency", "p2p.concurrent", "collectives"):
        assert rows(report)[check]["verdict"] == "not-measured"
        assert "server" in rows(report)[check]["summary"]
    assert rows(report)["p2p.data"]["verdict"] == "pass"
    assert report["beside_server"] is True
    assert report["verdict"] == "pass"


def test_beside_a_server_wrong_data_is_still_wrong() -> None:
    assert codes(Machine(corrupt=((0, 1), (1, 0))).check(beside_server=True)) == ["p2p-corrupt"]


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (Machine(start_error=(999, "CUDA_ERROR_UNKNOWN")), "because CUDA does not start"),
        (Machine(hang="cuInit"), "because CUDA does not return"),
        (Machine(gone=tuple(range(1, 8))), "there is one GPU only"),
    ],
)
def test_after_a_fatal_failure_the_rest_is_not_measured(machine: Machine, why: str) -> None:
    report = machine.check()
    assert names(machine) == ["before", "cuda", "after"]
    for check in ("p2p.access", "p2p.data", "p2p.bandwidth", "p2p.concurrent", "collectives"):
        assert rows(report)[check]["verdict"] == "not-measured"
        assert rows(report)[check]["summary"] == why


def test_a_gpu_that_fails_keeps_the_others_from_being_paired_with_it() -> None:
    machine = Machine()
    healthy = machine.start(1.0, ())["devices"]
    error = {"code": 719, "name": "CUDA_ERROR_LAUNCH_FAILED", "call": "cuCtxSynchronize", "detail": ""}
    healthy[3]["steps"] = [{"step": "context", "ok": False, "seconds": 0.1, "error": error}]
    machine = Machine(cuda={"devices": healthy})
    report = machine.check()
    assert codes(report) == ["cuda-failed"]
    assert report["findings"][0]["gpus"] == [3]
    assert "pairs" not in names(machine)
    assert rows(report)["p2p.data"]["summary"] == "because GPU 3 fails the check of CUDA"


def test_a_hang_between_the_gpus_ends_the_measurement() -> None:
    machine = Machine(pairs_part={"state": "hung", "at": {"pair": [0, 4], "step": "copy write and compare"}})
    report = machine.check()
    assert names(machine) == ["before", "cuda", "pairs", "after"]
    assert rows(report)["collectives"]["summary"] == "because of P2P that hangs"
    assert report["findings"][0]["pairs"] == [[0, 4]]


def test_too_little_memory_is_said_and_is_no_failure() -> None:
    empty: dict[str, Any] = {name: [] for name in ("data", "bandwidth", "latency")}
    report = Machine(pairs_part={**empty, "not_measured": "GPU 3 has 12 MiB free"}).check()
    assert rows(report)["p2p.data"]["summary"] == "GPU 3 has 12 MiB free"
    assert codes(report) == []


def test_no_stage_gets_more_time_than_there_is() -> None:
    machine = Machine()
    machine.check(timeout=100.0)
    assert 0 < arguments_of(machine, "cuda") <= 30.0


def test_what_is_not_asked_for_is_not_measured() -> None:
    machine = Machine()
    report = machine.check(only=("p2p.data",))
    assert names(machine) == ["before", "cuda", "pairs", "after"]
    assert arguments_of(machine, "pairs")["tests"] == ["capability", "data", "links"]
    assert rows(report)["collectives"]["summary"] == "not asked for"


def test_a_suspect_is_measured_again_in_both_directions_with_more_samples() -> None:
    machine = Machine(slow={(2, 3): 0.3})
    machine.check()
    again = [arguments for name, arguments in machine.calls if name == "pairs"][1]
    assert again["pairs"] == [[2, 3], [3, 2]]
    assert again["tests"] == ["bandwidth", "latency"]
    assert again["samples"] > 5


def test_only_the_patterns_that_collapsed_run_again() -> None:
    machine = Machine(collapse=2.7)
    report = machine.check()
    again = [arguments for name, arguments in machine.calls if name == "concurrent"][1]
    assert again["patterns"] == ["all-to-all", "switch-writes"]
    assert report["measurements"]["repetition"]["concurrent"]


def test_the_environment_reaches_nccl() -> None:
    machine = Machine()
    machine.check(expect={"environment": {"NCCL_P2P_LEVEL": "SYS"}})
    assert arguments_of(machine, "collectives") == {"NCCL_P2P_LEVEL": "SYS"}


@pytest.mark.parametrize(
    "expect",
    [
        {"floors": {"fast": {}}},
        {"floors": {"nvlink": {"gb_per_s": "much"}}},
        {"floors": {"nvlink": {"speed": 3}}},
        {"floors": []},
        {"floors": {"nvlink": 3}},
        {"environment": []},
        {"nccl_library": 3},
    ],
)
def test_an_expectation_that_says_nothing_useful_is_refused(expect: dict[str, Any]) -> None:
    with pytest.raises(ExpectationError):
        Machine().check(expect=expect)


def test_links_of_gpus_that_were_not_passed_in_are_left_out() -> None:
    """The container has some GPUs, sysfs shows all of the host's."""
    machine = Machine()
    shown = [dict(device, index=new) for new, device in enumerate(machine.start(1.0, ())["devices"][4:])]
    machine = Machine(cuda={"devices": shown, "count": 4})
    report = machine.check(gpus=4, only=("links",))
    assert [(link["gpu"], link["bus_id"]) for link in report["measurements"]["links"]] == [
        (0, "0000:84:00.0"),
        (1, "0000:85:00.0"),
        (2, "0000:f4:00.0"),
        (3, "0000:f5:00.0"),
    ]


# --- the text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "machine",
    [Machine(), Machine(cross_root=16.0), Machine(collapse=2.7), Machine(gone=(5,)), Machine(hang="cuInit")],
)
def test_the_text_fits_a_terminal(machine: Machine, tmp_path: Path) -> None:
    report = machine.check(baseline=record(tmp_path / "gpu.json"))
    text = render.text(report)
    assert max(len(line) for line in text.splitlines()) <= 80
    for check in CHECKS:
        assert f"\n{check}" in text
    for finding in report["findings"]:
        assert finding["code"] in text
    assert text.splitlines()[-1].startswith(f"verdict: {report['verdict']}")


def test_the_matrix_shows_the_slow_pair() -> None:
    report = Machine(slow={(2, 3): 0.33}).check()
    matrix = render.bandwidth_matrix(report)
    assert matrix[2][3] == pytest.approx(17.7, abs=0.1)
    assert matrix[3][2] == pytest.approx(53.6, abs=0.1)
    assert matrix[0][0] is None
