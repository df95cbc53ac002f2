# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: nothing is refused or fetched, nothing is said on the console, nothing sticks out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import open_page

from rackwell.topology.baseline import Baseline
from rackwell.topology.page import render

from .conftest import report

PROBE = "<script>document.title = 'width ' + document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"


# every shape of the page: with and without matrices, findings, baseline, allreduce
SHAPES = ("healthy", "link-generation", "uvm-missing", "allreduce-hang", "foreign-baseline", "nvlink-pair")


@pytest.mark.parametrize("name", SHAPES)
def test_no_console_message_and_all_of_it_is_there(tmp_path: Path, name: str, baseline: Baseline) -> None:
    page = tmp_path / "gpu.html"
    page.write_text(render(report(name), baseline=baseline), encoding="utf-8")
    document, console = open_page(page, tmp_path / "profile")
    assert console == []
    assert "</footer>" in document
    assert ('id="allreduce-plot"' in document) == (name not in {"allreduce-hang", "uvm-missing"})


@pytest.mark.parametrize("width", [500, 800, 1600])
def test_nothing_sticks_out(tmp_path: Path, width: int) -> None:
    """The page itself never scrolls sideways; only tables do. A headless window is 500 wide at least."""
    text = render(report("link-generation"))
    # the page's own policy would refuse the measuring script
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE)
    page = tmp_path / "gpu.html"
    page.write_text(text, encoding="utf-8")
    document, _console = open_page(page, tmp_path / "profile", size=f"{width},2000")
    found = re.search(r"<title>width (\d+) of (\d+)</title>", document)
    assert found is not None
    assert int(found[1]) <= int(found[2])
