# SPDX-License-Identifier: Apache-2.0
"""Intervals hold what they say they hold, and a gate's verdicts are right as often as its page says."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import gate_verdicts
from gate_verdicts import Design, run, simulate, verdicts

from rackwell.bench.compare_gate import judge
from rackwell.bench.result import BenchResult
from rackwell.bench.statistics import (
    Block,
    Interval,
    interval,
    quantile,
    spread_of_mean,
    spread_of_quantile,
    spread_of_rate,
)


def normal(rng: random.Random, count: int, noise: float, middle: float = 0.0) -> list[Block]:
    return [Block(rng.gauss(middle, noise)) for _ in range(count)]


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = random.Random(3)
    a, b = normal(rng, 3, 0.03), normal(rng, 3, 0.03)
    assert interval([a], [b], noise=0.03) == interval([a], [b], noise=0.03)
    assert interval([a], [b], noise=0.03) != interval([a], [b], noise=0.03, seed=4)


def test_a_ratio_and_its_inverse_are_told_alike() -> None:
    a, b = [Block(math.log(880.0))], [Block(math.log(3740.0))]
    up, down = interval([a], [b], noise=0.03), interval([b], [a], noise=0.03)
    assert up.ratio == pytest.approx(4.25)
    assert down.ratio == pytest.approx(1 / up.ratio)
    assert down.low == pytest.approx(1 / up.high, rel=0.02)


def test_one_run_a_side_rests_on_the_declared_noise() -> None:
    """Student's t with as many degrees of freedom as the declared noise counts deviations: 2.31 for 8."""
    found = interval([[Block(0.0)]], [[Block(0.0)]], noise=0.03, replicates=20000)
    assert math.log(found.high) == pytest.approx(2.306 * 0.03 * math.sqrt(2), rel=0.05)
    assert interval([[Block(0.0)]], [[Block(0.0)]], noise=0.0).low == 1.0


@pytest.mark.parametrize(("blocks", "noise"), [(1, 0.03), (3, 0.03), (8, 0.03), (8, 0.08)])
def test_intervals_hold_the_truth_as_often_as_they_say(blocks: int, noise: float) -> None:
    rng = random.Random(11)
    held = 0
    for _ in range(200):
        found = interval(
            [normal(rng, blocks, noise)],
            [normal(rng, blocks, noise, math.log(0.9))],
            noise=0.03,
            confidence=0.9,
            replicates=300,
        )
        held += found.low <= 0.9 <= found.high
    assert held / 200 >= 0.85  # 0.90 and its own chance


def test_more_noise_than_declared_is_believed() -> None:
    quiet = [Block(v) for v in (0.0, 0.001, -0.001, 0.0)]
    wild = [Block(v) for v in (0.0, 0.12, -0.12, 0.05)]
    assert interval([wild], [wild], noise=0.01).sd > 0.08
    # and less is not: four values may lie together by chance
    assert interval([quiet], [quiet], noise=0.03).sd > 0.02


def test_a_drift_between_the_baselines_cancels() -> None:
    before, after = [Block(0.00), Block(-0.01)], [Block(-0.05), Block(-0.06)]
    middle = [Block(-0.025), Block(-0.035)]
    assert interval([before, after], [middle], noise=0.01).ratio == pytest.approx(1.0)
    # spread is that within the groups
    assert interval([before, after], [middle], noise=0.01).sd < 0.012


def test_a_side_needs_a_measurement() -> None:
    with pytest.raises(ValueError, match="without a measurement"):
        interval([[]], [[Block(0.0)]], noise=0.03)


def test_quantiles_are_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert quantile([7.0], 0.99) == 7.0


def test_requests_say_how_sure_their_percentiles_are() -> None:
    """Of n exponential times: (1 / n) (1 - p) / p over the squared slope, against drawing them anew."""
    rng = random.Random(5)
    times = [rng.expovariate(1.0) for _ in range(400)]
    for share in (0.5, 0.9, 0.99):
        anew = [math.log(quantile(sorted(rng.choices(times, k=400)), share)) for _ in range(200)]
        drawn = sum((v - sum(anew) / 200) ** 2 for v in anew) / 200
        assert math.sqrt(spread_of_quantile(times, share)) == pytest.approx(math.sqrt(drawn), rel=0.5)
    # thinned samples of four times as many requests
    ratio = spread_of_quantile(times, 0.5) / spread_of_quantile(times, 0.5, 1600)
    assert math.sqrt(ratio) == pytest.approx(2, rel=0.3)
    assert math.sqrt(spread_of_mean(times)) == pytest.approx(1 / 20, rel=0.1)
    assert spread_of_quantile([1.0, 2.0], 0.5) == spread_of_mean([1.0, 2.0]) == 0.0


def test_seconds_say_how_sure_a_rate_is() -> None:
    assert spread_of_rate([100.0] * 60) == 0.0
    assert spread_of_rate([100.0] * 5) == 0.0  # too few to tell
    halves = spread_of_rate([90.0] * 30 + [None] * 3 + [110.0] * 30)
    assert math.sqrt(halves) == pytest.approx(0.1 / math.sqrt(9), rel=0.05)


