# SPDX-License-Identifier: Apache-2.0
"""What is known of a run for the time of its steps: model, GPU, allreduce, and the steps themselves."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rackwell.bench.result import BenchPoint, BenchResult
from rackwell.bench.steptime_model import from_config
from rackwell.bench.steptime_types import Figure
from rackwell.lint.facts import DecodeShape, GpuFacts, GpuMemory, ReportedAllreduce, gpu_called, model_facts

_FP8 = ("fp8_e4m3", "fp8_e5m2")
#: attention backends that read every position, also of a model with sparse attention
_DENSE = ("flashinfer", "triton", "fa3", "fa4", "torch_native", "trtllm_mla", "cutlass_mla", "flashmla")


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """For all steps of a run.

    Attributes:
        ranks: tensor parallel size. bandwidth: of one GPU's memory, GB/s. kv_bytes: of a value of the KV cache.
        kv_known: how that is known. dense: whether attention reads every position. running: the most streams that
            the server lets decode together. gpus: that the machine was validated with.
    """

    shape: DecodeShape
    model: str
    ranks: int
    bandwidth: Figure
    kv_bytes: float
    kv_known: str
    dense: bool
    running: float
    measured_us: dict[int, float]
    reported: ReportedAllreduce | None
    custom_allreduce: bool
    gpus: int

    def allreduce(self, size: float) -> Figure:
        """Latency of one allreduce of `size` bytes: measured on this machine, else reported of such GPUs."""
        if self.measured_us:
            all_gpus = f", over all {self.gpus} GPUs" if self.gpus not in (0, self.ranks) else ""
            source = f"the newest `rackwell verify` of this machine{all_gpus}"
            return Figure(between(self.measured_us, size), "us", "measured", source)
        found = self.reported
        # of somebody else's machine nothing is reckoned beyond what was measured there
        if found and found.us and size <= 1.5 * max(found.us):
            least = ", so the least it can be here" if found.ranks < self.ranks else ""
            who = f"reported by others for {found.ranks} such GPUs{least}: {found.source}"
            return Figure(between(found.us, size), "us", "reported", who)
        return Figure(None, "us", "unknown", "no allreduce was measured: `rackwell verify` does it")


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A measured step. batch: streams that decoded together."""

    time: Figure
    batch: float


def facts_of(result: BenchResult, sites: Sequence[Path]) -> tuple[Facts | None, str]:
    """All of it, or None and what is missing."""
    from rackwell import shipped

    catalog = shipped.catalog()
    shape, model = _shape(result, catalog, sites)
    if shape is None:
        return None, f"the shape of the model {model or '(unknown)'} is not known: describe it in models/ of the site"
    flags = _flags(result)
    why = _not_modelled(flags, result)
    if why:
        return None, why
    names = {gpu.name for gpu in result.hardware.gpus}
    found = _gpu(catalog, tuple(sites), next(iter(names))) if len(names) == 1 else None
    gpu, memory = found or (None, None)
    bandwidth = Figure(memory.gb_per_s, "GB/s", "data sheet", memory.source) if memory else None
    if result.topology and result.topology.memory_gb_per_s:
        source = "the newest `rackwell verify` of this machine"
        bandwidth = Figure(result.topology.memory_gb_per_s, "GB/s", "measured", source)
    if any("stand-in" in name for name in names):
        return None, "the GPUs are the laboratory's stand-ins: their figures are those of a model"
    if bandwidth is None:
        named = ", ".join(sorted(names)) or "(unknown)"
        return None, f"the memory bandwidth of {named} is not known: describe it in gpus/ of the site"
    each, kv_known = _kv(flags, shape)
    backend = str(flags.get("decode-attention-backend") or flags.get("attention-backend") or "")
    told = not any(key.startswith(("dsa-decode", "nsa-decode")) for key in flags)
    limit = flags.get("max-running-requests")
    return (
        Facts(
            shape=shape,
            model=model,
            ranks=_ranks(result, flags),
            bandwidth=bandwidth,
            kv_bytes=each,
            kv_known=kv_known,
            dense=shape.indexer is None or (told and backend in _DENSE),
            running=float(limit) if isinstance(limit, int) else math.inf,
            measured_us=dict(result.topology.allreduce_us) if result.topology else {},
            reported=gpu.allreduce if gpu else None,
            custom_allreduce=not flags.get("disable-custom-all-reduce"),
            gpus=len(result.hardware.gpus),
        ),
        "",
    )


