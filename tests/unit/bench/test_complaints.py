# SPDX-License-Identifier: Apache-2.0
"""What people have complained of in other benchmarks: with the fault present, a run says so or is not touched by it.

Where it is the client's own code that matters, test_real_client.py has the same faults with the real client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client

from .conftest import DATA
from .made import BEGIN, Run, codes


def test_a_read_buffer_of_64_kb_fails_long_lines_and_that_is_told(tmp_path: Path) -> None:
    """A client with the default buffer raises on a chunk that is longer."""
    run = Run()
    for i in range(0, 48, 4):
        run.line["errors"][i] = "Traceback (most recent call last):\n  ...\nValueError: Chunk too big"
        run.line["ttfts"][i], run.line["itls"][i], run.line["output_lens"][i] = 0.0, [], 0
    run.line["completed"] = 36
    result = run.read(tmp_path)
    assert codes(result) == ["bench-requests-failed"]
    assert result["errors"] == [{"text": "ValueError: Chunk too big", "count": 12}]


def test_a_slow_reader_is_told_from_a_slow_server(tmp_path: Path) -> None:
    """One that cannot keep up uses its core up."""
    run = Run()
    run.watch["phases"][0]["cpu_end"] = 3.0 + 0.97 * run.seconds
    result = run.read(tmp_path)
    assert codes(result) == ["bench-client-bound"]
    assert result["client_load"]["why"] == ["it used 97 % of a core"]


def test_a_cap_of_100_connections_shows_on_the_server(tmp_path: Path) -> None:
    """The client counts 256 requests as in flight, of which 156 wait in its own pool."""
    run = Run(streams=256, tokens=41)
    for sample in run.record["server"]["samples"]:
        sample["running"] = min(sample["running"], 100)
    result = run.read(tmp_path)
    assert codes(result) == ["bench-client-bound"]
    assert result["client_load"]["why"] == ["the server had 100 requests at a time, the client says to have had 256"]


def test_a_queue_on_the_server_is_no_cap_of_the_client(tmp_path: Path) -> None:
    run = Run(streams=256, tokens=41)
    for sample in run.record["server"]["samples"]:
        sample["queued"] = max(sample["running"] - 100, 0)
        sample["running"] = min(sample["running"], 100)
    assert codes(run.read(tmp_path)) == []


def test_tokenising_on_the_loop_is_lag(tmp_path: Path) -> None:
    """Every answer waits for half a second each time; the loop is late by that, and idle otherwise."""
    run = Run()
    run.watch["lag"] = [[BEGIN + 1 + 2 * i, 0.5] for i in range(16)]
    run.watch["lag"] += [[BEGIN + 0.02 * i, 0.0] for i in range(1000)]
    run.watch["lag"].sort()
    result = run.read(tmp_path)
    assert codes(result) == ["bench-client-bound"]
    assert "late" in result["reasons"][0]["why"]


def test_the_same_seed_again_on_a_warm_cache_does_not_count(tmp_path: Path) -> None:
    run = Run()
    run.watch["flush"] = [{"status": 400}]  # and the client goes on
    for sample in run.record["server"]["samples"]:
        sample["cached_tokens"] = 1000 + 0.98 * (sample["prompt_tokens"] - 5000)
    result = run.read(tmp_path)
    assert codes(result) == ["bench-cache-warm"]
    assert result["server_load"]["prefix_cache_hit_pct"] == 98
    assert result["flush"]["proved"] is False


def test_failed_requests_are_no_throughput(tmp_path: Path) -> None:
    """The real client's line of 5 failed requests of 16, which it left with status 0."""
    run = Run()
    run.line = json.loads((DATA / "requests-failed.jsonl").read_text())
    run.options.update(concurrency=4, num_prompts=16, output_tokens=64)
    assert codes(run.read(tmp_path)) == ["bench-requests-failed"]


def test_rejected_requests_that_the_native_endpoint_counts_as_served_are_no_answers(tmp_path: Path) -> None:
    """What the client writes with its default backend, when six of eight prompts were too long."""
    run = Run(streams=8, each=1, tokens=16)
    for i in range(6):
        run.line["ttfts"][i], run.line["itls"][i], run.line["generated_texts"][i] = 0.0, [], ""
    run.line["total_output_tokens_retokenized"] = 32
    assert codes(run.read(tmp_path))[:2] == ["bench-empty-answers", "bench-tokens-unproved"]
    assert "sglang-oai" in bench_client.arguments(run.options, "x")


@pytest.mark.parametrize("key", ["ttfts", "itls"])
def test_a_malformed_stream_gives_no_negative_latency(tmp_path: Path, key: str) -> None:
    run = Run()
    if key == "ttfts":
        run.line["ttfts"][3] = -0.2
    else:
        run.line["itls"][3] = [0.1, -5.0, 0.1]
    result = run.read(tmp_path)
    assert codes(result) == ["bench-stream-malformed"]
    assert result["requests"]["malformed"] == 1
    assert result["latency"]["ttft_ms"]["min"] == 1000
    assert result["latency"]["itl_ms"]["min"] == 100


def test_a_chunk_without_choices_fails_its_request_and_that_is_told(tmp_path: Path) -> None:
    run = Run()
    run.line["errors"] = ["Traceback (most recent call last):\nIndexError: list index out of range"] * 48
    run.line.update(completed=0, ttfts=[1.0] * 48, output_lens=[0] * 48)
    result = run.read(tmp_path)
    assert codes(result)[0] == "bench-requests-failed"
    asked = bench_client.arguments(run.options, "x")
    # the server sends such a chunk to whoever asks for the usage at the end
    assert '"include_usage":false' in asked[asked.index("--extra-request-body") + 1]


def test_infinity_is_no_json_to_others_and_does_not_leave_the_host(tmp_path: Path) -> None:
    run = Run()
    run.line["request_rate"] = float("inf")
    run.line["accept_length"] = float("nan")
    result = run.read(tmp_path)
    assert result["valid"]
    assert result["throughput"]["accept_length"] is None
    json.dumps(result, allow_nan=False)


def test_an_output_file_that_was_appended_to_gives_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    old: dict[str, Any] = {**run.line, "duration": 1.0, "output_throughput": 1e6}
    read = bench_client.parse_output
    monkeypatch.setattr(bench_client, "parse_output", lambda text: read(json.dumps(old) + "\n" + text))
    result = run.read(tmp_path)
    assert result["throughput"]["output_tok_per_s"] == pytest.approx(48 * 101 / 33)


@pytest.mark.parametrize("tag", ["0.5.9", "0.5.16"])
def test_both_ages_of_the_clients_line_are_understood(tmp_path: Path, tag: str) -> None:
    """0.5.16 writes more percentiles and no other names for the rest."""
    run = Run()
    if tag == "0.5.16":
        for name in ("ttft", "tpot", "itl", "e2e_latency"):
            run.line.update({f"{share}_{name}_ms": 1.0 for share in ("p90", "p95")})
        run.line["cached_tokens"] = [0] * 48
    assert run.read(tmp_path)["valid"]
