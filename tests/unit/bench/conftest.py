# SPDX-License-Identifier: Apache-2.0
"""Outputs of the real client, and telemetry and sweeps made up for the tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client, bench_telemetry

from rackwell.bench.result import BenchResult, ProfileRef, Release, assemble

#: Where the monotonic clock of made-up records stands when the command starts.
ORIGIN = 5000.0
DATA = Path(__file__).parent / "data"
OPTIONS: dict[str, Any] = {
    "run_id": "r1",
    "concurrency": 4,
    "num_prompts": 16,
    "input_tokens": 128,
    "output_tokens": 64,
    "repeat": 1,
    "seed": 1,
    "warmup_requests": 2,
    "host": "127.0.0.1",
    "port": 30000,
    "served_name": "glm-5",
    "tokenizer": "/srv/models/toy",
    "point_timeout": 900,
    "steady_share": 0.9,
    "sanity_answers": 32,
    "sane": None,
    "client": "bench-client",
}


@pytest.fixture
def data() -> Path:
    """Directory of the real client's outputs."""
    return DATA


@pytest.fixture
def summary() -> Callable[[str], dict[str, Any]]:
    """Summary of a stored output by its name."""

    def of(name: str) -> dict[str, Any]:
        line = bench_client.parse_output((DATA / name).read_text())
        assert line is not None
        return bench_client.summarise(line, OPTIONS)

    return of


def record(
    power: Callable[[float, int], float],
    *,
    seconds: float,
    start: float,
    hz: float = 5.0,
    gpus: int = 8,
    limit: float = 600.0,
    counter: bool = True,
) -> dict[str, Any]:
    """A made-up ``rackwell.telemetry/1``: GPU g draws power(t, g) watts; the energy counter integrates it."""
    samples = []
    energy = [1000.0 * g for g in range(gpus)]
    steps = 4
    for i in range(int(seconds * hz) + 1):
        t = i / hz
        if i:
            for g in range(gpus):
                energy[g] += sum(power(t - (k + 0.5) / hz / steps, g) for k in range(steps)) / steps / hz
        readings = [
            {
                "power_w": round(power(t, g), 3),
                "power_limit_w": limit,
                "utilization_pct": 97 if power(t, g) > 150 else 0,
                "memory_used_mib": 91 * 1024 + g,
                "temperature_c": round(38 + power(t, g) / 20),
                "sm_clock_mhz": 2400,
                "energy_mj": round(energy[g] * 1e3) if counter else None,
            }
            for g in range(gpus)
        ]
        samples.append({"t": ORIGIN + t, "gpus": readings})
    devices = [
        {
            "index": g,
            "uuid": f"GPU-00000000-0000-0000-0000-00000000000{g}",
            "bus_id": f"0000:{g + 1:02x}:00.0",
            "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "power_limit_w": limit,
            "memory_total_mib": 97887,
        }
        for g in range(gpus)
    ]
    return {
        "schema": "rackwell.telemetry/1",
        "exit_code": 0,
        "clock": {"monotonic": ORIGIN, "wall": 1796000000.0},
        "window_start": ORIGIN + start,
        "lines": [{"t": ORIGIN + start, "text": "Warmup completed with 2 sequences. Starting main benchmark run..."}],
        "telemetry": {"available": True, "why": None},
        "driver_version": "595.58.03",
        "devices": devices,
        "samples": samples,
    }


#: The story's sweep, in the shape of a result: streams -> (total tok/s, output tok/s, peak output tok/s)
STORY = {256: (1950.0, 700.0, 1300.0), 512: (2800.0, 1240.0, 2350.0), 1024: (3740.0, 1240.0, 3945.0)}


def _distribution(middle: float) -> dict[str, float]:
    return {
        "mean": middle * 1.08,
        "min": middle * 0.4,
        "max": middle * 3.1,
        "p50": middle,
        "p90": middle * 1.6,
        "p95": middle * 1.9,
        "p99": middle * 2.6,
    }


