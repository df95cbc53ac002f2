# SPDX-License-Identifier: Apache-2.0
"""Another client's output is read into the one shape, and judged like the engine's own."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_aiperf, bench_client, bench_clients, bench_clock

from .conftest import OPTIONS


def aiperf(number: int, *, phase: str = "profiling", error: dict[str, Any] | None = None) -> str:
    """A record as aiperf 0.13.0 writes it with ``--export-level records`` (its source; no run of it)."""
    start = 1_796_000_000_000_000_000 + number * 100_000_000
    metrics = {
        "time_to_first_token": {"value": 250.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [50.0] * 63, "unit": "ms"},
        "output_sequence_length": {"value": 64, "unit": "tokens"},
        "input_sequence_length": {"value": 128, "unit": "tokens"},
        "request_latency": {"value": 3400.0, "unit": "ms"},
    }
    metadata = {"session_num": number, "request_start_ns": start, "request_end_ns": start + 3_400_000_000}
    metadata["benchmark_phase"] = phase  # type: ignore[assignment]
    return json.dumps({"metadata": metadata, "metrics": {} if error else metrics, "error": error})


def test_aiperfs_records_are_the_engines_lists() -> None:
    text = "\n".join([aiperf(9, phase="warmup"), *(aiperf(i) for i in (1, 0, 2, 3)), "half a li"])
    line = bench_aiperf.read(text)
    assert line is not None
    summary = bench_client.summarise(line, {**OPTIONS, "num_prompts": 4})
    assert bench_client.judge(summary) == []
    assert summary["tokens"] == {
        "input": 512, "output_requested": 256, "output_received": 256, "output_retokenized": 0, "output_chunks": 256
    }  # fmt: skip
    assert summary["latency"]["ttft_ms"]["p50"] == 250
    assert summary["latency"]["itl_ms"]["p99"] == 50
    assert summary["throughput"]["duration_s"] == pytest.approx(3.7)
    # on the recorder's clock, in the order of their starts
    record = {"clock": {"wall": 1_796_000_000.0, "monotonic": 50.0}}
    starts = bench_clock.starts_of(record, {}, line)
    assert starts == pytest.approx([50.0, 50.1, 50.2, 50.3])
    window = bench_clock.window_of(record, {}, line, bench_clients.Aiperf("/"), 3.7)
    assert window is not None
    assert window["start"] == pytest.approx(50.0)


def test_a_request_that_failed_there_failed_here() -> None:
    line = bench_aiperf.read("\n".join([aiperf(0), aiperf(1, error={"type": "x", "message": "no route"})]))
    assert line is not None
    summary = bench_client.summarise(line, {**OPTIONS, "num_prompts": 2})
    assert [reason["code"] for reason in bench_client.judge(summary)] == ["bench-requests-failed"]
    assert summary["errors"] == [{"text": "no route", "count": 1}]


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"metadata": {"benchmark_phase": "warmup"}}'])
def test_nothing_is_nothing(text: str) -> None:
    assert bench_aiperf.read(text) is None


def test_aiperf_is_told_the_same_load() -> None:
    argv = bench_clients.Aiperf("/root").command(OPTIONS, "/out")
    value = dict(itertools.pairwise(argv))
    assert argv[:4] == ["/root/bench-aiperf/env/bin/python", "-m", "aiperf", "profile"]
    assert (value["--concurrency"], value["--request-count"], value["--isl"], value["--osl"]) == (
        "4",
        "16",
        "128",
        "64",
    )
    assert (value["--random-seed"], value["--artifact-dir"]) == ("1", "/out")
    assert json.loads(value["--extra-inputs"])["ignore_eos"] is True
