# SPDX-License-Identifier: Apache-2.0
"""What is known of models and GPUs: ``catalog/models`` and ``catalog/gpus``, and the same two directories of a site."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from rackwell.site import files, yamlsource
from rackwell.site.validation import Declared, validate

TARGET = "rtx-pro-6000-blackwell"
"""What rackwell is for; what a profile that names no GPU is taken to be written for."""


class Attention(Declared):
    """Shape of one layer's attention: latent (`kv_lora`) or with heads of keys and values (`kv_heads`, `head_dim`)."""

    heads: int
    q_lora: int | None = None
    kv_lora: int | None = None
    rope: int = 0
    nope: int = 0
    value: int = 0
    kv_heads: int | None = None
    head_dim: int = 0


class Indexer(Declared):
    """What chooses the positions that sparse attention reads."""

    heads: int
    dim: int
    topk: int


class BytesPerWeight(Declared):
    """As the checkpoint stores them, scales included."""

    experts: float
    other: float


class DecodeShape(Declared):
    """What one decode step reads: names of the model's ``config.json``, in plain words."""

    layers: int
    hidden: int
    vocab: int
    attention: Attention
    indexer: Indexer | None = None
    dense_layers: int = 0
    dense_intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    bytes_per_weight: BytesPerWeight
    source: str


class GpuMemory(Declared):
    """Memory bandwidth of a variant of a GPU, in 1e9 bytes a second."""

    match: str
    """Pattern that is searched in the driver's name, without regard to case."""
    gb_per_s: float
    source: str


class ReportedAllreduce(Declared):
    """Latencies of an allreduce that somebody else measured on these GPUs. us: by bytes."""

    ranks: int
    us: dict[int, float]
    source: str


class ModelFacts(Declared):
    """``models/NAME.yml``. Every number is the model's own; `source` says where it is from."""

    match: Annotated[list[str], pydantic.Field(min_length=1)]
    """Patterns of the name of its directory, without regard to case."""
    architecture: str
    source: str
    sparse_attention: bool = False
    quantization: str | None = None
    shared_expert: str | None = None
    """dtype of the shared expert, where it is not that of the others."""
    mtp: bool | None = None
    """Whether the checkpoint has layers for multi-token prediction."""
    disk_gb: float | None = None
    resident_gb: float | None = None
    """Weights in GPU memory over all ranks, in 1e9 bytes."""
    kv_values_per_token: int | None = None
    """Values of the KV cache of a token, over all layers."""
    kv_replicated: bool = False
    """Whether each rank keeps all of it, as latent attention does."""
    heads: int | None = None
    context_length: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    remote_code: bool = False
    first_sglang: str | None = None
    decode: DecodeShape | None = None
    """For where the time of a step goes."""


class GpuFacts(Declared):
    """``gpus/NAME.yml``."""

    architecture: Annotated[str, pydantic.Field(pattern=r"^sm[0-9]+$")]
    memory_gib: float
    links: str
    source: str
    memory: tuple[GpuMemory, ...] = ()
    allreduce: ReportedAllreduce | None = None


def _models(folder: Path) -> list[tuple[str, ModelFacts]]:
    return [
        (path.stem, validate(ModelFacts, yamlsource.load(path), "model"))
        for path in sorted(folder.glob("*.yml"))
        if files.is_file(path)
    ]


def model_facts(catalog: Path, sites: Sequence[Path], name: str) -> dict[str, Any]:
    """What is known of the model called `name`, or whose directory is called so; empty when nothing is.

    Raises:
        RackwellError: a file of facts does not hold (exit 2).
    """
    for folder in (*(site / "models" for site in sites), catalog / "models"):
        for stem, facts in _models(folder):
            patterns = [re.escape(stem), *facts.match]
            if any(re.fullmatch(pattern, name, re.IGNORECASE) for pattern in patterns):
                return {"name": stem, **facts.model_dump()}
    return {}


def gpu_called(catalog: Path, sites: Sequence[Path], driver_name: str) -> tuple[GpuFacts, GpuMemory] | None:
    """The GPU that the driver calls so, and the memory of that variant; None when it is not known."""
    for folder in (*(site / "gpus" for site in sites), catalog / "gpus"):
        for path in sorted(folder.glob("*.yml")):
            facts = validate(GpuFacts, yamlsource.load(path), "GPU")
            for memory in facts.memory:
                if re.search(memory.match, driver_name, re.IGNORECASE):
                    return facts, memory
    return None


def gpu_facts(catalog: Path, sites: Sequence[Path], name: str) -> dict[str, Any]:
    """What is known of the GPU called `name`, of rackwell's target when it is empty; empty when nothing is."""
    name = name or TARGET
    for folder in (*(site / "gpus" for site in sites), catalog / "gpus"):
        path = folder / f"{name}.yml"
        if files.is_file(path):
            facts = validate(GpuFacts, yamlsource.load(path), "GPU")
            return {"name": name, **facts.model_dump()}
    return {}
