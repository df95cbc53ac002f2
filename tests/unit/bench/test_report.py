# SPDX-License-Identifier: Apache-2.0
"""What the page says, and what it does not."""

from __future__ import annotations

import html
import json
import re

import pytest

from rackwell import page as pages
from rackwell.bench.report import FILTERS, PACKAGE, context, data, render, timeline, view
from rackwell.bench.result import BenchResult
from rackwell.page import scales, svg

from . import sweeps


@pytest.fixture(scope="module")
def made() -> BenchResult:
    return sweeps.story(seconds=30)


@pytest.fixture(scope="module")
def page(made: BenchResult) -> str:
    """With all its parts; the comparison is made up, since the real one resamples."""
    told = view.view(made, sweeps.before(seconds=10), sweeps.comparison(), sweeps.budgets(made))
    return pages.render(PACKAGE, told.as_dict(), FILTERS, data.embedded(made))


@pytest.fixture(scope="module")
def rich() -> str:
    return render(sweeps.rich())


def words(page: str) -> str:
    """What a reader sees, on one line."""
    bare = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", bare)))


def plot(page: str, ident: str) -> str:
    start = page.index(f'<svg id="{ident}"')
    return page[start : page.index("</svg>", start)]


def test_the_headline_says_what_was_reached_and_on_what(page: str, made: BenchResult) -> None:
    best = max(p.throughput.output_tok_per_s for p in made.points if p.throughput)
    assert f"<strong>{scales.number(best)}</strong> output tokens per second" in page
    told = words(page)
    assert "glm-5 on 8 x NVIDIA RTX PRO 6000 Blackwell Server Edition, 1,024 prompt and 512 output tokens" in told
    assert "Valid: every point counts" in told
    assert "of the 600 W limit" in told


def test_every_point_is_in_the_table_and_in_the_plots(page: str) -> None:
    summary = page[page.index('class="summary"') : page.index("</table>")]
    for streams in sweeps.STORY:
        assert f'<th scope="row">{streams:,}</th>' in summary
    for ident in ("throughput", "power", "ttft", "itl", "e2e"):
        assert plot(page, f"{ident}-plot").count("<circle") % len(sweeps.STORY) == 0
    assert plot(page, "energy-plot").count('class="bar"') == len(sweeps.STORY)
    for streams in sweeps.STORY:
        assert f'id="time-1024-512-{streams}-plot"' in page


def test_the_table_has_as_many_cells_as_titles(page: str) -> None:
    for text, columns in ((page, 14), (render(sweeps.imported()), 13)):
        summary = text[text.index('class="summary"') : text.index("</table>", text.index('class="summary"'))]
        assert ("to earlier" in summary) is (columns == 14)
        for row in re.findall(r"<tr class=\"\">(.*?)</tr>", summary, re.DOTALL):
            assert len(re.findall(r"<t[hd]\b", row)) == columns


def test_power_is_shown_against_the_limit_that_the_gpus_report() -> None:
    limited = sweeps.point(256, sweeps.STORY[256], seconds=20)
    for gpu in limited["telemetry"]["gpus"]:
        gpu["power_limit_w"] = 450.0
    page = render(sweeps.run([limited]))
    assert "limit 450" in plot(page, "power-plot")
    assert "limit 450" in plot(page, "time-1024-512-256-plot")
    for gpu in limited["telemetry"]["gpus"]:
        gpu["power_limit_w"] = None
    page = render(sweeps.run([limited]))
    assert "No GPU told its limit" in page
    assert "limit" not in re.sub(r"<title.*?</desc>", "", plot(page, "power-plot"))


def test_the_earlier_run_is_held_against_at_the_same_load_only() -> None:
    now = sweeps.run([sweeps.point(256, sweeps.STORY[256], seconds=20)])
    other = sweeps.point(256, sweeps.BEFORE[256], seconds=20, lengths=(64, 512))
    before = {"run_id": "r0", "date": "2026-11-28T09:00:00Z"}
    assert "to earlier" not in render(now, sweeps.run([other], **before))
    same = sweeps.run([sweeps.point(256, sweeps.BEFORE[256], seconds=20)], **before)
    assert "to earlier" in render(now, same)


