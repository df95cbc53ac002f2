# SPDX-License-Identifier: Apache-2.0
"""Verdicts on made-up runs of known difference: direction, least effect, what does not count, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rackwell.bench.compare import compare
from rackwell.bench.compare_metrics import METRICS, SHORT, select
from rackwell.bench.compare_text import lines
from rackwell.bench.result import (
    BenchPoint,
    BenchResult,
    Distribution,
    Latency,
    Origin,
    Reason,
    Requests,
    SteadyState,
    Timeline,
    Tokens,
)
from rackwell.cli.main import main
from rackwell.errors import RackwellError

from . import story_runs as story

LOAD = (story.INPUT, story.OUTPUT, 64)


def latency(ms: float) -> Distribution:
    return Distribution(mean=ms, min=ms, max=ms, p50=ms, p90=ms, p95=ms, p99=ms)


def full(streams: int, rate: float, watts: float = 250.0, **fields: Any) -> BenchPoint:
    """A point with every metric; latencies fall as the rate rises."""
    ms = 1e3 * streams / rate
    found = story.point(
        streams,
        3 * rate,
        rate,
        watts=watts,
        latency=Latency(ttft_ms=latency(10 * ms), itl_ms=latency(ms), tpot_ms=latency(ms), e2e_ms=latency(512 * ms)),
        requests=Requests(requested=streams * 4, completed=streams * 4, failed=0),
        tokens=Tokens(input=1, output_requested=6000, output_received=6000, output_chunks=6000),
        steady=SteadyState(start_s=5, end_s=55, output_tok_per_s=rate * 1.05, total_tok_per_s=rate * 3.1),
        latency_samples={"itl_ms": [ms] * 50},
        **fields,
    )
    assert found.telemetry
    return found.model_copy(update={"telemetry": found.telemetry.model_copy(update={"energy_j": 60 * 8 * watts})})


def one(name: str, rate: float, *streams: int, **fields: Any) -> BenchResult:
    points = [full(count, rate * math.sqrt(count), **fields) for count in streams or (64,)]
    return story.run(name, int(name[-1]) if name[-1].isdigit() else 0, points, story.TUNED_FLAGS, [story.AUTOTUNE])


def verdict(a: BenchResult, b: BenchResult, metric: str, **options: Any) -> str:
    row = compare(a, b, metric, **options).row(LOAD, metric)
    assert row is not None
    return row.verdict


@pytest.mark.parametrize("metric", ["output_tok_per_s", "steady_output_tok_per_s", "itl_p50_ms", "ttft_p99_ms"])
def test_which_way_is_faster(metric: str) -> None:
    slow, fast = one("slow", 100.0), one("fast", 200.0)
    assert verdict(slow, fast, metric) == "faster"
    assert verdict(fast, slow, metric) == "slower"


def test_power_is_higher_or_lower_and_no_speed() -> None:
    a, b = one("a", 100.0, watts=250.0), one("b", 100.0, watts=400.0)
    assert verdict(a, b, "power_w_per_gpu") == "higher"
    assert verdict(b, a, "joules_per_token") == "lower"


def test_one_run_a_side_near_the_threshold_is_inconclusive() -> None:
    a = one("a", 100.0)
    assert verdict(a, one("b", 106.0), "output_tok_per_s") == "inconclusive"
    assert verdict(a, one("b", 115.0), "output_tok_per_s") == "faster"
    assert verdict(a, a, "output_tok_per_s") == "inconclusive"
    # who knows that runs differ by less says so
    assert verdict(a, one("b", 106.0), "output_tok_per_s", noise=0.005) == "faster"
    assert verdict(a, one("b", 101.0), "output_tok_per_s", noise=0.005) == "same"
    # sure, and not worth it
    assert verdict(a, one("b", 101.5), "output_tok_per_s", noise=0.001) == "same"
    assert verdict(a, one("b", 101.5), "output_tok_per_s", noise=0.001, min_effect=0.01) == "faster"


def test_an_inconclusive_verdict_says_what_would_tell() -> None:
    row = compare(one("a", 100.0), one("b", 102.0), "output_tok_per_s").rows[0]
    assert row.why.endswith("it may be no difference; about 9 runs a side would tell")


def test_nobody_is_sent_to_measure_a_thousand_times() -> None:
    def uneven(name: str) -> BenchResult:
        points = [full(64, 800.0 * (1.0, 0.6, 1.7)[i], repeat=i + 1) for i in range(3)]
        return story.run(name, 1, points, story.TUNED_FLAGS, [])

    found = compare(uneven("a"), uneven("b"), "output")
    assert found.rows[0].why.endswith("its points differ too much: measure longer")
    assert any("inconclusive (too noisy)" in text for text, _ in lines(found, [uneven("a")], [uneven("b")]))


def test_several_runs_a_side_narrow_the_interval() -> None:
    few = compare([one("a1", 100.0)], [one("b1", 106.0)], "output").rows[0]
    wobble = (0.995, 1.0, 1.005, 0.998, 1.002, 1.001)
    a, b = ([one(f"{n}{i}", r * w) for i, w in enumerate(wobble)] for n, r in (("a", 100.0), ("b", 106.0)))
    many = compare(a, b, "output").rows[0]
    assert few.verdict == "inconclusive"
    assert many.verdict == "faster"
    assert (many.high or 0) - (many.low or 0) < ((few.high or 0) - (few.low or 0)) / 2
    assert many.measurements == (6, 6)


def test_repeats_of_one_run_do_not_pass_for_runs() -> None:
    """Five repeats that agree to 0.1 % say nothing of how the next start would be."""

    def repeated(name: str, rate: float) -> BenchResult:
        points = [full(64, rate * (1 + i / 1e3), repeat=i + 1) for i in range(5)]
        return story.run(name, 1, points, story.TUNED_FLAGS, [])

    row = compare(repeated("a", 800.0), repeated("b", 840.0), "output").rows[0]
    assert row.measurements == (5, 5)
    assert row.verdict == "inconclusive"


def test_a_restless_point_has_a_wider_interval() -> None:
    t = [i + 0.5 for i in range(60)]
    calm = Timeline(t=t, output_tok_per_s=[800.0] * 60)
    wild = Timeline(t=t, output_tok_per_s=[400.0 if i // 10 % 2 else 1200.0 for i in range(60)])
    a = one("a", 100.0)
    rows = [
        compare(a, story.run("b", 1, [full(64, 800.0, timeline=line)], {}, []), "output").rows[0]
        for line in (calm, wild)
    ]
    widths = [(row.high or 0) - (row.low or 0) for row in rows]
    assert widths[1] > 1.5 * widths[0]


def test_invalid_points_never_enter_and_are_listed() -> None:
    a, b = one("a", 100.0, 64, 256), one("b", 200.0, 64, 256)
    bad = b.points[1].model_copy(
        update={"valid": False, "reasons": [Reason(code="bench-client-bound", what="the client set the pace")]}
    )
    found = compare(a, b.model_copy(update={"points": [b.points[0], bad]}))
    assert {row.load[2] for row in found.rows if row.ratio is not None} == {64}
    gone = [row for row in found.rows if row.load[2] == 256]
    assert [(row.verdict, row.why) for row in gone] == [
        ("not-comparable", "no point of the candidate counts at this load")
    ]
    assert [(point.side, point.run_id, point.reasons) for point in found.rejected] == [
        ("candidate", "b", ["the client set the pace [bench-client-bound]"])
    ]
    # a good repeat of the same load still counts, and the bad one does not lower it
    both = b.model_copy(update={"points": [*b.points, bad.model_copy(update={"repeat": 2, "throughput": None})]})
    assert compare(a, both, "output").row(LOAD, "output_tok_per_s") == compare(a, b, "output").row(
        LOAD, "output_tok_per_s"
    )


def test_loads_of_one_side_alone_are_listed() -> None:
    found = compare(one("a", 100.0, 16, 64), one("b", 100.0, 64, 256))
    assert [load[2] for load in found.only_baseline] == [16]
    assert [load[2] for load in found.only_candidate] == [256]
    assert {row.load[2] for row in found.rows} == {64}


def test_all_loads_together() -> None:
    found = compare(one("a", 100.0, 16, 64, 256), one("b", 125.0, 16, 64, 256)).overall
    assert found is not None
    assert (found.metric, found.loads, found.verdict) == ("output_tok_per_s", 3, "faster")
    assert found.ratio == pytest.approx(1.25)


def test_chunks_that_hold_more_tokens_are_not_compared_by_their_gaps() -> None:
    a, b = one("a", 100.0), one("b", 100.0)
    tokens = Tokens(input=1, output_requested=6000, output_received=6000, output_chunks=2000)
    b = b.model_copy(update={"points": [p.model_copy(update={"tokens": tokens}) for p in b.points]})
    row = compare(a, b, "itl_p50_ms").rows[0]
    assert row.verdict == "not-comparable"
    assert row.why == "a chunk holds 1.00 tokens in one and 3.00 in the other: compare tpot"
    assert compare(a, b, "tpot_p50_ms").rows[0].verdict == "inconclusive"


def test_what_neither_side_has_is_left_out_unless_asked_for() -> None:
    a, b = story.baseline(), story.baseline()
    assert {row.metric for row in compare(a, b).rows} == {"output_tok_per_s", "total_tok_per_s"}
    asked = compare(a, b, "ttft_p50_ms")
    assert {row.why for row in asked.rows} == {"neither side has it"}


def test_metrics_by_the_beginning_of_their_names() -> None:
    assert [m.name for m in select("ttft_p9")] == ["ttft_p90_ms", "ttft_p95_ms", "ttft_p99_ms"]
    assert select(None) == list(METRICS.values())
    assert set(SHORT) <= set(METRICS)
    for wrong in ("", "speed"):
        with pytest.raises(RackwellError, match="no metric"):
            select(wrong)


def test_runs_of_a_side_must_be_of_the_same_thing() -> None:
    other = one("a2", 100.0).model_copy(update={"container": "glm5-02", "complete": False})
    notes = compare([one("a1", 100.0), other], one("b", 100.0)).notes
    assert "one side is a single run: its spread is taken to be that of the other" in notes
    assert any("the runs of the baseline are not of the same thing" in note for note in notes)
    assert "a sweep of the baseline is not complete" in notes
    foreign = one("b", 100.0).model_copy(update={"origin": Origin(tool="aiperf")})
    assert any("measured by aiperf" in note for note in compare(one("a", 100.0), foreign).notes)


def test_every_metric_of_every_load_gets_a_verdict() -> None:
    streams = (1, 16, 64, 256, 512, 1024)
    found = compare(one("a", 100.0, *streams), one("b", 120.0, *streams))
    assert len(found.rows) == 6 * len(METRICS)
    assert "not-comparable" not in {row.verdict for row in found.rows}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Stored runs by name."""
    found = {}
    for name, result in (
        ("a", one("a", 100.0, 16, 64)),
        ("b", one("b", 200.0, 16, 64)),
        ("c", one("c", 100.0, 1024)),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(result.model_dump_json(by_alias=True))
        found[name] = str(path)
    return found


def test_the_command(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", files["a"], files["b"]]) == 0
    told = capsys.readouterr().out
    assert "2.00x faster" in told
    assert "over 2 loads 2.00x" in told
    assert "note: one run a side" in told
    assert main(["compare", files["a"], files["b"], files["a"], "--json", "--metric", "ttft"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "rackwell.compare/1"
    first, second = envelope["result"]["comparisons"]
    assert {row["metric"] for row in first["rows"]} == {m.name for m in select("ttft")}
    assert first["rows"][0]["load"] == {"input_tokens": 1024, "output_tokens": 512, "concurrency": 16}
    assert {row["verdict"] for row in second["rows"]} == {"inconclusive"}


def test_the_command_takes_several_runs_as_one_side(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", f"{files['a']},{files['a']}", files["b"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["comparisons"][0]["baseline"] == ["a", "a"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["a"], 2, "two runs are needed"),
        (["a", "b", "--metric", "speed"], 2, "no metric 'speed'"),
        (["a", "b", "--min-effect", "3"], 2, "--min-effect must be a share between 0 and 1"),
        (["a", "b", "--noise", "0"], 2, "--noise must be a share"),
        (["a", "nothing"], 2, "nothing"),
        (["a", "c"], 1, "they have no load in common"),
    ],
)
def test_the_command_refuses(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert main(["compare", *(files.get(word, word) for word in arguments)]) == code
    assert said in capsys.readouterr().err


def test_lengths_are_shown_where_they_differ() -> None:
    a = one("a", 100.0)
    longer = [p.model_copy(update={"input_tokens": 4096}) for p in a.points]
    both = a.model_copy(update={"points": [*a.points, *longer]})
    told = "\n".join(text for text, _ in lines(compare(both, both, "output"), [both], [both]))
    assert "in/out" in told
    assert "4,096/512" in told
