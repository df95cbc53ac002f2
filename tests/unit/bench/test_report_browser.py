# SPDX-License-Identifier: Apache-2.0
"""The pages in a real browser: scripts run, nothing is refused or fetched or said on the console, nothing overflows."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from browser import open_page

from rackwell import page as pages
from rackwell.bench.report import FILTERS, PACKAGE, data, render, view

from . import sweeps

#: Uses the page with mouse and keyboard, and keeps what the cursors tell.
ACTING = """
  document.querySelector('.chooser [data-choice="8192-256"]').click();
  document.querySelector('.chooser [data-choice="1024-512-64"]').click();
  const told = [];
  for (const [ident, steps] of [["throughput-8192-256-plot", 2], ["time-1024-512-64-plot", 9]]) {
    const plot = document.getElementById(ident);
    for (let i = 0; i < steps; i++) plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    told.push(plot.parentElement.querySelector(".readout").textContent);
  }
  document.body.dataset.told = told.join(" / ");
  document.querySelector('#time-1024-512-64 .legend button').click();
"""


@pytest.fixture(scope="module")
def full() -> str:
    """With every part that there is."""
    result = sweeps.rich()
    told = view.view(result, sweeps.before(seconds=10), sweeps.comparison(), sweeps.budgets(result))
    return pages.render(PACKAGE, told.as_dict(), FILTERS, data.embedded(result))


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1600, True)])
def test_no_console_message_and_nothing_wider_than_the_window(
    tmp_path: Path, full: str, width: int, dark: bool
) -> None:
    file = tmp_path / "report.html"
    file.write_text(sweeps.probed(full, ACTING), encoding="utf-8")
    document, console = open_page(file, tmp_path / "profile", size=f"{width},1200", dark=dark)
    assert console == []
    assert 'data-wide=""' in document
    assert 'data-overflow="0"' in document
    assert f'data-dark="{str(dark).lower()}"' in document
    assert ('data-paper="rgb(18, 20, 23)"' in document) is dark
    for ident in ("throughput-1024-512", "energy-1024-512", "ttft-8192-256", "versus", "steps", "p2p", "lengths"):
        assert f'<svg id="{ident}-plot"' in document
    # the script has run: it shows the button, a cursor in each plot, and one of several
    assert '<button type="button" id="save">' in document
    assert document.count('class="cursor"') == full.count('tabindex="0" data-x=')
    assert document.count('class="choice away"') == 1
    assert document.count('class="choice away other"') + document.count('class="choice other away"') == 7
    # somebody chose other lengths and another point, moved a cursor by the keyboard, and picked a GPU
    assert '<div data-of="lengths" data-choice="1024-512" class="choice away">' in document
    assert re.search(r'data-of="point" data-choice="1024-512-64" class="choice"', document)
    notes = re.search(r'data-told="([^"]*)"', document)
    assert notes
    told = html.unescape(notes[1])
    assert re.match(r"64 streams.*output [0-9]+", told)
    assert re.search(r"[0-9.]+ s.*in flight [0-9]+running [0-9]+.*power of each GPU, mean [0-9.]+", told)
    assert re.search(r'<figure id="time-1024-512-64" class="wide picking">', document)


@pytest.mark.parametrize("name", ["hostile", "imported"])
def test_pages_of_hostile_text_and_of_almost_nothing_open_too(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.html"
    result = sweeps.hostile() if name == "hostile" else sweeps.imported()
    file.write_text(sweeps.probed(render(result)), encoding="utf-8")
    document, console = open_page(file, tmp_path / name, size="400,1200")
    assert console == []
    assert "</footer>" in document
    assert "<script>alert" not in document
    assert 'data-overflow="0"' in document


def test_the_policy_refuses_what_is_not_ours(tmp_path: Path) -> None:
    """Also shows that a fault in the page would be seen by the tests above."""
    faults = {
        "inline script": "<script>throw new Error('broken')</script>",
        "image 'https://example.invalid": '<img src="https://example.invalid/x.png">',
        "inline style": '<p style="color: red">',
    }
    page = tmp_path / "report.html"
    page.write_text(render(sweeps.imported()).replace("<footer>", f"{''.join(faults.values())}<footer>"), "utf-8")
    _document, console = open_page(page, tmp_path / "profile")
    refused = [line for line in console if "Content Security Policy" in line]
    assert len(refused) == len(faults), console
    for told in faults:
        assert any(told in line for line in refused), told
