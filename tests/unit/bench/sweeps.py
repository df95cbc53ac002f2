# SPDX-License-Identifier: Apache-2.0
"""Made-up runs with everything in them, after the story's figures: for the tests of what people look at.

``python tests/unit/bench/sweeps.py DIRECTORY`` writes pages of them to look at.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rackwell.bench.attribution import Attribution, Change
from rackwell.bench.compare import Comparison, Row
from rackwell.bench.result import BenchResult, ProfileRef, Release, Topology, assemble
from rackwell.bench.steptime import Figure, Part, StepBudget

GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
#: streams -> (total tok/s, output tok/s, best second of output tok/s, watts of each GPU)
STORY = {
    1: (30.8, 11.0, 13.0, 121.0),
    16: (392.0, 140.0, 171.0, 158.0),
    64: (1120.0, 400.0, 512.0, 203.0),
    256: (1950.0, 700.0, 1300.0, 241.0),
    512: (2800.0, 1240.0, 2350.0, 250.0),
    1024: (3740.0, 1240.0, 3945.0, 252.0),
}
#: The same before the patch: 880 tok/s in total at 256 streams, 64 of them running at a time.
BEFORE = {
    1: (29.9, 10.7, 12.0, 119.0),
    16: (376.0, 134.0, 160.0, 150.0),
    64: (810.0, 289.0, 350.0, 171.0),
    256: (880.0, 315.0, 390.0, 174.0),
    512: (880.0, 316.0, 395.0, 175.0),
    1024: (880.0, 315.0, 392.0, 174.0),
}


def distribution(middle: float) -> dict[str, float]:
    """Latencies around `middle`, with a tail."""
    shares = {"mean": 1.08, "min": 0.6, "max": 2.9, "p50": 1.0, "p90": 1.45, "p95": 1.7, "p99": 2.2}
    return {name: round(middle * share, 3) for name, share in shares.items()}


def _series(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": round(sum(values) / len(values), 2),
        "max": round(max(values), 2),
        "series": [round(value, 1) for value in values],
    }


def telemetry(
    watts: float, seconds: float, gpus: int, noise: random.Random, *, limit: float = 600.0, hz: float = 5.0
) -> dict[str, Any]:
    """Of `gpus` GPUs that draw about `watts`, with all that is read of them."""
    slices = min(600, round(seconds * hz))
    times = [(i + 0.5) * seconds / slices for i in range(slices)]
    ripple = [noise.uniform(-1, 1) for _ in range(97)]

    def about(middle: float, swing: float, shift: int) -> dict[str, Any]:
        return _series([middle + swing * ripple[(i * 7 + shift * 13) % 97] for i in range(slices)])

    made = []
    for g in range(gpus):
        phase = noise.random() * 6
        power = [
            watts + 2.2 * g + watts * (0.03 * math.sin(t / 7 + phase) + 0.02 * ripple[(i + 11 * g) % 97])
            for i, t in enumerate(times)
        ]
        made.append(
            {
                "index": g,
                "uuid": f"GPU-00000000-0000-4000-8000-00000000000{g}",
                "name": GPU,
                "bus_id": f"0000:{[0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1][g % 8]:02x}:00.0",
                "memory_total_mib": 97887,
                "power_limit_w": limit,
                "power_w": _series(power),
                "utilization_pct": about(96.0, 3.0, g),
                "memory_used_mib": about(89_000 + 40 * g, 200, g),
                "temperature_c": about(48 + 1.6 * g + watts / 40, 2, g),
                "sm_clock_mhz": about(2430 - 6 * g, 8, g),
                "memory_clock_mhz": {"mean": 14001.0, "max": 14001.0},
                "memory_utilization_pct": {"mean": 31.0, "max": 35.0},
                "pcie_tx_mb_per_s": about(4100, 300, g),
                "pcie_rx_mb_per_s": about(4050, 300, g + 1),
                "throttle": {"sw-power-cap": 0.12, "gpu-idle": round(0.01 * g, 3)} if g else {},
                "energy_j": round(sum(power) / len(power) * seconds, 1),
                "energy_source": "counter",
            }
        )
    return {
        "driver_version": "595.58.03",
        "samples": round(seconds * hz),
        "hz": hz,
        "t": [round(t, 3) for t in times],
        "gpus": made,
        "energy_j": round(sum(gpu["energy_j"] for gpu in made), 1),
        "window": {"start_utc": "2026-11-29T10:15:30.000Z", "duration_s": seconds, "uncertainty_s": 0.02},
        "cpu_share": 0.011,
        "cpu_pct": about(22, 2, 0),
    }


def timeline(streams: int, output: float, seconds: float, noise: random.Random, running: int) -> dict[str, Any]:
    """Ramp, steady state and tail, second by second."""
    times = [i + 0.5 for i in range(int(seconds))]
    ramp, tail = seconds * 0.12, seconds * 0.85

    def level(t: float) -> float:
        return min(1.0, t / ramp, max(0.0, (seconds - t) / (seconds - tail)))

    flight = [round(streams * (1 if t < tail else level(t))) for t in times]
    served = [min(running, f) for f in flight]
    return {
        "t": times,
        "output_tok_per_s": [round(max(0.0, output * 1.15 * level(t) * (1 + noise.gauss(0, 0.04))), 1) for t in times],
        "in_flight": flight,
        "server_running": served,
        "server_queued": [f - s for f, s in zip(flight, served, strict=True)],
        "kv_usage_pct": [
            round(88 * s / max(running, 1) * min(1.0, 0.5 + t / seconds), 1) for t, s in zip(times, served, strict=True)
        ],
    }


def point(
    streams: int,
    rates: tuple[float, float, float, float],
    *,
    seconds: float = 180.0,
    gpus: int = 8,
    repeat: int = 1,
    lengths: tuple[int, int] = (1024, 512),
    running: int = 1024,
) -> dict[str, Any]:
    """A valid ``rackwell.bench_point/1`` with all its parts."""
    noise = random.Random(streams * 1009 + repeat * 31 + lengths[0])
    drift = 1 + noise.gauss(0, 0.008)
    total, output, peak = (rate * drift for rate in rates[:3])
    received = round(output * seconds)
    requests = max(4, round(received / lengths[1]))
    itl = 1000.0 * min(streams, running) / output
    ttft = 310.0 + 2.6 * min(streams, 256) + (0 if streams <= 256 else 11.0 * (streams - 256))
    latencies = {"ttft_ms": ttft, "itl_ms": itl, "tpot_ms": itl * 1.01, "e2e_ms": ttft + itl * lengths[1]}
    return {
        "schema": "rackwell.bench_point/1",
        "concurrency": streams,
        "num_prompts": requests,
        "input_tokens": lengths[0],
        "output_tokens": lengths[1],
        "repeat": repeat,
        "seed": 1000 * streams + repeat,
        "warmup_requests": 2,
        "status": "measured",
        "valid": True,
        "command": [
            *["python", "-m", "sglang.bench_serving", "--backend", "sglang", "--max-concurrency"],
            str(streams),
        ],
        "started_utc": "2026-11-29T10:15:02.250Z",
        "client": {"name": "sglang.bench_serving", "version": "0.5.9"},
        "server": {
            "version": "0.5.9",
            "model_path": "/srv/models/glm-5",
            "served_model_name": "glm-5",
            "tp_size": gpus,
        },
        "requests": {"requested": requests, "completed": requests, "failed": 0, "without_tokens": 0},
        "tokens": {
            "input": round((total - output) * seconds),
            "output_requested": received,
            "output_received": received,
            "output_retokenized": received - 3,
            "output_chunks": received,
        },
        "throughput": {
            "duration_s": seconds,
            "request_per_s": round(requests / seconds, 4),
            "input_tok_per_s": round(total - output, 3),
            "output_tok_per_s": round(output, 3),
            "total_tok_per_s": round(total, 3),
            "peak_output_tok_per_s": round(peak, 3),
            "concurrency_achieved": round(streams * 0.97, 2),
            "accept_length": None,
        },
        "latency": {name: distribution(value) for name, value in latencies.items()},
        "latency_samples": {
            "request_tok_per_s": [round(output / streams * (1 + noise.gauss(0, 0.06)), 3) for _ in range(200)],
            "ttft_ms": [round(ttft * math.exp(noise.gauss(0, 0.3)), 2) for _ in range(200)],
            "itl_ms": [round(itl * math.exp(noise.gauss(0, 0.2)), 3) for _ in range(200)],
            "e2e_ms": [round(latencies["e2e_ms"] * math.exp(noise.gauss(0, 0.1)), 1) for _ in range(200)],
        },
        "telemetry": telemetry(rates[3], seconds, gpus, noise),
        "steady": {
            "start_s": round(seconds * 0.12, 2),
            "end_s": round(seconds * 0.85, 2),
            "output_tok_per_s": round(output * 1.15, 2),
            "total_tok_per_s": round(total * 1.12, 2),
            "request_per_s": round(requests / seconds * 1.1, 3),
            "concurrency": round(streams * 0.995, 2),
        },
        "timeline": timeline(streams, output, seconds, noise, running),
        "client_load": {"loop_lag_ms": distribution(0.9), "cpu_pct": min(96.0, 6 + streams / 16), "bound": False},
        "server_load": {
            "samples": int(seconds),
            "running_mean": min(streams, running) * 0.96,
            "running_max": min(streams, running),
            "queued_mean": max(0, streams - running) * 0.9,
            "queued_max": max(0, streams - running),
            "kv_usage_max_pct": 88.0,
            "prefix_cache_hit_pct": 0.2,
            "accept_length": None,
            "preemptions": 0,
        },
        "flush": {"proved": True, "how": "the cache's metrics fell to zero"},
        "sanity": {"checked": 16, "bad": 0},
    }


def died(streams: int, *, lengths: tuple[int, int] = (1024, 512), repeat: int = 1) -> dict[str, Any]:
    """The story's crash: PrefillMetadata, with the diagnosis."""
    return {
        "schema": "rackwell.bench_point/1",
        "concurrency": streams,
        "num_prompts": 4 * streams,
        "input_tokens": lengths[0],
        "output_tokens": lengths[1],
        "repeat": repeat,
        "status": "crashed",
        "valid": False,
        "reasons": [
            {
                "code": "bench-server-died",
                "what": "the server died during the measurement",
                "where": "rackwell-inference.service",
                "why": "its unit was started anew by systemd",
                "fix": "read `journalctl -u rackwell-inference.service`",
            }
        ],
        "lines": ["AttributeError: 'PrefillMetadata' object has no attribute 'page_table_1_flattened'"],
        "findings": [
            {
                "id": "nsa-prefill-metadata",
                "title": "the sparse attention backend lacks its flattened page table",
                "cause": "radix cache and FP8 KV cache take a path that does not fill it",
                "not": "it is no lack of memory",
                "remedy": "serve with a bf16 KV cache; `--disable-radix-cache` cures it incompletely",
            }
        ],
    }


