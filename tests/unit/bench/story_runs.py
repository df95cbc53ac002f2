# SPDX-License-Identifier: Apache-2.0
"""The numbers of the one published account of this machine, as runs. They are its numbers, never figures of ours.

8x RTX PRO 6000 Blackwell, GLM-5-NVFP4, tensor parallel 8, early 2026. What the account does not tell is left out:
there is no latency, no energy, and power only where it says under which load it was read.
"""

from __future__ import annotations

from typing import Any

from rackwell.bench.result import (
    BenchPoint,
    BenchResult,
    Gpu,
    GpuTelemetry,
    Hardware,
    Origin,
    ProfileRef,
    Release,
    Series,
    Software,
    Telemetry,
    Throughput,
)

GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
LIMIT = 600.0
INPUT, OUTPUT = 1024, 512
AUTOTUNE = "sglang/flashinfer-autotune-cutlass"
FUSION = "sglang/allreduce-fusion-sm120"

#: what the baseline was served with, as far as it is told, and what stayed the same
BASE_FLAGS: dict[str, Any] = {"tp-size": 8, "moe-runner-backend": "flashinfer_cutlass", "max-running-requests": 64}
#: flags of the autotune build: two of the four things that changed with the patch, and the third of row 5
TUNED_FLAGS: dict[str, Any] = {
    **BASE_FLAGS,
    "max-running-requests": 1024,
    "disable-cuda-graph": True,
    "disable-radix-cache": True,
}


def point(
    streams: int,
    total: float,
    output: float | None = None,
    peak: float = 0.0,
    watts: float | None = None,
    **fields: Any,
) -> BenchPoint:
    """A point of which rates are told, and power when it was read under load."""
    output = total / 3 if output is None else output
    seconds = 60.0
    telemetry = Telemetry(
        samples=300 if watts else 0,
        hz=5.0 if watts else 0.0,
        gpus=[
            GpuTelemetry(index=i, name=GPU, power_limit_w=LIMIT, power_w=Series(mean=watts, max=watts))
            for i in range(8)
        ],
    )
    return BenchPoint.model_validate(
        {
            "concurrency": streams,
            "num_prompts": streams * 4,
            "input_tokens": INPUT,
            "output_tokens": OUTPUT,
            "status": "measured",
            "valid": True,
            "throughput": Throughput(
                duration_s=seconds,
                request_per_s=output / OUTPUT,
                input_tok_per_s=total - output,
                output_tok_per_s=output,
                total_tok_per_s=total,
                peak_output_tok_per_s=peak,
            ),
            "telemetry": telemetry,
            **fields,
        }
    )


def run(
    name: str,
    hour: int,
    points: list[BenchPoint],
    flags: dict[str, Any],
    patches: list[str],
    **fields: Any,
) -> BenchResult:
    """A run with every part known."""
    return BenchResult.model_validate(
        {
            "run_id": name,
            "container": "glm5-01",
            "host": "pve1",
            "date_utc": f"2026-02-10T{hour:02}:00:00Z",
            "bench": "full",
            "release": Release(
                digest=(name.encode().hex() * 20)[:64],
                name="story",
                sources={"sglang": "0.5.9", "flashinfer-python": "0.6.3"},
                patches=patches,
            ),
            "profile": ProfileRef(name=name, digest="p", model_path="/srv/models/GLM-5-NVFP4", flags=flags),
            "profile_content": {"model": {"path": "/srv/models/GLM-5-NVFP4"}, "flags": flags, "environment": {}},
            "environment": {"kernel": "6.17.2-1-pve", "driver": "595.58.03", "server_environment": {}},
            "hardware": Hardware(
                gpus=[Gpu(name=GPU, uuid=f"GPU-{i}", power_limit_w=LIMIT) for i in range(8)],
                driver_version="595.58.03",
            ),
            "client": Software(version="0.5.9"),
            "points": points,
            **fields,
        }
    )


def baseline() -> BenchResult:
    """880 tok/s in total at 256 streams; about 11 tok/s for a single one."""
    points = [point(1, 33.0, 11.0), point(256, 880.0, 316.0), point(1024, 880.0, 316.0)]
    return run("baseline", 9, points, BASE_FLAGS, [])


def autotune() -> BenchResult:
    """The sweep with the autotune patch, radix cache off; about 250 W under load."""
    sweep = {256: (1950.0, 700.0, 1300.0), 512: (2800.0, 1240.0, 2350.0), 1024: (3740.0, 1240.0, 3945.0)}
    points = [point(streams, *rates, watts=250.0) for streams, rates in sweep.items()]
    return run("autotune", 12, points, TUNED_FLAGS, [AUTOTUNE])


def fusion() -> BenchResult:
    """Allreduce fusion patched through all layers: it compiled, ran, and served 236 tok/s at about 125 W."""
    return run("fusion", 15, [point(1024, 236.0, 79.0, watts=125.0)], TUNED_FLAGS, [AUTOTUNE, FUSION])


def imported(result: BenchResult) -> BenchResult:
    """The same numbers as a foreign tool's file would give them."""
    return result.model_copy(
        update={
            "release": None,
            "profile": None,
            "profile_content": {},
            "environment": {},
            "hardware": Hardware(),
            "origin": Origin(tool="vllm bench", lost=["power", "release"]),
        }
    )
