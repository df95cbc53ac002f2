# SPDX-License-Identifier: Apache-2.0
"""What the page says, and what it does not."""

from __future__ import annotations

import html
import json
import re

import pytest

from rackwell.bench.report import render
from rackwell.bench.result import BenchResult
from rackwell.page import scales, svg

from .conftest import STORY, crashed, point, run


def test_the_story_comes_out_as_it_was(story: BenchResult, baseline: BenchResult) -> None:
    page = render(story, baseline)
    assert "<strong>1,240</strong> output tokens per second" in page
    assert "at 512 streams on glm5-01" in re.sub(r"\s+", " ", page)
    assert "3,740" in page
    assert "Every point counts" in page
    assert "8 x NVIDIA RTX PRO 6000 Blackwell Server Edition" in page
    assert "595.58.03" in page
    assert "glm5-r1" in page
    assert "limit 600 W" in page


def test_the_earlier_run_is_held_against_at_the_same_load_only() -> None:
    now = run([point(256, STORY[256])])
    other = run([{**point(256, (880.0, 420.0, 700.0)), "input_tokens": 64}], "r0", "2026-11-28T09:00:00Z")
    assert "to earlier" not in render(now, other)
    same = run([point(256, (458.8, 164.7, 300.0))], "r0", "2026-11-28T09:00:00Z")
    assert "4.25x" in render(now, same)


def test_a_point_that_does_not_count_is_in_no_figure() -> None:
    page = render(run([point(256, STORY[256]), crashed(512)]))
    assert "1 of 2 points does not count" in page
    assert "page_table_1_flattened" not in page
    assert "The server died during the measurement." in page
    throughput = page[page.index('id="throughput-plot"') : page.index("</svg>", page.index('id="throughput-plot"'))]
    assert "512" not in throughput


def test_nothing_is_fetched_and_all_is_inside(story: BenchResult) -> None:
    page = html.unescape(render(story))
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert "@import" not in page
    assert "url(" not in page
    assert not re.search(r"<[a-z]+[^>]*\sstyle=", page)


def test_the_data_can_be_read_back(story: BenchResult) -> None:
    page = render(story)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    again = BenchResult.model_validate(json.loads(found.group(1)))
    assert [p.throughput for p in again.points] == [p.throughput for p in story.points]


def test_text_of_others_is_escaped() -> None:
    page = render(run([crashed(512)]))
    assert "<script>alert" not in page
    assert page.count("</script>") == 2


def test_every_plot_has_a_name_a_description_and_a_table(story: BenchResult) -> None:
    page = render(story)
    plots = re.findall(r'<svg id="([^"]+)"', page)
    assert len(plots) == 4 + 2 * len(STORY)
    for ident in plots:
        assert re.search(rf'aria-labelledby="{ident}-title {ident}-desc"', page)
        assert re.search(rf'<title id="{ident}-title">[^<]+</title><desc id="{ident}-desc">[^<]+</desc>', page)
    assert page.count("<summary>Numbers</summary>") == page.count("<figure")


def test_six_points_of_eight_gpus_stay_below_a_megabyte() -> None:
    rates = {1: 11.0, 16: 140.0, 64: 400.0, 256: 700.0, 512: 1240.0, 1024: 1240.0}
    page = render(
        run([point(streams, (2.5 * rate, rate, 1.5 * rate), seconds=120.0) for streams, rate in rates.items()])
    )
    assert len(page.encode()) < 1_000_000


def test_an_unknown_value_interrupts_a_line() -> None:
    assert svg.runs([0, 1, 2, 3], [1.0, None, 2.0, 3.0]) == [[(0, 1.0)], [(2, 2.0), (3, 3.0)]]


def test_labels_do_not_touch_and_keep_their_order() -> None:
    places = svg.spread([100.0, 101.0, 102.0, 200.0], 15.0, 0.0, 210.0)
    assert places == [100.0, 115.0, 130.0, 200.0]
    crowded = svg.spread([205.0, 206.0, 207.0], 15.0, 0.0, 210.0)
    assert crowded == [180.0, 195.0, 210.0]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [(3740.0, (0, 1000, 2000, 3000, 4000)), (97.0, (0, 20, 40, 60, 80, 100)), (0.0, (0, 0.2, 0.4, 0.6, 0.8, 1.0))],
)
def test_ticks_are_round_and_cover_the_values(highest: float, ticks: tuple[float, ...]) -> None:
    assert scales.linear(highest, 100, 0).ticks == pytest.approx(ticks)


def test_latencies_that_span_much_get_a_logarithmic_axis() -> None:
    assert scales.fitting([50.0, 9000.0], 100, 0, log=True).log
    assert not scales.fitting([50.0, 9000.0], 100, 0, log=False).log
    assert not scales.fitting([50.0, 200.0], 100, 0, log=True).log


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3740.0, "3,740"),
        (1.7034, "1.70"),
        (0.0, "0"),
        (None, "\u2013"),
        (97.04, "97.0"),
        (264.4, "264"),
        (0.01234, "0.0123"),
    ],
)
def test_numbers_are_written_for_people(value: float | None, text: str) -> None:
    assert scales.number(value) == text
