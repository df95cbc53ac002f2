# SPDX-License-Identifier: Apache-2.0
"""The story's errors of measurement, its numbers fed in as runs: each is impossible, or said."""

from __future__ import annotations

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_telemetry

from rackwell.bench.attribution import attribute
from rackwell.bench.compare import Comparison, compare
from rackwell.bench.compare_gate import judge
from rackwell.bench.compare_text import lines
from rackwell.bench.report.figure import share
from rackwell.bench.result import BenchResult, Telemetry

from . import story_runs as story
from .conftest import ORIGIN, record

LOAD = (story.INPUT, story.OUTPUT, 1024)


def told(found: Comparison, a: BenchResult, b: BenchResult) -> str:
    return "\n".join(text for text, _ in lines(found, [a], [b]))


def test_the_autotune_build_is_4_25_times_as_fast() -> None:
    a, b = story.baseline(), story.autotune()
    found = compare(a, b, "total_tok_per_s")
    row = found.row(LOAD, "total_tok_per_s")
    assert row is not None
    assert (row.baseline, row.candidate) == (pytest.approx(880), pytest.approx(3740))
    assert row.ratio == pytest.approx(4.25)
    assert row.verdict == "faster"
    assert "4.25x" in told(found, a, b)


def test_the_fusion_build_is_15_8_times_slower() -> None:
    a, b = story.autotune(), story.fusion()
    row = compare(a, b, "total_tok_per_s").row(LOAD, "total_tok_per_s")
    assert row is not None
    assert row.ratio is not None
    assert 1 / row.ratio == pytest.approx(15.8, abs=0.05)
    assert row.verdict == "slower"
    assert judge([a], [b], metric="total_tok_per_s").verdict == "fail"


def test_four_changes_are_not_credited_to_one() -> None:
    found = attribute(story.baseline(), story.autotune())
    assert found.verdict == "refused"
    assert found.cause is None
    assert found.text == (
        "4 things changed: patch sglang/flashinfer-autotune-cutlass absent -> applied; --disable-cuda-graph off -> on; "
        "--disable-radix-cache off -> on; --max-running-requests 64 -> 1024"
    )
    assert "rackwell bench matrix" in found.suggestion


def test_one_change_is_named() -> None:
    assert attribute(story.autotune(), story.fusion()).text == (
        "differs only in: patch sglang/allreduce-fusion-sm120 absent -> applied"
    )


def test_power_read_after_the_load_is_not_power_under_load() -> None:
    """nvidia-smi said 88 W and 0 % when the load had ended; under it the GPUs drew about 250 W."""
    recorded = record(lambda t, _gpu: 250.0 if 2.0 <= t < 62.0 else 88.0, seconds=90.0, start=1.0)
    seen = Telemetry.model_validate(bench_telemetry.reduce(recorded, ORIGIN + 2.0, 59.8))
    assert seen.mean_power_w == pytest.approx(8 * 250.0, rel=0.005)
    # the reading that misled, by itself: nothing of it lies inside the window, so there is no figure
    late = {**recorded, "samples": [s for s in recorded["samples"] if s["t"] >= ORIGIN + 65.0]}
    after = Telemetry.model_validate(bench_telemetry.reduce(late, ORIGIN + 2.0, 59.8) or {})
    assert after.mean_power_w is None
    a, b = story.autotune(), story.autotune()
    blind = [point.model_copy(update={"telemetry": after}) for point in b.points]
    row = compare(a, b.model_copy(update={"points": blind}), "power").row(LOAD, "power_w_per_gpu")
    assert row is not None
    assert row.verdict == "not-comparable"
    assert row.why == "the candidate has no power measured inside the window"


def test_power_is_shown_against_the_limit_of_the_device() -> None:
    """The account's 14.5 % is 87 W of 600 W; the 88 W that it also gives are 14.7 %. Both are "about 88 W".

    Its error was another: 600 W had been taken for 300 W, which doubles the share.
    """
    assert share(87.0, story.LIMIT) == "14.5 %"
    assert share(88.0, story.LIMIT) == "14.7 %"
    seen = story.autotune().points[0].telemetry
    assert seen is not None
    assert share(seen.mean_power_w, seen.power_limit_w) == "41.7 %"
    late = story.fusion().points[0].telemetry
    assert late is not None
    assert share(late.mean_power_w, late.power_limit_w) == "20.8 %"


def test_the_crash_at_512_is_listed_and_never_compared() -> None:
    a, b = story.baseline(), story.autotune()
    crashed = story.point(512, 1.0, status="crashed", valid=False, throughput=None)
    a = a.model_copy(update={"points": [*a.points, crashed]})
    found = compare(a, b)
    assert found.row((story.INPUT, story.OUTPUT, 512), "total_tok_per_s") is None
    assert [row.verdict for row in found.rows if row.load[2] == 512] == ["not-comparable"]
    assert [(point.side, point.load[2]) for point in found.rejected] == [("baseline", 512)]
    assert "A does not count at 512 streams" in told(found, a, b)
    assert judge([b], [a.model_copy(update={"points": [crashed]})]).verdict == "fail"


def test_nothing_is_laid_to_a_part_that_is_not_known() -> None:
    a = story.imported(story.baseline())
    found = compare(a, story.autotune(), "total_tok_per_s")
    assert found.attribution.verdict == "refused"
    assert "not known: release and patches (baseline), profile (baseline)" in found.attribution.text
    assert any("vllm bench" in note for note in found.notes)


def test_nothing_measurable_from_a_variant_is_said_so() -> None:
    """Row 12: NCCL tuning and others "brought nothing measurable". One run a side cannot say that they are the same."""
    a = story.autotune()
    more = [
        point.model_copy(
            update={
                "throughput": point.throughput.model_copy(
                    update={"total_tok_per_s": point.throughput.total_tok_per_s * 1.02}
                )
            }
        )
        for point in a.points
        if point.throughput
    ]
    flags = {**story.TUNED_FLAGS, "num-continuous-decode-steps": 4}
    b = story.run("variant", 18, more, flags, [story.AUTOTUNE]).model_copy(update={"release": a.release})
    found = compare(a, b, "total_tok_per_s")
    assert {row.verdict for row in found.rows} == {"inconclusive"}
    assert found.attribution.text == "differs only in: --num-continuous-decode-steps (default) -> 4"
    assert "one run a side" in found.notes[0]
    many = compare([a] * 1, [b] * 1, "total_tok_per_s", noise=0.002)
    assert {row.verdict for row in many.rows} == {"same"}