def topology(gpus: int = 8) -> Topology:
    """Of GPUs on PCIe, four to a socket, one pair of them slow."""
    matrix: list[list[float | None]] = [
        [
            None if a == b else 53.1 - 0.07 * ((a * 3 + b) % 5) if a // 4 == b // 4 else 41.7 - 0.1 * b
            for b in range(gpus)
        ]
        for a in range(gpus)
    ]
    if gpus > 5:
        matrix[2][5] = 22.4
    sizes = {1 << p: 21.0 + (1 << p) / 9.0e5 * 40 for p in range(10, 28, 2)}
    return Topology(
        verdict="pass",
        date_utc="2026-11-29T09:40:00Z",
        boot_id="5f3a",
        allreduce_us=sizes,
        p2p_gb_per_s=matrix if gpus > 1 else [],
        p2p_latency_us=2.1,
        memory_gb_per_s=1590.0,
    )


def run(
    points: Sequence[dict[str, Any]],
    *,
    run_id: str = "20261129T101500Z-4f2a",
    date: str = "2026-11-29T10:15:00Z",
    container: str = "glm5-01",
    gpus: int = 8,
    patches: Sequence[str] = ("sglang/flashinfer-autotune-cutlass",),
    flags: dict[str, Any] | None = None,
) -> BenchResult:
    """A run of these points, with all that is told of its surroundings."""
    made = assemble(
        points,
        run_id=run_id,
        container=container,
        host="pve1",
        date_utc=date,
        bench="full",
        bench_digest="b1" * 32,
        release=Release(
            digest=("3f1c" if patches else "88e0") * 16,
            name="glm5-r2" if patches else "glm5-r1",
            sources={"sglang": "0.5.9", "flashinfer-python": "0.6.3"},
            patches=list(patches),
        ),
        profile=ProfileRef(
            name="glm5-nvfp4",
            digest=("a07b" if flags is None else "7712") * 16,
            model_path="/srv/models/glm-5",
            served_name="glm-5",
            repository="zai-org/GLM-5-NVFP4",
            revision="0" * 40,
            flags={
                "tp-size": gpus,
                "quantization": "modelopt_fp4",
                "max-running-requests": 1024,
                "disable-cuda-graph": True,
                "api-key": "***",
                **(flags or {}),
            },
        ),
    )
    return made.model_copy(
        update={
            "topology": topology(gpus),
            "environment": {"kernel": "6.14.11-4-pve", "driver": "595.58.03", "NCCL_P2P_LEVEL": "SYS"},
            "sweep": {"concurrency": sorted({p["concurrency"] for p in points}), "sample_hz": 5, "repeats": 1},
            "profile_content": {"flags": {**(made.profile.flags if made.profile else {})}},
        }
    )


