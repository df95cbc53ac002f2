# SPDX-License-Identifier: Apache-2.0
"""A report as text, Markdown, JSON and plots; which run is meant."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from rackwell.bench import schemas
from rackwell.bench.report import asked, export, view
from rackwell.bench.store import Store
from rackwell.bench.table import markdown, table, text
from rackwell.errors import RackwellError

from . import sweeps

DOCS = Path(__file__).parents[3] / "docs" / "schemas"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawings() -> dict[str, str]:
    result = sweeps.run([sweeps.point(s, sweeps.STORY[s], seconds=20, gpus=2) for s in (16, 64, 256)], gpus=2)
    return view.view(result, None, sweeps.comparison(), sweeps.budgets(result)).drawings


def test_a_plot_stands_alone(drawings: dict[str, str]) -> None:
    assert {"throughput", "power", "versus", "steps", "p2p", "gpu-power-1024-512-256"} <= set(drawings)
    for name, drawing in drawings.items():
        alone = export.standalone(drawing)
        root = ET.fromstring(alone.encode())
        assert root.tag == f"{SVG}svg", name
        assert float(root.attrib["width"]) > 200
        # programs that draw it know no variables, no scripts and no page
        assert "var(" not in alone, name
        assert "data-" not in alone
        assert "tabindex" not in alone
        assert "http" not in alone.replace("http://www.w3.org/2000/svg", "")


def test_every_line_of_a_plot_has_a_colour(drawings: dict[str, str]) -> None:
    for name, drawing in drawings.items():
        alone = export.standalone(drawing)
        style = next(iter(ET.fromstring(alone.encode()).iter(f"{SVG}style"))).text or ""
        for group in re.findall(r'class="series ([^"]+)"', alone):
            if group != "s-ink":
                assert f".series.{group.split()[-1]} path {{ fill: none; stroke: #" in style or "path" not in alone, (
                    name
                )
        for bar in set(re.findall(r'class="bar ([\w-]+)"', alone)):
            assert f".bar.{bar} {{ fill: #" in style, name


def test_png_is_drawn_and_not_empty(drawings: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    made = export.write({"throughput": drawings["throughput"]}, tmp_path / "plots", "png")
    data = made[0].read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (3 * 536, 3 * 316)
    # white alone is much smaller
    assert len(data) > 20_000


def test_without_the_library_png_says_what_to_install(
    drawings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(RackwellError) as caught:
        export.write(drawings, tmp_path / "plots", "png")
    assert caught.value.problems[0].code == "no-png"
    assert "rackwell[plots]" in caught.value.problems[0].fix
    assert not (tmp_path / "plots").exists()
    with pytest.raises(RackwellError, match="no such format"):
        export.write(drawings, tmp_path / "plots", "gif")


def test_text_for_a_ticket() -> None:
    result = sweeps.run([sweeps.point(s, sweeps.STORY[s], seconds=10, gpus=1) for s in (1, 256)], gpus=1)
    told = text(result, sweeps.comparison(), sweeps.budgets(result))
    lines = told.splitlines()
    assert "output tok/s at 256 streams (valid)" in lines[0]
    assert "driver 595.58.03" in told
    assert "sglang/flashinfer-autotune-cutlass" in told
    head = next(line for line in lines if line.startswith("streams"))
    rows = lines[lines.index(head) + 1 : lines.index(head) + 3]
    assert {len(line) for line in [head, *rows]} == {len(head)}
    assert "4.25x (4.04 to 4.46), faster" in told
    assert "2 things changed" in told
    assert "156 allreduces take" in told


def test_markdown_is_a_table_and_text_of_others_stays_text() -> None:
    told = markdown(sweeps.hostile())
    table_ = [line for line in told.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table_}) == 1
    assert "<script" not in told.replace("\\<script", "")
    assert "<img" not in told.replace("\\<img", "")


def test_a_repeated_load_shows_its_median_and_spread() -> None:
    result = sweeps.rich()
    row = next(
        line for line in text(result).splitlines() if line.lstrip().startswith("1,024/512") and "  256  " in line
    )
    rates = sorted(
        p.throughput.output_tok_per_s for p in result.points if p.load == (1024, 512, 256) and p.throughput is not None
    )
    assert f"{rates[1]:.0f}" in row
    assert f"{rates[0]:.0f} to {rates[2]:.0f}" in row


def test_why_a_point_does_not_count_is_told_below_each_form() -> None:
    result = sweeps.rich()
    for told in (text(result), markdown(result), str(table(result).caption)):
        assert "512 streams (8,192/256 tokens, repeat 1) do not count: the server died" in told.replace("\\", "")
        assert "lacks its flattened page table" in told


def test_nothing_known_is_no_column() -> None:
    told = text(sweeps.imported())
    assert "imported from vllm bench serve, not checked" in told
    assert "W per GPU" not in told
    assert " 0" not in next(line for line in told.splitlines() if line.lstrip().startswith("64 "))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    for run, date, output in (("r1", "2026-11-27", 300.0), ("r2", "2026-11-28", 400.0), ("r3", "2026-11-29", 500.0)):
        point = sweeps.point(256, (2 * output, output, output, 250.0), seconds=5, gpus=1)
        store.save(sweeps.run([point], run_id=run, date=f"{date}T10:00:00Z", gpus=1))
    return tmp_path


def test_a_run_is_held_against_the_one_before_or_a_named_one(site: Path) -> None:
    (newest,) = asked.choose(site, [])
    assert (newest.result.run_id, newest.previous and newest.previous.run_id) == ("r3", "r2")
    (older,) = asked.choose(site, ["glm5-01~1"])
    assert (older.result.run_id, older.previous and older.previous.run_id) == ("r2", "r1")
    (named,) = asked.choose(site, ["r3"], "r1")
    assert named.previous is not None
    assert named.previous.run_id == "r1"
    (itself,) = asked.choose(site, ["r1"], "r1")
    assert itself.previous is None
    assert [each.result.run_id for each in asked.choose(site, ["r1", "r2"])] == ["r1", "r2"]
    with pytest.raises(RackwellError, match="there is no run"):
        asked.choose(site, ["r9"])


def test_nothing_stored_is_nothing_chosen(tmp_path: Path) -> None:
    assert asked.choose(tmp_path, []) == []


def test_the_figures_as_json(site: Path) -> None:
    (newest,) = asked.choose(site, [])
    told = json.loads(asked.form(newest, "json"))
    assert told["run_id"] == "r3"
    assert told["loads"][0]["concurrency"] == 256
    assert told["loads"][0]["gpu_power_limit_w"] == 600.0
    assert told["comparison"]["baseline"] == ["r2"]
    with pytest.raises(RackwellError, match="no such format"):
        asked.form(newest, "pdf")


@pytest.mark.parametrize("name", sorted(schemas.MODELS))
def test_the_published_schemas_are_those_of_the_code(name: str) -> None:
    published = (DOCS / f"rackwell.{name}.json").read_text(encoding="utf-8")
    assert published == schemas.PUBLISHED.text(name), "renew it: python -m rackwell.bench.schemas docs/schemas"


def test_results_are_as_the_schema_says() -> None:
    validator = jsonschema.Draft202012Validator(schemas.PUBLISHED.schema("bench"))
    for result in (sweeps.imported(), sweeps.run([sweeps.died(4), sweeps.point(8, sweeps.STORY[16], seconds=5)])):
        validator.validate(result.as_json())
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**sweeps.imported().as_json(), "points": None})