def step_of(point: BenchPoint, facts: Facts) -> Step | None:
    """How long a step took: between two tokens of a stream, else from the rate."""
    rate = point.throughput
    if rate is None or (rate.accept_length or 1.0) > 1.05:
        return None
    load = point.server_load
    seen = [load.running_mean if load else None, point.steady.concurrency if point.steady else None]
    streams = next((v for v in [*seen, rate.concurrency_achieved, float(point.concurrency)] if v), 1.0)
    batch = max(1.0, min(streams, float(point.concurrency), facts.running))
    held = 1.0
    if point.tokens and point.tokens.output_chunks:
        held = max(1.0, point.tokens.output_received / point.tokens.output_chunks)
    for name, distribution, tokens in (
        ("median time between chunks", point.latency.itl_ms, held),
        ("median time for each output token", point.latency.tpot_ms, 1.0),
    ):
        if distribution and distribution.p50 > 0:
            said = f"{name}, of {tokens:.2f} tokens each" if tokens > 1.05 else name
            return Step(Figure(distribution.p50 / tokens, "ms", "measured", said), batch)
    if rate.output_tok_per_s > 0:
        source = "streams over output tok/s, so prefill, ramp and tail are in it"
        return Step(Figure(1e3 * batch / rate.output_tok_per_s, "ms", "computed", source), batch)
    return None


def between(known: Mapping[int, float], size: float) -> float:
    """Latency at a size between those measured, on logarithmic scales; beyond them that of the nearest.

    Below the smallest it hardly changes; above the largest the time grows with the size.
    """
    sizes = sorted(known)
    if size <= sizes[0]:
        return known[sizes[0]]
    if size >= sizes[-1]:
        return known[sizes[-1]] * size / sizes[-1]
    high = next(s for s in sizes if s >= size)
    low = sizes[sizes.index(high) - 1]
    part = math.log(size / low) / math.log(high / low)
    return math.exp(math.log(known[low]) * (1 - part) + math.log(known[high]) * part)


def _shape(result: BenchResult, catalog: Path, sites: Sequence[Path]) -> tuple[DecodeShape | None, str]:
    """Of the config.json that the result carries, else of the catalogue; and the model's name."""
    model = result.profile_content.get("model") or {}
    path = (result.profile.model_path if result.profile else None) or model.get("path")
    server = next((p.server.model_path for p in result.points if p.server.model_path), None)
    repository = (result.profile.repository if result.profile else None) or model.get("repository")
    names = [str(n) for n in (model.get("facts"), *map(_last, (path, repository, server))) if n]
    for config in (model.get("config"), result.environment.get("model_config")):
        if isinstance(config, dict) and (shape := from_config(config)) is not None:
            return shape, names[0] if names else ""
    for name in names:
        known = _model(catalog, tuple(sites), name)
        if known is not None:
            return known, name
    return None, names[0] if names else ""


@functools.lru_cache(maxsize=32)
def _model(catalog: Path, sites: tuple[Path, ...], name: str) -> DecodeShape | None:
    found = model_facts(catalog, sites, name).get("decode")
    return DecodeShape.model_validate(found) if found else None


@functools.lru_cache(maxsize=32)
def _gpu(catalog: Path, sites: tuple[Path, ...], name: str) -> tuple[GpuFacts, GpuMemory] | None:
    return gpu_called(catalog, sites, name)


def _last(path: object) -> str:
    return PurePosixPath(str(path)).name if path else ""


def _flags(result: BenchResult) -> dict[str, Any]:
    found = result.profile_content.get("flags") or (result.profile.flags if result.profile else {})
    return dict(found)


def _ranks(result: BenchResult, flags: Mapping[str, Any]) -> int:
    asked = flags.get("tp-size") or flags.get("tensor-parallel-size") or flags.get("tp")
    served = next((p.server.tp_size for p in result.points if p.server.tp_size), None)
    return int(served or asked or 1)


def _not_modelled(flags: Mapping[str, Any], result: BenchResult) -> str:
    accepted = [p.throughput.accept_length or 1.0 for p in result.points if p.throughput]
    if flags.get("speculative-algorithm") or max(accepted, default=1.0) > 1.05:
        return "speculative decoding: a step checks several tokens of a stream, which is not reckoned"
    for flag in ("enable-dp-attention", "attn-dp-size", "dp-size", "pp-size", "nnodes"):
        value = flags.get(flag)
        if value is True or value not in (None, False, 1, "1"):
            return f"--{flag}: the ranks do not all do the same, which is not reckoned"
    return ""


def _kv(flags: Mapping[str, Any], shape: DecodeShape) -> tuple[float, str]:
    """Bytes of a value of the KV cache, and how that is known."""
    asked = str(flags.get("kv-cache-dtype") or "auto")
    if asked in _FP8:
        return 1.0, f"--kv-cache-dtype {asked}"
    if asked.startswith("fp4"):
        return 0.5, f"--kv-cache-dtype {asked}"
    if asked != "auto":
        return 2.0, f"--kv-cache-dtype {asked}"
    if shape.indexer:
        return 1.0, "not asked for: fp8, as the engine chooses for sparse attention on Blackwell"
    return 2.0, "not asked for: 16 bits"