@functools.cache
def story(*, seconds: float = 180.0, gpus: int = 8, repeats: int = 1) -> BenchResult:
    """The sweep with the patch."""
    return run(
        [
            point(streams, rates, seconds=seconds, gpus=gpus, repeat=repeat)
            for streams, rates in STORY.items()
            for repeat in range(1, repeats + 1)
        ],
        gpus=gpus,
    )


@functools.cache
def before(*, seconds: float = 180.0, repeats: int = 1) -> BenchResult:
    """The sweep without it, 64 requests running at a time, CUDA graphs on."""
    return run(
        [
            point(streams, rates, seconds=seconds, repeat=repeat, running=64)
            for streams, rates in BEFORE.items()
            for repeat in range(1, repeats + 1)
        ],
        run_id="20261128T090000Z-00aa",
        date="2026-11-28T09:00:00Z",
        patches=(),
        flags={"max-running-requests": 64, "disable-cuda-graph": False},
    )


@functools.cache
def rich() -> BenchResult:
    """Two lengths, three repeats, a crash, a point without all answers."""
    points = [point(s, STORY[s], seconds=30, repeat=r) for s in (16, 64, 256, 512) for r in (1, 2, 3)]
    points += [
        point(s, tuple(v * 0.6 for v in STORY[s]), seconds=30, repeat=r, lengths=(8192, 256))  # type: ignore[arg-type]
        for s in (16, 64, 256)
        for r in (1, 2, 3)
    ]
    points.append(died(512, lengths=(8192, 256)))
    failed = point(1024, STORY[1024], seconds=30)
    failed.update(
        valid=False,
        status="failed",
        reasons=[
            {
                "code": "bench-requests-failed",
                "what": "12 of 1,024 requests were not answered",
                "why": "the server answered `503` to them",
                "fix": "raise `max-queued-requests`, or measure fewer streams",
            }
        ],
        errors=[{"text": "HTTP 503 Service Unavailable", "count": 12}],
    )
    points.append(failed)
    return run(points)


