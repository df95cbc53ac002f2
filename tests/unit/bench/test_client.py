# SPDX-License-Identifier: Apache-2.0
"""The load generator's output is read right, and not believed where it must not be."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client, bench_clients

from .conftest import OPTIONS

Summary = Callable[[str], dict[str, Any]]


def codes(summary: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in bench_client.judge(summary)]


def test_the_command_is_complete_and_asks_the_server_for_its_own_count() -> None:
    argv = bench_clients.Client("/root").command(OPTIONS, "/tmp")
    assert argv[:3] == ["/root/bench-client/env/bin/python", "-m", "sglang.bench_serving"]
    value = dict(itertools.pairwise(argv))
    assert value["--backend"] == "sglang-oai"
    assert value["--dataset-name"] == "random-ids"
    assert value["--random-range-ratio"] == "1.0"
    assert (value["--max-concurrency"], value["--num-prompts"], value["--seed"]) == ("4", "16", "1")
    assert {"--flush-cache", "--output-details"} <= set(argv)
    options = json.loads(value["--extra-request-body"])["stream_options"]
    assert options == {"include_usage": False, "continuous_usage_stats": True}


def test_a_good_run_is_valid(summary: Summary) -> None:
    good = summary("measured-c4.jsonl")
    assert codes(good) == []
    assert good["requests"] == {"requested": 16, "completed": 16, "failed": 0, "without_tokens": 0, "malformed": 0}
    assert good["tokens"]["output_received"] == good["tokens"]["output_requested"] == 16 * 64


@pytest.mark.parametrize("latency", ["ttft", "itl"])
def test_percentiles_are_those_of_the_client(data: Path, summary: Summary, latency: str) -> None:
    line = bench_client.parse_output((data / "measured-c4.jsonl").read_text())
    assert line is not None
    ours = summary("measured-c4.jsonl")["latency"][f"{latency}_ms"]
    assert ours["p50"] == pytest.approx(line[f"median_{latency}_ms"], abs=2e-3)
    assert ours["p99"] == pytest.approx(line[f"p99_{latency}_ms"], abs=2e-3)
    assert ours["mean"] == pytest.approx(line[f"mean_{latency}_ms"], abs=2e-3)


def test_latency_of_whole_requests_is_close_to_the_clients(data: Path, summary: Summary) -> None:
    """The client adds the end of the stream, which comes within the time of one token."""
    line = bench_client.parse_output((data / "measured-c4.jsonl").read_text())
    assert line is not None
    ours = summary("measured-c4.jsonl")["latency"]
    one_token = ours["itl_ms"]["max"]
    assert 0 <= line["median_e2e_latency_ms"] - ours["e2e_ms"]["p50"] <= 2 * one_token


def test_failed_requests_make_a_point_invalid_though_the_client_left_with_0(summary: Summary) -> None:
    failed = summary("requests-failed.jsonl")
    assert codes(failed) == ["bench-requests-failed"]
    assert failed["requests"]["failed"] == 5
    assert failed["errors"][0]["count"] == 5
    assert "Internal Server Error" in failed["errors"][0]["text"]
    assert failed["latency"]["ttft_ms"]["min"] > 0


def test_short_answers_are_seen(summary: Summary) -> None:
    assert codes(summary("short-answers.jsonl")) == ["bench-short-answers"]


def test_answers_without_a_token_are_seen_though_the_client_counts_them(data: Path, summary: Summary) -> None:
    line = bench_client.parse_output((data / "empty-answers.jsonl").read_text())
    assert line is not None
    assert line["completed"] == 16
    assert "bench-empty-answers" in codes(summary("empty-answers.jsonl"))
    assert "bench-tokens-unproved" in codes(summary("empty-answers.jsonl"))


def test_no_secret_and_no_generated_text_is_kept(data: Path) -> None:
    text = (data / "measured-c4.jsonl").read_text()
    assert "sk-secret" in text
    line = bench_client.parse_output(text)
    assert line is not None
    clean = bench_client.scrub(line)
    assert "sk-secret" not in json.dumps(clean)
    assert "generated_texts" not in clean
    assert clean["server_info"] == {
        "version": "0.5.9",
        "model_path": "/srv/models/toy",
        "served_model_name": "glm-5",
        "tp_size": 8,
    }


def test_infinity_becomes_json(data: Path) -> None:
    text = (data / "measured-c4.jsonl").read_text()
    assert '"request_rate": Infinity' in text
    line = bench_client.parse_output(text)
    assert line is not None
    assert line["request_rate"] is None
    json.dumps(line, allow_nan=False)


def test_an_appended_file_is_read_from_its_end_and_half_a_line_is_nothing() -> None:
    assert bench_client.parse_output('{"tag": "old"}\n{"tag": "new"}\n') == {"tag": "new"}
    assert bench_client.parse_output('{"tag": "old"}\n{"tag": "ne') == {"tag": "old"}
    assert bench_client.parse_output("") is None


def test_telling_lines_name_the_cause(data: Path) -> None:
    lines = bench_client.telling_lines(
        (data / "server-died.stdout").read_text(), (data / "server-died.stderr").read_text()
    )
    assert lines[-1].startswith("requests.exceptions.ConnectionError")
    assert not any("benchmark_args" in line or "PyTorch" in line for line in lines)


def test_one_stream_more_than_prompts_is_remarked(summary: Summary) -> None:
    good = summary("measured-c4.jsonl")
    assert bench_client.remarks(good, 4) == []
    assert len(bench_client.remarks(good, 16)) == 2
