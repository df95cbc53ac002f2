# SPDX-License-Identifier: Apache-2.0
"""The command line: options, output, exit status."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated import Machine, record

from rackwell.probe import __main__ as program
from rackwell.probe import baseline
from rackwell.probe import check as checking
from rackwell.probe.codes import CODES


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The stages that the commands use."""
    made = Machine()
    monkeypatch.setattr(checking, "Stages", lambda: made.stages)
    return made


def test_check_prints_json(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["check", "--json", "--gpus", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "pass"


def test_check_prints_text(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.cross_root = 16.0
    assert program.main(["check"]) == 1
    assert "p2p-slow-cross-root" in capsys.readouterr().out


def test_degraded_is_no_failure(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.surroundings["hmm"] = True
    assert program.main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "degraded"


def test_options_reach_the_check(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expect = tmp_path / "expect.json"
    expect.write_text(json.dumps({"floors": {"cross-socket": {"gb_per_s": 45}}}))
    facts = {"schema": "rackwell.gpu_host/1", "host": "pve1", "iommu": {"mode": "translated"}}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(facts)))
    path = record(tmp_path / "gpu.json")
    options = ["--expect", str(expect), "--baseline", str(path), "--host-facts", "-", "--size", "64", "--mode", "full"]
    assert program.main(["check", "--json", *options]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["host_facts"]["host"] == "pve1"
    assert report["baseline"]["state"] == "used"
    assert [finding["code"] for finding in report["findings"]] == ["iommu-translated"]
    assert report["findings"][0]["consequences"][0]["code"] == "p2p-slow-cross-socket"
    assert next(arguments for name, arguments in machine.calls if name == "pairs")["size"] == 64 << 20


@pytest.mark.parametrize(
    "options",
    [
        ["--mode", "slow"],
        ["--gpus", "0"],
        ["--size", "0"],
        ["--timeout", "-1"],
        ["--only", "everything"],
    ],
)
def test_usage(options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main(["check", *options])
    assert caught.value.code == 2


@pytest.mark.parametrize("content", [None, "no json", "[]", '{"floors": {"fast": {}}}'])
def test_an_expectation_that_cannot_be_used(
    machine: Machine, tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expect.json"
    if content is not None:
        path.write_text(content)
    assert program.main(["check", "--expect", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_host_facts_of_another_schema(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text('{"schema": "other/1"}')
    assert program.main(["check", "--host-facts", str(path)]) == 2


def test_a_baseline_is_recorded(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.json"
    assert program.main(["baseline", "--runs", "3", "--out", str(path), "--json", "--gpus", "8"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads(path.read_text())
    assert (content["runs"], content["schema"]) == (3, "rackwell.gpu_baseline/1")
    assert content["machine"]["link_max"]["0000:06:00.0"] == [5, 16]
    assert len(content["machine"]["gpus"]) == 8
    assert baseline.load(path).state == "used"
    assert [name for name, _ in machine.calls].count("collectives") == 3


def test_no_baseline_of_a_machine_that_fails(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.slow[2, 3] = 0.3
    path = tmp_path / "gpu.json"
    assert program.main(["baseline", "--runs", "3", "--out", str(path)]) == 1
    told = capsys.readouterr()
    assert "p2p-slow-direction" in told.out
    assert "nothing was recorded" in told.err
    assert not path.exists()


def test_a_baseline_needs_a_place_and_two_runs(machine: Machine, tmp_path: Path) -> None:
    assert program.main(["baseline", "--out", str(tmp_path / "no" / "gpu.json")]) == 2
    with pytest.raises(SystemExit):
        program.main(["baseline", "--runs", "1", "--out", str(tmp_path / "gpu.json")])


def test_the_table_of_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["codes", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [entry["code"] for entry in told["codes"]] == list(CODES)
    assert {entry["code"] for entry in told["driver_errors"]} >= {3, 100, 304, 802, 803, 804, 999}
    assert program.main(["codes"]) == 0
    assert "uvm-node-missing (nodes, fail)" in capsys.readouterr().out


def test_record_needs_a_place(tmp_path: Path) -> None:
    assert program.main(["record", "--out", str(tmp_path / "no" / "x.json"), "--", "true"]) == 2


@pytest.mark.parametrize("pattern", ["(", "["])
def test_record_refuses_what_is_no_pattern(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        program.main(["record", "--out", str(tmp_path / "x"), "--window-start-pattern", pattern, "--", "true"])