@functools.cache
def imported() -> BenchResult:
    """A run of another tool that tells almost nothing."""
    bare = {
        "concurrency": 64,
        "num_prompts": 0,
        "input_tokens": 1024,
        "output_tokens": 512,
        "status": "measured",
        "valid": True,
    }
    rates = {"duration_s": 60.0, "request_per_s": 1.0, "input_tok_per_s": 0.0, "output_tok_per_s": 400.0}
    made = assemble(
        [{**bare, "throughput": {**rates, "total_tok_per_s": 1120.0}}],
        run_id="import-1",
        container="elsewhere",
        host="",
        date_utc="2026-11-01T00:00:00Z",
        bench="import",
    )
    origin = {"tool": "vllm bench serve", "version": "0.11", "file": "r.json", "sha256": "0" * 64, "lost": ["power"]}
    return BenchResult.model_validate({**made.as_json(), "origin": origin})


HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"q\" 'a'"


@functools.cache
def hostile() -> BenchResult:
    """Every text of others tries to become markup."""
    one = point(4, STORY[16], seconds=20, gpus=2)
    one["remarks"] = [HOSTILE]
    one["command"] = [HOSTILE]
    one["client"] = {"name": HOSTILE, "version": HOSTILE}
    one["server"] = {"version": HOSTILE, "model_path": HOSTILE, "served_model_name": HOSTILE, "tp_size": 2}
    one["flush"] = {"proved": True, "how": HOSTILE}
    for gpu in one["telemetry"]["gpus"]:
        gpu.update(name=HOSTILE, uuid=HOSTILE, bus_id=HOSTILE, throttle={HOSTILE: 0.5})
    two = died(8)
    two["lines"] = [HOSTILE]
    two["errors"] = [{"text": HOSTILE, "count": 1}]
    two["reasons"] = [dict.fromkeys(("code", "what", "where", "why", "fix"), HOSTILE)]
    two["findings"] = [dict.fromkeys(("id", "title", "cause", "not", "remedy"), HOSTILE)]
    made = run([one, two], container=HOSTILE, gpus=2, patches=[HOSTILE], flags={HOSTILE: HOSTILE})
    return made.model_copy(
        update={
            "run_id": HOSTILE,
            "host": HOSTILE,
            "bench": HOSTILE,
            "environment": {HOSTILE: HOSTILE},
            "sweep": {HOSTILE: HOSTILE},
        }
    )


