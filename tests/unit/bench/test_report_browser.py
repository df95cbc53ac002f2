# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: its script runs, nothing is refused or fetched, nothing is said on the console."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import open_page

from rackwell.bench.report import render
from rackwell.bench.result import BenchResult

from .conftest import crashed, point, run


@pytest.fixture
def full() -> BenchResult:
    return run([point(4, (200.0, 100.0, 120.0)), point(16, (700.0, 350.0, 400.0)), crashed(512)])


def test_no_console_message_and_every_plot_is_there(tmp_path: Path, full: BenchResult, baseline: BenchResult) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(full, baseline), encoding="utf-8")
    document, console = open_page(page, tmp_path / "profile")
    assert console == []
    for ident in ("throughput", "energy", "ttft", "itl", "power-4", "use-4", "power-16", "use-16"):
        assert f'<svg id="{ident}-plot"' in document
    # the script has run: it shows the button, and a cursor in each plot
    assert '<button type="button" id="save">' in document
    assert document.count('class="cursor"') == 7


def test_a_page_without_points_and_without_telemetry_opens_too(tmp_path: Path) -> None:
    blind = point(4, (200.0, 100.0, 120.0))
    blind["telemetry"] = None
    for name, result in {"blind": run([blind]), "crashed": run([crashed(4)])}.items():
        page = tmp_path / f"{name}.html"
        page.write_text(render(result), encoding="utf-8")
        document, console = open_page(page, tmp_path / name)
        assert console == []
        assert "</footer>" in document


def test_what_a_server_says_does_not_become_script(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(run([crashed(512)])), encoding="utf-8")
    document, console = open_page(page, tmp_path / "profile")
    assert console == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in document


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("<script>throw new Error('broken')</script>", "Content Security Policy"),
        ('<img src="https://example.invalid/x.png">', "Content Security Policy"),
        ('<p style="color: red">', "Content Security Policy"),
    ],
)
def test_the_policy_refuses_what_is_not_ours(tmp_path: Path, full: BenchResult, fault: str, told: str) -> None:
    """Also shows that a fault in the page would be seen by the tests above."""
    page = tmp_path / "report.html"
    page.write_text(render(full).replace("<footer>", f"{fault}<footer>"), encoding="utf-8")
    _document, console = open_page(page, tmp_path / "profile")
    assert any(told in line for line in console)
