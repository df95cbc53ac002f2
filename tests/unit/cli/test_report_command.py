# SPDX-License-Identifier: Apache-2.0
"""``rackwell report``: its forms, its plots, the fleet, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_rig import Rig


@pytest.fixture
def measured(rig: Rig) -> Rig:
    """A site with one stored run."""
    rig.json("bench", "glm5-01")
    return rig


@pytest.mark.parametrize(
    ("form", "begins"), [("text", "glm5-01 on pve1"), ("markdown", "**glm5-01 on pve1"), ("json", "{")]
)
def test_what_goes_into_a_ticket_is_printed(measured: Rig, form: str, begins: str) -> None:
    assert measured.at_site("report", "glm5-01", "--format", form) == 0
    assert measured.out.startswith(begins)
    envelope = measured.json("report", "glm5-01", "--format", form)
    assert envelope["result"]["report"] == ""
    assert envelope["result"]["text"].startswith(begins)


def test_a_form_goes_into_a_file(measured: Rig, tmp_path: Path) -> None:
    target = tmp_path / "sub" / "r.md"
    assert measured.at_site("report", "--format", "markdown", "--out", str(target)) == 0
    assert measured.out.strip() == str(target)
    assert target.read_text().startswith("**glm5-01")


def test_plots_are_written(measured: Rig, tmp_path: Path) -> None:
    envelope = measured.json("report", "--plots", str(tmp_path / "plots"))
    names = {Path(file).name for file in envelope["result"]["plots"]}
    assert "throughput.svg" in names
    assert {file.name for file in (tmp_path / "plots").iterdir()} == names


def test_the_fleet_is_one_page_with_every_declared_container(measured: Rig) -> None:
    envelope = measured.json("report", "--fleet")
    page = Path(envelope["result"]["report"])
    assert page.name == "fleet.html"
    assert envelope["result"]["containers"] == page.read_text().count("<tr id=")
    assert "report.html" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["glm5-01", "--format", "pdf"], "report-format"),
        (["--plots", "p", "--plot-format", "gif"], "plot-format"),
        (["glm5-01", "glm5-01", "--out", "x"], "report-out"),
        (["glm5-01", "--fleet"], "report-fleet"),
        (["glm5-01~7"], "run-unknown"),
        (["20300101T0000"], "run-unknown"),
        (["--baseline", "nope"], "run-unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(measured: Rig, arguments: list[str], code: str) -> None:
    envelope = measured.json("report", *arguments)
    assert (measured.codes(envelope), envelope["exit_code"]) == ([code], 2)


def test_several_runs_each_get_their_page(measured: Rig) -> None:
    envelope = measured.json("report", "glm5-01", "glm5-01")
    assert len(envelope["result"]["reports"]) == 2
    assert json.dumps(envelope).count("report.html") == 3