def budgets(result: BenchResult) -> list[StepBudget]:
    """Made-up budgets in the form of the real ones: 156 allreduces of 290 us at one stream."""
    made = []
    for one in result.points:
        if not one.valid or one.latency.itl_ms is None:
            continue
        step = one.latency.itl_ms.p50
        parts = {"weights": 3.4 + one.concurrency * 0.05, "kv": one.concurrency * 0.02, "allreduce": 156 * 0.29}
        parts["rest"] = max(0.0, step - sum(parts.values()))
        titles = {"weights": "weights", "kv": "KV cache", "allreduce": "156 allreduces", "rest": "the rest"}
        made.append(
            StepBudget(
                load=one.load,
                batch=float(one.concurrency),
                experts_touched=8.0,
                step_ms=Figure(step, "ms", "measured"),
                floor_ms=sum(parts.values()) - parts["rest"],
                floor_share=(sum(parts.values()) - parts["rest"]) / step,
                parts=[Part(k, titles[k], v, v / step, "computed", "made up") for k, v in parts.items()],
                allreduces=156,
                allreduce_bytes=12288.0,
                allreduce_us=Figure(290.0, "us", "measured"),
                allreduce_limit_us=520.0,
                statements=[f"156 allreduces take {100 * 45.2 / step:.0f} % of a step of {step:.0f} ms"],
                assumptions=["memory bandwidth 1,590 GB/s, measured by `verify`", "12,288 bytes an allreduce"],
            )
        )
    return made


def comparison() -> Comparison:
    """Made up: one load faster, one inconclusive, two causes."""
    rows = [
        Row(
            load=(1024, 512, streams),
            metric="output_tok_per_s",
            title="output",
            unit="tok/s",
            baseline=100.0,
            candidate=100.0 * ratio,
            ratio=ratio,
            low=ratio * 0.95,
            high=ratio * 1.05,
            verdict=verdict,
            why="made up",
            measurements=(1, 3),
        )
        for streams, ratio, verdict in ((1, 1.01, "inconclusive"), (1024, 4.25, "faster"))
    ]
    changes = [Change("patch", "x", "absent", "applied"), Change("flag", "--y", "64", "1024")]
    return Comparison(
        baseline=["a"],
        candidate=["b"],
        rows=rows,
        rejected=[],
        only_baseline=[(64, 64, 2)],
        only_candidate=[],
        attribution=Attribution("refused", "2 things changed: x; --y 64 -> 1024", changes, [], "change one at a time"),
        notes=["one run a side"],
        min_effect=0.02,
        noise=0.03,
        confidence=0.95,
    )


#: Added to a page under test only: says what is wider than the window.
PROBE = """addEventListener("load", () => {
  /* acting */
  const wide = [...document.querySelectorAll("body *")].filter((each) => {
    const inside = each.closest(".scroll, .canvas, pre");
    return (!inside || inside === each) && each.getBoundingClientRect().right > innerWidth + 1
      && getComputedStyle(each).position !== "absolute";
  });
  document.body.dataset.overflow = Math.max(0, document.documentElement.scrollWidth - innerWidth);
  document.body.dataset.wide = wide.slice(0, 5).map((each) => each.tagName + "." + each.className).join(" ");
  document.body.dataset.dark = String(matchMedia("(prefers-color-scheme: dark)").matches);
  document.body.dataset.paper = getComputedStyle(document.body).backgroundColor;
});"""


def probed(page: str, acting: str = "") -> str:
    """The page with the probe in it, which its policy is told of. acting: a script that uses the page first."""
    script = PROBE.replace("/* acting */", acting)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def main(directory: Path) -> None:
    """Write pages to look at."""
    from rackwell import page as pages_of
    from rackwell.bench.compare import compare
    from rackwell.bench.report import FILTERS, PACKAGE, data, render, view

    told = view.view(story(), before(), compare(before(), story()), budgets(story()))
    pages = {
        "story": pages_of.render(PACKAGE, told.as_dict(), FILTERS, data.embedded(story())),
        "rich": render(rich(), before(seconds=60)),
        "imported": render(imported()),
        "one": render(story(gpus=1, seconds=40)),
        "hostile": render(hostile()),
    }
    for name, page in pages.items():
        (directory / f"{name}.html").write_text(page, encoding="utf-8")
        print(name, len(page.encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
