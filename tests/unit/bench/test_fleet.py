# SPDX-License-Identifier: Apache-2.0
"""The page of all containers: what it says of each, how they compare, and what is found in a site's store."""

from __future__ import annotations

import html
import json
import re
import statistics
from pathlib import Path

import pytest
from browser import open_page

from rackwell.bench.fleet import Member, render, rows
from rackwell.bench.fleet.gather import gather
from rackwell.bench.fleet.rows import Run
from rackwell.bench.fleet.view import age, trend
from rackwell.bench.store import Store

from . import fleets, sweeps


def member(name: str, *runs: tuple[str, float], verdict: str = "pass") -> Member:
    """A container with runs (date, output at 256 streams), the newest first."""
    made = []
    for date, output in runs:
        points = [sweeps.point(256, (2 * output, output, output, 250.0), seconds=10, gpus=1)]
        # the generator's noise is not wanted here
        points[0]["throughput"]["output_tok_per_s"] = output
        made.append(
            Run(sweeps.run(points, run_id=date, date=date, container=name, gpus=1), f"{name}/{date}/report.html")
        )
    return Member(name, "pve1", made, verdict)


def test_a_container_is_held_against_itself_and_the_fleet() -> None:
    found = rows(
        [
            member("a", ("2026-11-29T00:00:00Z", 500.0), ("2026-11-20T00:00:00Z", 1000.0)),
            member("b", ("2026-11-29T00:00:00Z", 1000.0)),
            member("c", ("2026-11-29T00:00:00Z", 1100.0)),
            Member("d", "pve2", []),
        ],
        fleets.NOW,
    )
    assert found[0].to_previous == pytest.approx(0.5)
    assert found[0].trend == [1000.0, 500.0]
    middle = statistics.median([500.0, 1000.0, 1100.0])
    assert [row.to_fleet for row in found[:3]] == pytest.approx([500 / middle, 1000 / middle, 1100 / middle])
    assert found[1].to_previous is None
    assert (found[3].state, found[3].output, found[3].to_fleet, found[3].host) == ("never", None, None, "pve2")


def test_two_containers_are_no_fleet() -> None:
    found = rows([member(name, ("2026-11-29T00:00:00Z", 1000.0)) for name in "ab"], fleets.NOW)
    assert [row.to_fleet for row in found] == [None, None]


def test_an_invalid_newest_run_is_told_and_the_last_valid_one_shown() -> None:
    good = member("a", ("2026-11-20T00:00:00Z", 1000.0)).runs[0]
    bad = Run(sweeps.run([sweeps.died(256)], run_id="bad", container="a"), "a/bad/report.html")
    row = rows([Member("a", "pve1", [bad, good])], fleets.NOW)[0]
    assert (row.state, row.output, row.link) == ("invalid", 1000.0, "a/2026-11-20T00:00:00Z/report.html")
    page = render([Member("a", "pve1", [bad, good])], site="s", now=fleets.NOW)
    assert '<a href="a/bad/report.html">newest run invalid</a>' in page
    assert "1 of 1 points: the server died during the measurement" in page


def test_only_what_counts_counts() -> None:
    bad = Run(sweeps.run([sweeps.died(256)], container="a"), "")
    row = rows([Member("a", "pve1", [bad])], fleets.NOW)[0]
    assert (row.state, row.output, row.joules, row.power) == ("invalid", None, None, None)
    page = render([Member("a", "pve1", [bad])], site="s", now=fleets.NOW)
    cells = re.findall(r'data-label="(?:Output tok/s|J per token|W per GPU)"[^>]*>([^<]*)<', page)
    assert cells == ["\u2013"] * 3


def test_hundreds_of_containers_stay_below_a_megabyte() -> None:
    few = fleets.fleet(12)
    many = [Member(f"{each.name}-{i:02d}", each.host, each.runs, each.verdict) for i in range(34) for each in few]
    page = render(many, site="my-site", now=fleets.NOW)
    assert page.count("<tr id=") == 408
    assert len(page.encode()) < 1_000_000


def test_text_of_others_is_escaped_and_nothing_is_fetched() -> None:
    run = Run(sweeps.hostile(), sweeps.HOSTILE)
    page = render([Member(sweeps.HOSTILE, sweeps.HOSTILE, [run], sweeps.HOSTILE)], site=sweeps.HOSTILE, now=fleets.NOW)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert sweeps.HOSTILE in html.unescape(page)
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"<[a-z]+[^>]*\sstyle=", page)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\u2013"),
        (-5.0, "\u2013"),
        (30.0, "now"),
        (90.0, "1 minute"),
        (7300.0, "2 hours"),
        (86400.0 * 12, "12 days"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_a_trend_needs_two_runs() -> None:
    assert trend([5.0]) == ""
    assert trend([5.0, 10.0]).count(",") >= 2


def test_what_a_site_has_is_gathered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for container in ("glm5-01", "glm5-02"):
        points = [sweeps.point(4, sweeps.STORY[16], seconds=5, gpus=1)]
        store.save(sweeps.run(points, container=container, gpus=1), "<html>")
    (store.root / "glm5-02" / "20261201T000000Z-bad").mkdir()
    (store.root / "glm5-02" / "20261201T000000Z-bad" / "bench.json").write_text("{")
    (tmp_path / ".rackwell" / "gpu").mkdir()
    (tmp_path / ".rackwell" / "gpu" / "glm5-01.json").write_text(json.dumps({"verdict": "degraded", "started": "x"}))
    members = gather(tmp_path, {"glm5-01": "pve1", "glm5-03": "pve2"}, store.root)
    assert [(each.name, each.host, len(each.runs), each.declared, each.verdict) for each in members] == [
        ("glm5-01", "pve1", 1, True, "degraded"),
        ("glm5-02", "", 1, False, ""),
        ("glm5-03", "pve2", 0, True, ""),
    ]
    link = members[0].runs[0].link
    assert link == "glm5-01/20261129T101500Z-4f2a/report.html"
    assert (store.root / link).read_text() == "<html>"
    assert all(
        not gpu.power_w.series
        for run in members[0].runs
        for p in run.result.points
        if p.telemetry
        for gpu in p.telemetry.gpus
    )


#: Sorts by the output, and looks for a host.
ACTING = """
  document.querySelectorAll("thead button")[3].click();
  const box = document.getElementById("find");
  box.value = "PVE1 ";
  box.dispatchEvent(new Event("input"));
"""


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1600, False)])
def test_the_page_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    file = tmp_path / "fleet.html"
    hostile = Member(sweeps.HOSTILE, "pve9", [Run(sweeps.hostile(), "x")], "fail")
    page = render([*fleets.fleet(6), hostile], site="my-site", now=fleets.NOW)
    file.write_text(sweeps.probed(page, ACTING), encoding="utf-8")
    document, console = open_page(file, tmp_path / "profile", size=f"{width},1200", dark=dark)
    assert console == []
    assert 'data-overflow="0"' in document
    # the script made the titles buttons and showed the filters
    assert document.count('<button type="button">') == 10
    assert re.search(r'<form class="filters" role="search">', document)
    # the fastest come first, what is not known last; the box left those of one host
    rates = [
        row[1]
        for row in re.findall(
            r'<tr id="c-glm5-(\d+)".*?data-label="Output tok/s" data-sort="([\d.]*)"', document, re.DOTALL
        )
    ]
    assert rates == sorted(rates, key=lambda rate: -float(rate or 0))
    assert "2 of 7 shown" in document
    assert document.count('class="away"') == 5
