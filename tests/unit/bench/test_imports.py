# SPDX-License-Identifier: Apache-2.0
"""Results of other tools: read as they are written, what they do not tell is said, and no bad number counts.

The lines of bench_serving 0.5.9 are the real client's; the others are of the form that the tools' sources write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.bench.export import as_csv, as_jsonl, rows
from rackwell.bench.imports import read
from rackwell.bench.result import BenchResult
from rackwell.bench.store import Store
from rackwell.errors import RackwellError


def sglang_0516(**changes: Any) -> dict[str, Any]:
    """A line of sglang.benchmark.serving of 0.5.16, without --output-details."""
    summaries = {
        f"{share}_{name}": {"mean": 20.0, "median": 19.0, "std": 3.0, "p90": 25.0, "p95": 27.0, "p99": 30.0}[share]
        for name in ("e2e_latency_ms", "ttft_ms", "tpot_ms", "itl_ms")
        for share in ("mean", "median", "std", "p90", "p95", "p99")
    }
    return {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 64,
        "sharegpt_output_len": None,
        "random_input_len": 1024,
        "random_output_len": 256,
        "random_range_ratio": 1.0,
        "server_info": {"version": "0.5.16", "api_key": "sk-hunter2", "model_path": "/m", "tp_size": 8},
        "duration": 100.0,
        "completed": 256,
        "total_input_tokens": 262144,
        "total_output_tokens": 65536,
        "total_output_tokens_retokenized": 65000,
        "request_throughput": 2.56,
        "input_throughput": 2621.44,
        "output_throughput": 655.36,
        "total_throughput": 3276.8,
        **summaries,
        "concurrency": 63.1,
        "accept_length": None,
        "max_output_tokens_per_s": 900.0,
        "max_concurrent_requests": 66,
        "cache_report": {"total_prompt_tokens": 262144, "total_cached_tokens": 0, "cache_hit_rate_pct": 0.0},
        **changes,
    }


def vllm(**changes: Any) -> dict[str, Any]:
    """What ``vllm bench serve --save-result`` writes."""
    return {
        "date": "20260131-142501",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "glm-5",
        "tokenizer_id": "glm-5",
        "num_prompts": 100,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 16,
        "duration": 50.0,
        "completed": 100,
        "failed": 0,
        "total_input_tokens": 102400,
        "total_output_tokens": 12800,
        "request_throughput": 2.0,
        "request_goodput": None,
        "output_throughput": 256.0,
        "total_token_throughput": 2304.0,
        "mean_ttft_ms": 80.0,
        "median_ttft_ms": 75.0,
        "std_ttft_ms": 5.0,
        "p99_ttft_ms": 120.0,
        "mean_itl_ms": 12.0,
        "median_itl_ms": 11.5,
        "std_itl_ms": 1.0,
        "p99_itl_ms": 20.0,
        **changes,
    }


def metric(unit: str, avg: float, **shares: float) -> dict[str, Any]:
    return {"unit": unit, "avg": avg, **shares}


def aiperf(**changes: Any) -> dict[str, Any]:
    """aiperf's profile_export_aiperf.json, schema 1.4."""
    spread = {"p50": 10.0, "p90": 12.0, "p95": 13.0, "p99": 14.0, "min": 8.0, "max": 15.0}
    return {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_throughput": metric("requests/sec", 2.0),
        "request_latency": metric("ms", 10.5, **spread),
        "request_count": metric("requests", 200.0),
        "time_to_first_token": metric("ms", 10.5, **spread),
        "inter_token_latency": metric("ms", 10.5, **spread),
        "inter_chunk_latency": metric("ms", 10.5, **spread),
        "output_token_throughput": metric("tokens/sec", 256.0),
        "total_token_throughput": metric("tokens/sec", 2304.0),
        "output_sequence_length": metric("tokens", 128.0),
        "input_sequence_length": metric("tokens", 1024.0),
        "benchmark_duration": metric("sec", 100.0),
        "input_config": {
            "models": {"items": [{"name": "glm-5"}]},
            "phases": [
                {"name": "warmup", "type": "concurrency", "concurrency": 2},
                {"name": "profiling", "type": "concurrency", "concurrency": 16},
            ],
        },
        "run_info": {"random_seed": 42},
        "was_cancelled": False,
        "start_time": "2026-01-31T14:25:01.5",
        **changes,
    }


def imported(path: Path, *documents: dict[str, Any] | str, indent: int | None = None) -> BenchResult:
    file = path / "out.jsonl"
    lines = [one if isinstance(one, str) else json.dumps(one, indent=indent) for one in documents]
    file.write_text("\n".join(lines) + "\n")
    return read(file, "glm5-01")


def test_the_real_clients_line_becomes_a_point_without_the_servers_key(data: Path) -> None:
    run = read(data / "measured-c4.jsonl", "glm5-01")
    (point,) = run.points
    assert (point.load, point.num_prompts, point.valid) == ((128, 64, 4), 16, True)
    assert point.throughput is not None
    assert point.throughput.output_tok_per_s == pytest.approx(60.7516, abs=1e-4)
    assert point.latency.ttft_ms is not None
    assert point.latency.ttft_ms.p50 == pytest.approx(71.386, abs=1e-3)
    assert point.latency_samples["ttft_ms"]
    assert run.origin is not None
    assert run.origin.tool == "sglang.bench_serving"
    assert "GPU power, utilisation and clocks" in run.origin.lost
    assert "sk-secret" not in run.model_dump_json()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("requests-failed.jsonl", "bench-requests-failed"),
        ("empty-answers.jsonl", "bench-empty-answers"),
        ("short-answers.jsonl", "bench-short-answers"),
    ],
)
def test_bad_runs_do_not_count_wherever_they_come_from(data: Path, name: str, code: str) -> None:
    (point,) = read(data / name, "x").points
    assert not point.valid
    assert code in [reason.code for reason in point.reasons]


