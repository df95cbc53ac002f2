# SPDX-License-Identifier: Apache-2.0
"""A measurement of known figures: what is read of it, and each sign that spoils it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.bench.result import BenchPoint

from .made import BEGIN, Run, Server, codes


def test_a_good_run_is_read_as_it_was_made(tmp_path: Path) -> None:
    result = Run().read(tmp_path)
    assert (result["valid"], codes(result), result["remarks"]) == (True, [], [])
    point = BenchPoint.model_validate(result)
    assert point.telemetry is not None
    assert point.telemetry.window is not None
    assert (point.telemetry.window.duration_s, point.telemetry.window.uncertainty_s) == (33.0, 0.0)
    assert point.telemetry.energy_j == pytest.approx(2 * 250 * 33, rel=0.002)
    assert point.telemetry.gpus[0].throttle == {"sw-power-cap": 1.0}  # a power limit is no fault
    assert point.telemetry.gpus[0].memory_clock_mhz.mean == 12000
    assert point.telemetry.cpu_pct.mean == 30
    assert point.client_load is not None
    assert (point.client_load.bound, point.client_load.cpu_pct) == (False, 20.0)
    assert point.server_load is not None
    assert (point.server_load.running_mean, point.server_load.kv_usage_max_pct) == (16.0, 25.0)
    assert point.server_load.prefix_cache_hit_pct == 0
    assert point.flush is not None
    assert point.flush.proved
    assert point.sanity is not None
    assert (point.sanity.checked, point.sanity.bad) == (32, 0)


def test_the_steady_part_has_the_rate_of_full_streams(tmp_path: Path) -> None:
    run = Run()
    # half of the streams stop after two of three requests: a tail of a third of the window
    keep = [i for i in range(48) if i < 32 or i % 2]
    for key in ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"):
        run.line[key] = [run.line[key][i] for i in keep]
    run.starts = [run.starts[i] for i in keep]
    run.options["num_prompts"] = run.line["completed"] = len(keep)
    steady = run.read(tmp_path)["steady"]
    assert (steady["start_s"], steady["end_s"]) == (0.0, 22.0)
    assert steady["concurrency"] == 16
    assert steady["output_tok_per_s"] == pytest.approx(16 * 101 / 11, rel=0.01)
    assert steady["total_tok_per_s"] == pytest.approx(16 * (101 + 128) / 11, rel=0.01)


def test_the_timeline_adds_up(tmp_path: Path) -> None:
    result = Run().read(tmp_path)
    timeline = result["timeline"]
    width = 2 * timeline["t"][0]
    assert sum(timeline["output_tok_per_s"]) * width == pytest.approx(48 * 101, rel=1e-3)
    assert set(timeline["in_flight"]) == {16.0}
    assert {value for value in timeline["server_running"] if value is not None} == {16.0}
    assert {len(values) for values in timeline.values()} == {len(timeline["t"])}


def test_thinned_latencies_keep_their_quantiles(tmp_path: Path) -> None:
    run = Run(streams=1, each=1, tokens=2001, gap=0.01)
    run.line["itls"] = [[i / 1e5 for i in range(2000)]]
    samples = run.read(tmp_path)["latency_samples"]
    assert len(samples["itl_ms"]) == 400
    assert samples["itl_ms"][200] == pytest.approx(10.0, rel=0.01)
    assert samples["ttft_ms"] == [1000.0]


def test_a_client_that_tells_no_starts_has_no_steady_part_and_says_so(tmp_path: Path) -> None:
    run = Run()
    run.starts = []
    result = run.read(tmp_path)
    assert result["valid"]
    assert result["steady"]["output_tok_per_s"] is None
    assert "requests began" in result["steady"]["why"]


def throttle(run: Run, bits: int, share: float) -> None:
    inside = [sample for sample in run.record["samples"] if BEGIN <= sample["t"] <= BEGIN + run.seconds]
    for sample in inside[: int(len(inside) * share)]:
        sample["gpus"][1]["throttle_reasons"] = bits


def busy_before(run: Run) -> None:
    for sample in run.record["samples"]:
        if sample["t"] < BEGIN:
            sample["gpus"][1]["utilization_pct"] = 60


def processes(run: Run, *found: dict[str, Any]) -> None:
    run.record["processes"] = [{"t": BEGIN, "processes": list(found)}]


OWN = {"gpu": 0, "pid": 7, "mib": 900, "cgroup": "0::/system.slice/rackwell-inference.service", "name": "sglang::sche"}
OTHER = {"gpu": 1, "pid": 9, "mib": 500, "cgroup": "0::/user.slice", "name": "python3"}
UNSEEN = {"gpu": 1, "pid": 4242, "mib": None, "cgroup": None, "name": None}


def late(run: Run, seconds: float, every: int) -> None:
    run.watch["lag"] = [[t, seconds if i % every == 0 else 0.0] for i, (t, _lag) in enumerate(run.watch["lag"])]


def set_clock(run: Run) -> None:
    clocks = run.record["server"]["clocks"]
    for pair in clocks[len(clocks) // 2 :]:
        pair[1] += 3.0


def cached(run: Run, status: int) -> None:
    run.watch["flush"] = [{"at": BEGIN - 1, "status": status, "seconds": 50.0}]
    for sample in run.record["server"]["samples"]:
        sample["cached_tokens"] += 4000 * (sample["t"] >= BEGIN + run.seconds)


SPOILED: dict[str, Any] = {
    "bench-throttled": lambda run: throttle(run, 0x40, 0.5),
    "bench-gpus-shared": lambda run: processes(run, OWN, OTHER),
    "bench-clock-skew": set_clock,
    "bench-cache-warm": lambda run: cached(run, 400),
    "bench-client-bound": lambda run: late(run, 0.5, 5),
}


@pytest.mark.parametrize("code", SPOILED)
def test_what_spoils_a_run_is_named(tmp_path: Path, code: str) -> None:
    run = Run()
    SPOILED[code](run)
    result = run.read(tmp_path)
    assert (codes(result), result["valid"], result["status"]) == ([code], False, "measured")
    assert result["reasons"][0]["why"]


def test_what_is_tolerated_is_remarked_and_the_run_counts(tmp_path: Path) -> None:
    run = Run()
    late(run, 0.5, 5)
    throttle(run, 0x40, 0.5)
    run.options["tolerate"] = ["bench-client-bound"]
    result = run.read(tmp_path)
    assert codes(result) == ["bench-throttled"]
    assert any(remark.startswith("Tolerated: bench-client-bound") for remark in result["remarks"])
    assert result["client_load"]["bound"] is True


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: throttle(run, 0x20, 0.04), "slowed down at times"),
        (lambda run: processes(run, UNSEEN), "whose they are"),
        (lambda run: cached(run, 200), "begin alike"),
        (lambda run: late(run, 0.03, 3), "client was busy"),
        (lambda run: run.watch.update(flush=[{"status": 400}]), "not proved"),
        (lambda run: run.record["samples"].__delitem__(slice(60, 80)), "gaps"),
    ],
)
def test_what_a_reader_should_know_is_remarked_and_the_run_counts(tmp_path: Path, change: Any, told: str) -> None:
    run = Run()
    change(run)
    result = run.read(tmp_path)
    assert result["valid"], result["reasons"]
    assert any(told in remark for remark in result["remarks"]), result["remarks"]


def test_processes_of_another_container_are_foreign_once_ours_are_seen_by_number(tmp_path: Path) -> None:
    run = Run()
    processes(run, OWN, UNSEEN)
    assert codes(run.read(tmp_path)) == ["bench-gpus-shared"]


def test_a_gpu_that_works_while_the_server_is_idle_is_somebody_elses(tmp_path: Path) -> None:
    run = Run()
    busy_before(run)
    result = run.read(tmp_path)
    assert codes(result) == ["bench-gpus-shared"]
    assert "GPU 1 worked (60 %)" in result["reasons"][0]["why"]


def test_a_wrong_known_answer_spoils_any_speed(tmp_path: Path) -> None:
    run = Run()
    run.server = Server([{"when": "after the measurement", "answer": "!!!!!!", "problem": "one character repeated"}])
    result = run.read(tmp_path)
    assert codes(result) == ["bench-garbage"]
    assert result["sanity"]["why"] == "asked after the measurement: one character repeated"


@pytest.mark.parametrize("text", ["", "!!!!!!!!!!", " ? ? ? ? ?", "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffda"])
def test_garbage_among_the_measured_answers_is_seen_and_not_kept(tmp_path: Path, text: str) -> None:
    run = Run()
    run.line["generated_texts"] = [text if i % 3 == 0 else f"answer {i}" for i in range(48)]
    result = run.read(tmp_path)
    assert codes(result) == ["bench-garbage"]
    assert result["sanity"]["bad"] > 3
    assert result["sanity"]["example"] == text
    kept = json.loads(gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()))
    assert "generated_texts" not in kept
    assert "sk-secret" not in json.dumps(kept)


def test_an_energy_counter_that_begins_again_gives_no_negative_energy(tmp_path: Path) -> None:
    run = Run()
    for sample in run.record["samples"]:
        if sample["t"] > BEGIN + 10:
            sample["gpus"][0]["energy_mj"] = (sample["t"] - BEGIN - 10) * 250_000
    result = run.read(tmp_path)
    first, second = result["telemetry"]["gpus"]
    assert (first["energy_source"], second["energy_source"]) == ("power", "counter")
    assert first["energy_j"] == pytest.approx(250 * 33, rel=0.01)
    assert any("began again" in remark for remark in result["remarks"])


def test_pcie_traffic_is_of_the_window_and_of_its_gpu(tmp_path: Path) -> None:
    run = Run()
    run.record["links"] = [[BEGIN - 3, 0, "tx", 9e9], [BEGIN + 1, 0, "tx", 100.0], [BEGIN + 2, 1, "rx", 50.0]]
    run.record["links"] += [[BEGIN + 3, 0, "tx", 300.0]]
    first, second = run.read(tmp_path)["telemetry"]["gpus"]
    assert (first["pcie_tx_mb_per_s"]["mean"], first["pcie_tx_mb_per_s"]["max"]) == (200.0, 300.0)
    assert (second["pcie_rx_mb_per_s"]["mean"], second["pcie_tx_mb_per_s"]["mean"]) == (50.0, None)
