# SPDX-License-Identifier: Apache-2.0
"""The page of a validation, read as text."""

from __future__ import annotations

import html
import json
import re

import pytest

from rackwell.page.scales import Scale
from rackwell.topology.baseline import Baseline
from rackwell.topology.gate import Gate
from rackwell.topology.page import drawing, render, view
from rackwell.topology.report import GpuReport

from . import samples
from .conftest import report


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_every_check_and_finding_is_on_it(name: str, baseline: Baseline) -> None:
    found = report(name)
    page = html.unescape(render(found, baseline=baseline))
    for check in found.checks:
        assert check.summary.replace("`", "") in page.replace("<code>", "").replace("</code>", "")
    for finding in found.all_findings():
        assert finding.code in page
        assert finding.what[1:] in page  # its first letter is a capital there
    assert "src=" not in page
    assert 'href="http' not in page


def matrix(page: str, key: str) -> list[list[str]]:
    body = re.findall(rf'<figure class="matrix" id="matrix-{key}">(.*?)</figure>', page, re.DOTALL)[0]
    rows = re.findall(r"<tr><th scope=\"row\">\d+</th>(.*?)</tr>", body, re.DOTALL)
    return [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


def test_matrices_hold_the_numbers_and_mark_the_pairs() -> None:
    page = render(report("slow-pair"))
    cells = matrix(page, "copy-write-1")
    assert len(cells) == 8
    assert cells[2][5] == "12.8!"
    assert cells[2][2] == ""
    assert cells[0][1].startswith("53")
    assert re.findall(r'id="matrix-([^"]+)"', page) == [
        *(f"{engine}-{op}-{ways}" for ways in (1, 2) for engine in ("copy", "kernel") for op in ("write", "read")),
        "latency-remote-read",
        "latency-copy",
    ]


def test_what_a_machine_says_does_not_become_html() -> None:
    raw = samples.slow_pair()
    raw["findings"][0]["why"] = "<script>alert(1)</script>"
    raw["host_facts"]["cmdline"] = "</script><b>"
    raw["gpus"][0]["name"] = '"><img src=x>'
    page = render(GpuReport.model_validate(raw), title="<i>")
    for bad in ("<script>alert", "<img", "</script><b>", "<i>"):
        assert bad not in page.replace('<i aria-hidden="true">', "")
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0]
    assert json.loads(data)["findings"][0]["why"] == "<script>alert(1)</script>"


def test_a_page_of_nothing_opens_too() -> None:
    page = render(GpuReport.model_validate({"verdict": "not-measured"}))
    assert "Not measured" in page
    assert "matrix" not in page.partition("<body>")[2].partition("<footer>")[0]


def test_baseline_and_gate_are_told(baseline: Baseline) -> None:
    gate = Gate.model_validate(samples.gate(samples.below_baseline()))
    page = html.unescape(render(report("below-baseline"), baseline=baseline, gate=gate))
    assert float(matrix(page, "changes")[4][0]) == pytest.approx(-8, abs=1.5)
    assert "GPU 4 sends" in page
    assert "rackwell baseline record" in render(report("nvlink-pair"), title="glm5-01")
    refused = html.unescape(render(report("foreign-baseline")))
    assert "GPU-ffff" in refused


def test_each_pattern_once_with_its_lowest_sum() -> None:
    raw = samples.collapse()
    rows = raw["measurements"]["p2p"]["concurrent"]
    rows.append({**rows[3], "gb_per_s": 98.0, "flows": [[0, 6], [1, 4]], "verified": False})
    found = view.context(GpuReport.model_validate(raw), None, None, "x")["concurrent"]
    patterns = {row[0]: row for row in found["patterns"]}
    assert patterns["switch-writes"][2:6] == ["2 x 4 transfers", "2.70", "98", "wrong in 1"]
    assert patterns["switch-writes"][6].startswith("0\u21924, ")
    assert (len(found["patterns"]), len(found["all"])) == (5, 6)


def test_labels_of_sizes_that_are_close_do_not_touch() -> None:
    scale = Scale(1.0, 1024.0, 0.0, 500.0, log=True)
    assert drawing.apart([1.0, 512.0, 1024.0], scale) == [1.0, 1024.0]
    assert drawing.apart([1.0, 64.0, 1024.0], scale) == [1.0, 64.0, 1024.0]