def test_each_line_of_a_file_is_a_point_and_the_same_load_again_a_repeat(tmp_path: Path) -> None:
    more = sglang_0516(max_concurrency=256)
    run = imported(tmp_path, sglang_0516(), more, sglang_0516(), "", '{"half": ')
    assert [(point.concurrency, point.repeat) for point in run.points] == [(64, 1), (64, 2), (256, 1)]
    assert run.points[0].latency.ttft_ms is not None
    assert (run.points[0].latency.ttft_ms.p95, run.points[0].latency.ttft_ms.max) == (27.0, None)
    assert run.origin is not None
    assert any("line 5" in text for text in run.origin.lost)
    assert any("requests failed" in text for text in run.origin.lost)
    # Infinity is no JSON: what is stored is
    stored = Store(tmp_path).save(run)
    json.loads(stored.file.read_text(), parse_constant=pytest.fail)
    assert "sk-hunter2" not in stored.file.read_text()


def test_lengths_that_vary_are_said_to_be_means(tmp_path: Path) -> None:
    (point,) = imported(tmp_path, sglang_0516(random_range_ratio=0.5)).points
    assert point.load == (1024, 256, 64)
    assert "means" in point.remarks[0]


def test_vllm_without_and_with_details(tmp_path: Path) -> None:
    run = imported(tmp_path, vllm())
    (point,) = run.points
    assert (point.load, point.valid, run.date_utc) == ((1024, 128, 16), True, "2026-01-31T14:25:01+00:00")
    assert point.latency.itl_ms is not None
    assert (point.latency.itl_ms.p50, point.latency.itl_ms.p90) == (11.5, None)
    detailed = imported(tmp_path, vllm(ttfts=[0.08, 0.06, 0.0], itls=[[0.01], [0.02], []]))
    assert detailed.points[0].latency_samples == {"ttft_ms": [60.0, 80.0], "itl_ms": [10.0, 20.0]}


def test_vllms_failed_requests_are_seen_also_where_it_does_not_count_them(tmp_path: Path) -> None:
    told = vllm(completed=90, failed=10)
    untold = {key: value for key, value in told.items() if key != "failed"}
    for document in (told, untold):
        (point,) = imported(tmp_path, document).points
        assert [reason.code for reason in point.reasons] == ["bench-requests-failed"]


def test_aiperf_is_read_by_units_and_its_token_latency_is_what_others_call_tpot(tmp_path: Path) -> None:
    nanoseconds = metric("ns", 9e6, p50=8e6)
    run = imported(tmp_path, aiperf(time_to_first_token=nanoseconds), indent=2)
    (point,) = run.points
    assert (point.load, point.seed, point.valid) == ((1024, 128, 16), 42, True)
    assert point.latency.ttft_ms is not None
    assert (point.latency.ttft_ms.mean, point.latency.ttft_ms.p50) == (9.0, 8.0)
    assert point.latency.tpot_ms is not None
    assert run.origin is not None
    assert (run.origin.tool, run.origin.version) == ("aiperf", "0.13.0")
    assert any("leaves the figure out" in text for text in run.origin.lost)


def test_an_aiperf_run_that_was_cut_off_or_had_errors_does_not_count(tmp_path: Path) -> None:
    (cut,) = imported(tmp_path, aiperf(is_complete=False, incomplete_reason="stalled")).points
    assert [reason.code for reason in cut.reasons] == ["bench-incomplete"]
    (bad,) = imported(tmp_path, aiperf(error_request_count=metric("requests", 3.0))).points
    assert [reason.code for reason in bad.reasons] == ["bench-requests-failed"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1, 2]",
        "no json",
        '{"backend": "x", "random_range_ratio": 1, "duration": "1", "output_throughput": 1}',
    ],
)
def test_what_is_no_benchmark_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(RackwellError, match="no result of a known tool"):
        read(tmp_path / "f.json", "x")


def test_results_of_two_tools_in_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RackwellError) as caught:
        imported(tmp_path, sglang_0516(), vllm())
    assert "several tools" in caught.value.problems[0].why


def test_the_same_file_again_is_the_same_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        store.save(imported(tmp_path, sglang_0516()))
    assert len(store.entries("glm5-01")) == 1


def test_export_has_the_same_columns_for_every_run_and_arms_no_formula(tmp_path: Path, story: BenchResult) -> None:
    foreign = imported(tmp_path, sglang_0516()).model_copy(update={"host": "=1+1"})
    found = [*rows(story, "a"), *rows(foreign, "b")]
    assert len({tuple(row) for row in found}) == 1
    text = as_csv(found)
    head, *lines = text.splitlines()
    assert len(lines) == len(found)
    assert "output_tok_per_s" in head.split(",")
    assert ",'=1+1," in lines[-1]
    assert [json.loads(line)["run"] for line in as_jsonl(found).splitlines()] == [row["run"] for row in found]