def test_a_number_of_blocks_that_would_tell() -> None:
    assert Interval(1.0, 0.9, 1.1, 0.03, (1, 1)).needed(0.03) == pytest.approx(8, abs=1)


@pytest.mark.parametrize(("effect", "verdict"), [(0.0, "pass"), (-0.10, "fail")])
def test_the_gate_is_right(effect: float, verdict: str) -> None:
    """The issue asks for 98 in 100; the table in docs/compare.md is of 1,000 each, this of fewer."""
    found = verdicts(gate_verdicts.DESIGNS[1], effect, 100, seed=7, replicates=300)
    assert found[verdict] >= 96, found


def test_little_data_is_inconclusive_and_no_failure() -> None:
    found = verdicts(Design("", 1, 1), 0.0, 40, seed=7, replicates=300)
    assert found["fail"] <= 3, found
    assert found["inconclusive"] >= 20, found


def test_before_and_after_a_drifting_machine_is_not_taken_for_the_build() -> None:
    drifting = Design("", 3, 4, drift=-0.10)
    around = Design("", 3, 8, drift=-0.10, around=True)
    assert verdicts(drifting, 0.0, 20, seed=2, replicates=200)["fail"] >= 8  # what A, B alone would say
    assert verdicts(around, 0.0, 20, seed=2, replicates=200)["fail"] <= 1


def rates(value: float, loads: tuple[int, ...] = (16, 64, 256), repeats: int = 4) -> dict[tuple[int, int], float]:
    return {(load, repeat): value * load**0.5 for load in loads for repeat in range(1, repeats + 1)}


def spoiled(result: BenchResult, streams: int, status: str = "failed") -> BenchResult:
    points = [
        p.model_copy(update={"valid": False, "status": status, "throughput": None}) if p.concurrency == streams else p
        for p in result.points
    ]
    return result.model_copy(update={"points": points})


def test_a_loss_at_one_load_alone_fails() -> None:
    slow = rates(100.0) | {(256, repeat): 100.0 * 16 * 0.87 for repeat in range(1, 5)}
    found = judge([run("a", "2026-11-30T00:00:00Z", rates(100.0))], [run("b", "2026-11-30T01:00:00Z", slow)])
    assert found.verdict == "fail"
    assert "256 streams" in found.why
    assert [load.failed for load in found.loads] == [False, False, True]


def test_what_the_candidate_did_not_measure_is_no_pass() -> None:
    a, b = (run(name, f"2026-11-30T0{n}:00:00Z", rates(100.0)) for n, name in enumerate("ab"))
    assert judge([a], [b]).verdict == "pass"
    lost = judge([a], [spoiled(b, 256)])
    assert lost.verdict == "inconclusive"
    assert lost.missing == [(1024, 512, 256)]
    assert judge([a], [spoiled(b, 256, "crashed")]).verdict == "fail"
    nothing = b.model_copy(update={"points": [p.model_copy(update={"valid": False}) for p in b.points]})
    assert judge([a], [nothing]).verdict == "inconclusive"
    assert judge([a], []).verdict == "inconclusive"


def test_a_slow_client_is_not_a_slow_build() -> None:
    """An invalid point never counts, however slow it is."""
    a = run("a", "2026-11-30T00:00:00Z", rates(100.0))
    b = run("b", "2026-11-30T01:00:00Z", rates(100.0) | {(256, 1): 1.0})
    points = [p.model_copy(update={"valid": not (p.concurrency == 256 and p.repeat == 1)}) for p in b.points]
    assert judge([a], [b.model_copy(update={"points": points})]).verdict == "pass"


def test_a_latency_is_judged_the_other_way_round() -> None:
    def with_itl(result: BenchResult, ms: float) -> BenchResult:
        spread = dict.fromkeys(("mean", "min", "max", "p50", "p90", "p95", "p99"), ms)
        points = [
            p.model_validate({**p.model_dump(by_alias=True), "latency": {"itl_ms": spread}}) for p in result.points
        ]
        return result.model_copy(update={"points": points})

    a, b = (run(name, f"2026-11-30T0{n}:00:00Z", rates(100.0)) for n, name in enumerate("ab"))
    found = judge([with_itl(a, 20.0)], [with_itl(b, 24.0)], metric="itl_p50_ms")
    assert found.verdict == "fail"
    assert found.ratio == pytest.approx(20 / 24)
    assert judge([with_itl(a, 24.0)], [with_itl(b, 20.0)], metric="itl_p50_ms").verdict == "pass"


def test_simulated_runs_differ_by_what_they_are_told() -> None:
    baseline, candidate = simulate(Design("", 3, 4, noise=0.0), -0.1, random.Random(1))
    assert judge(baseline, candidate).ratio == pytest.approx(0.9)


def test_a_judgement_is_json() -> None:
    baseline, candidate = simulate(Design("", 3, 8, around=True), 0.0, random.Random(1))
    told = judge(baseline, candidate).as_dict()
    assert told["verdict"] == "pass"
    assert told["loads"][0]["load"] == {"input_tokens": 1024, "output_tokens": 512, "concurrency": 16}
    assert told["drift"] == pytest.approx(1.0, abs=0.05)
