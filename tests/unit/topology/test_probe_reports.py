# SPDX-License-Identifier: Apache-2.0
"""What the probe really writes, of a simulated machine: read, shown, and judged against a baseline as there."""

from __future__ import annotations

import html
import io
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from rackwell.topology import compare, figures, heat, model, schemas
from rackwell.topology.baseline import Baseline
from rackwell.topology.gate import Gate
from rackwell.topology.page import render
from rackwell.topology.report import GpuReport

sys.path.insert(0, str(Path(__file__).parents[1] / "probe"))

from simulated import Machine, record

MACHINES: dict[str, dict[str, Any]] = {
    "healthy": {},
    "a pair at a third": {"slow": {(2, 5): 0.33, (5, 2): 0.33}},
    "one direction corrupt": {"corrupt": ((3, 4),)},
    "cross-root pairs slow": {"cross_root": 16.0},
    "collapse": {"collapse": 2.7},
    "a link at Gen2": {"generation": {6: 2}},
    "a link at x8": {"width": {1: 8}},
    "a GPU gone": {"gone": (7,)},
    "NVLink": {"nvlinks": 18},
    "CUDA does not start": {"start_error": (999, "CUDA_ERROR_UNKNOWN")},
    "redirecting ACS": {"acs": 0x1D},
}


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("mode", ["quick", "full"])
def test_it_holds_against_the_schema_and_is_shown_whole(name: str, mode: str) -> None:
    raw = Machine(sample_noise=0.005, **MACHINES[name]).check(mode=mode)
    jsonschema.validate(raw, schemas.PUBLISHED.schema("gpu"))
    report = model.parse(GpuReport, raw, name)
    assert [finding.code for finding in report.findings] == [finding["code"] for finding in raw["findings"]]
    page = html.unescape(render(report, title="glm5-01"))
    for check in report.checks:
        assert check.summary.replace("`", "") in page.replace("<code>", "").replace("</code>", "")
    for finding in report.all_findings():
        assert finding.code in page
    stream = io.StringIO()
    for named in figures.matrices(report):
        Console(file=stream, width=80).print(heat.heat(named, report))
    assert all(len(line) <= 80 for line in stream.getvalue().splitlines())
    marked = {pair for pair, finding in report.flagged().items() if finding.verdict == "fail"}
    assert stream.getvalue().count("!") >= len(marked) if figures.matrices(report) else True


def test_the_tree_is_the_machine() -> None:
    report = model.parse(GpuReport, Machine().check(mode="quick"), "x")
    assert [[root.switches[0].gpus for root in socket.roots] for socket in report.topology.sockets] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]
    assert "/dev/nvidia2" in heat.tree(report)


def test_both_sides_hold_a_baseline_alike(tmp_path: Path) -> None:
    path = record(tmp_path / "gpu.json", machine=lambda seed: Machine(seed=seed, sample_noise=0.01))
    baseline = model.load(Baseline, path)
    jsonschema.validate(baseline.model_dump(by_alias=True), schemas.PUBLISHED.schema("gpu_baseline"))
    for faults, verdict in (
        ({}, "pass"),
        ({"slow": dict.fromkeys([(4, d) for d in range(8) if d != 4], 0.9)}, "degraded"),
    ):
        raw = Machine(seed=99, sample_noise=0.01, **faults).check(mode="full", baseline=path)
        report = model.parse(GpuReport, raw, "x")
        assert report.baseline is not None
        assert report.baseline.state == "used"
        found = compare.compare(baseline, report)
        assert (found.code, found.verdict, raw["verdict"]) == ("", verdict, verdict)
    other = model.parse(GpuReport, Machine(number=2).check(mode="full", baseline=path), "x")
    assert compare.compare(baseline, other).code == "baseline-foreign"
    assert [finding.code for finding in other.findings] == ["baseline-foreign"]


def test_a_gate_with_such_a_report() -> None:
    raw = Machine(corrupt=((0, 1), (1, 0))).check(mode="quick")
    gate = {"schema": "rackwell.gate/1", "verdict": raw["verdict"], "held": True, "code": "p2p-corrupt", "report": raw}
    jsonschema.validate(gate, schemas.PUBLISHED.schema("gate"))
    assert model.parse(Gate, gate, "x").cell == "held: p2p-corrupt"