def point(
    streams: int, rates: tuple[float, float, float], seconds: float = 60.0, watts: float = 250.0
) -> dict[str, Any]:
    """A made-up valid ``rackwell.bench_point/1`` with telemetry."""
    total, output, peak = rates

    def power(t: float, gpu: int) -> float:
        busy = 2.0 <= t <= 2.0 + seconds
        return 88.0 if not busy else watts + 9 * math.sin(t * 1.7 + gpu) + 4 * gpu

    telemetry = bench_telemetry.reduce(record(power, seconds=seconds + 4, start=1.0), ORIGIN + 2.0, seconds)
    received = round(output * seconds)
    return {
        "schema": "rackwell.bench_point/1",
        "run_id": "20261129T101500Z-4f2a",
        "concurrency": streams,
        "num_prompts": streams * 4,
        "input_tokens": 1024,
        "output_tokens": 512,
        "seed": 1,
        "warmup_requests": 2,
        "status": "measured",
        "valid": True,
        "reasons": [],
        "remarks": [],
        "lines": [],
        "errors": [],
        "command": ["python", "-m", "sglang.bench_serving", "--max-concurrency", str(streams)],
        "started_utc": "2026-11-29T10:15:02.250Z",
        "client": {"name": "sglang.bench_serving", "version": "0.5.9"},
        "server": {"version": "0.5.9", "model_path": "/srv/models/glm-5", "served_model_name": "glm-5", "tp_size": 8},
        "requests": {"requested": streams * 4, "completed": streams * 4, "failed": 0, "without_tokens": 0},
        "tokens": {
            "input": round((total - output) * seconds),
            "output_requested": received,
            "output_received": received,
            "output_retokenized": received,
            "output_chunks": received,
        },
        "throughput": {
            "duration_s": seconds,
            "request_per_s": streams * 4 / seconds,
            "input_tok_per_s": total - output,
            "output_tok_per_s": output,
            "total_tok_per_s": total,
            "peak_output_tok_per_s": peak,
            "concurrency_achieved": streams * 0.97,
            "accept_length": None,
        },
        "latency": {
            "ttft_ms": _distribution(240.0 + streams * 3.1),
            "itl_ms": _distribution(22.0 + streams * 0.31),
            "tpot_ms": _distribution(23.0 + streams * 0.32),
            "e2e_ms": _distribution(9000.0 + streams * 110.0),
        },
        "telemetry": {
            **telemetry,
            "window": {"start_utc": "2026-11-29T10:15:30.000Z", "duration_s": seconds, "uncertainty_s": 0.02},
        },
    }


def crashed(streams: int) -> dict[str, Any]:
    """A made-up point at which the server died."""
    reason = bench_client.reason(
        "server-crashed",
        "the server died during the measurement",
        "its unit was started anew",
        "read `journalctl -u rackwell-inference.service`",
    )
    return {
        **{
            key: value
            for key, value in point(streams, (1, 1, 1), 1).items()
            if key in ("schema", "concurrency", "num_prompts")
        },
        "input_tokens": 1024,
        "output_tokens": 512,
        "status": "crashed",
        "valid": False,
        "reasons": [reason],
        "lines": ["AttributeError: 'PrefillMetadata' object has no attribute <script>alert(1)</script>"],
    }


def run(
    points: list[dict[str, Any]], run_id: str = "20261129T101500Z-4f2a", date: str = "2026-11-29T10:15:00Z"
) -> BenchResult:
    """A run of these points."""
    return assemble(
        points,
        run_id=run_id,
        container="glm5-01",
        host="pve1",
        date_utc=date,
        bench="full",
        release=Release(
            digest="3f1c" * 16,
            name="glm5-r1",
            sources={"sglang": "0.5.9", "flashinfer-python": "0.6.3"},
            patches=["sglang/flashinfer-autotune-cutlass"],
        ),
        profile=ProfileRef(
            name="glm5-nvfp4",
            digest="a07b" * 16,
            model_path="/srv/models/glm-5",
            served_name="glm-5",
            flags={
                "tp-size": 8,
                "quantization": "modelopt_fp4",
                "max-running-requests": 1024,
                "disable-cuda-graph": True,
            },
        ),
    )


@pytest.fixture(scope="session")
def story() -> BenchResult:
    """The story's sweep as a valid run."""
    return run([point(streams, rates) for streams, rates in STORY.items()])


@pytest.fixture(scope="session")
def baseline() -> BenchResult:
    """An earlier run of the same sweep, slower."""
    rates = {256: (880.0, 420.0, 700.0), 512: (1100.0, 515.0, 900.0), 1024: (1180.0, 540.0, 980.0)}
    return run(
        [point(streams, rate, watts=160.0) for streams, rate in rates.items()],
        "20261128T090000Z-00aa",
        "2026-11-28T09:00:00Z",
    )