def test_the_comparison_and_its_cause_are_told(page: str) -> None:
    told = words(page)
    assert "4.25x the baseline's output at 1,024 streams; of 2 loads: 1 faster, 1 inconclusive." in told
    assert "2 things changed, so no cause is named:" in told
    assert plot(page, "versus-plot").count("<circle") == 2
    assert "1.01x inconclusive" in plot(page, "versus-plot")


def test_where_the_time_goes_is_told_with_what_it_rests_on(page: str) -> None:
    told = words(page)
    assert "156 allreduces take 50 % of a step of 91 ms" in told
    assert "12,288 bytes an allreduce" in told
    assert plot(page, "steps-plot").count("<title>weights:") == len(sweeps.STORY)


def test_a_point_that_does_not_count_is_in_no_figure(rich: str) -> None:
    told = words(rich)
    assert "2 of 23 points do not count" in told
    assert "The server died during the measurement" in told
    assert "Diagnosis: the sparse attention backend lacks its flattened page table nsa-prefill-metadata" in told
    assert "page_table_1_flattened" in told
    assert "12 of 1,024 requests were not answered" in told
    assert "1,024" not in plot(rich, "throughput-1024-512-plot")
    # yet what was recorded of it can be looked at
    assert 'id="time-1024-512-1024-plot"' in rich


def test_a_run_without_a_point_that_counts_says_so() -> None:
    page = render(sweeps.run([sweeps.died(512)]))
    assert "No point of this run counts" in page
    assert "<figure" not in page.replace('<figure id="p2p', "").replace('<figure id="allreduce', "")


def test_repeats_are_a_median_with_its_spread(rich: str) -> None:
    result = sweeps.rich()
    rates = sorted(
        p.throughput.output_tok_per_s
        for p in result.points
        if p.load == (1024, 512, 256) and p.valid and p.throughput is not None
    )
    assert len(rates) == 3
    told = words(rich)
    assert f"{scales.number(rates[1])} {scales.number(rates[0])} to {scales.number(rates[2])}" in told
    assert 'class="span"' in plot(rich, "throughput-1024-512-plot")
    assert "3 repeats" in told


def test_lengths_can_be_chosen_and_are_all_there_without_a_script(rich: str) -> None:
    assert rich.count('<div data-of="lengths"') == 2
    assert 'id="lengths-plot"' in rich
    for lengths in ("1024-512", "8192-256"):
        assert f'id="throughput-{lengths}-plot"' in rich
        assert f'data-choice="{lengths}"' in rich
    # hidden until the script runs
    assert re.search(r'class="chooser"[^>]*data-for="lengths" hidden', rich)


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    page = render(sweeps.imported())
    summary = page[page.index('class="summary"') : page.index("</table>", page.index('class="summary"'))]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", summary)
    assert cells == ["\u2013", "400", "\u2013", "1,120", *["\u2013"] * 8]
    assert "nothing of it was checked by rackwell" in page
    for ident in ("power", "energy", "ttft", "time-1024-512-64", "p2p"):
        assert f'id="{ident}-plot"' not in page


def test_no_telemetry_and_no_timeline() -> None:
    blind = sweeps.point(4, sweeps.STORY[16], seconds=20)
    blind.update(telemetry=None, timeline=None, steady=None, server_load=None, client_load=None)
    page = render(sweeps.run([blind]))
    assert "W</small>" not in page
    assert "J</small>" not in page
    assert "on GPUs that were not read" in page
    assert 'id="ttft-plot"' in page


@pytest.mark.parametrize("gpus", [1, 2, 8, 16])
def test_any_number_of_gpus(gpus: int) -> None:
    result = sweeps.run([sweeps.point(64, sweeps.STORY[64], seconds=20, gpus=gpus)], gpus=gpus)
    page = render(result)
    assert len(re.findall(r'<rect class="bar s-power"', plot(page, "gpu-power-1024-512-64-plot"))) == gpus
    assert page.count('data-series="GPU ') == (gpus if gpus > 1 else 0)
    assert ('id="p2p-plot"' in page) is (gpus > 1)
    cells = plot(page, "p2p-plot").count('<rect class="cell h') if gpus > 1 else 0
    assert cells - 6 * (gpus > 4) == gpus * (gpus - 1)


def test_nothing_is_fetched_and_all_is_inside(page: str) -> None:
    text = html.unescape(page)
    assert "default-src 'none'" in text
    assert "unsafe" not in text
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    assert "@import" not in text
    assert "url(" not in text
    assert not re.search(r"<[a-z]+[^>]*\sstyle=", text)


def test_the_data_can_be_read_back(page: str, made: BenchResult) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    again = BenchResult.model_validate(json.loads(found.group(1)))
    assert [p.throughput for p in again.points] == [p.throughput for p in made.points]
    assert [p.joules_per_output_token for p in again.points] == [p.joules_per_output_token for p in made.points]


def test_text_of_others_is_escaped() -> None:
    page = render(sweeps.hostile())
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert sweeps.HOSTILE in html.unescape(page)


def test_secrets_that_a_foreign_result_carries_are_masked() -> None:
    result = sweeps.run([sweeps.point(4, sweeps.STORY[16], seconds=20)], flags={"api-key": "s3cret", "hf-token": "t0k"})
    result = result.model_copy(update={"environment": {"server_environment": {"MY_API_KEY": "s3cret"}}})
    shown = words(render(result))
    assert "s3cret" not in shown
    assert "t0k" not in shown


def test_every_plot_has_a_name_a_description_and_a_table(page: str) -> None:
    plots = re.findall(r'<svg id="([^"]+)"', page)
    assert len(plots) == len(set(plots))
    for ident in plots:
        assert f'aria-labelledby="{ident}-title {ident}-desc"' in page
        assert re.search(rf'<title id="{ident}-title">[^<]+</title><desc id="{ident}-desc">[^<]+</desc>', page)
    assert page.count("<summary>Numbers</summary>") == page.count("<figure")


def test_identifiers_are_unique(rich: str) -> None:
    idents = re.findall(r'\sid="([^"]+)"', rich)
    assert sorted(idents) == sorted(set(idents))


def test_six_points_of_eight_gpus_stay_below_a_megabyte() -> None:
    page = render(sweeps.story(seconds=300))
    assert len(page.encode()) < 1_000_000


def test_many_points_share_what_there_is_of_places() -> None:
    assert timeline.resolution(1) == timeline.resolution(5) > timeline.resolution(20) >= 40
    many = [sweeps.point(streams, sweeps.STORY[64], seconds=20, gpus=1) for streams in range(1, 41)]
    page = render(sweeps.run(many, gpus=1))
    assert len(page.encode()) < 1_500_000
    assert "16 more loads" in words(page)


def test_the_timeline_tells_the_steady_part_and_what_was_not_recorded() -> None:
    one = sweeps.point(16, sweeps.STORY[16], seconds=40)
    one["timeline"]["kv_usage_pct"] = [None] * 40
    page = render(sweeps.run([one]))
    drawing = plot(page, "time-1024-512-16-plot")
    assert drawing.count('class="steady"') == 4
    assert "KV cache in use" not in drawing
    assert "Not recorded: KV cache." in page


def test_the_view_names_its_drawings(made: BenchResult) -> None:
    names = set(context(made).drawings)
    assert {"throughput", "power", "energy", "ttft", "itl", "e2e", "p2p", "allreduce"} <= names
    assert any(name.startswith("time-") for name in names)
    assert any(name.startswith("gpu-power") for name in names)


def test_an_unknown_value_interrupts_a_line() -> None:
    assert svg.runs([0, 1, 2, 3], [1.0, None, 2.0, 3.0]) == [[(0, 1.0)], [(2, 2.0), (3, 3.0)]]


def test_a_path_of_relative_steps_does_not_drift() -> None:
    points = [(i * 0.333, i * 0.777) for i in range(400)]
    x, y = 0.0, 0.0
    start, _sep, steps = svg.path(points).removeprefix("M").partition("l")
    x, y = map(float, start.split())
    numbers = list(map(float, steps.split()))
    for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
        x, y = x + dx, y + dy
    assert (x, y) == pytest.approx(points[-1], abs=0.06)


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
