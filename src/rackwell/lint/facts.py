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


class GpuFacts(Declared):
    """``gpus/NAME.yml``."""

    architecture: Annotated[str, pydantic.Field(pattern=r"^sm[0-9]+$")]
    memory_gib: float
    links: str
    source: str


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


def gpu_facts(catalog: Path, sites: Sequence[Path], name: str) -> dict[str, Any]:
    """What is known of the GPU called `name`, of rackwell's target when it is empty; empty when nothing is."""
    name = name or TARGET
    for folder in (*(site / "gpus" for site in sites), catalog / "gpus"):
        path = folder / f"{name}.yml"
        if files.is_file(path):
            facts = validate(GpuFacts, yamlsource.load(path), "GPU")
            return {"name": name, **facts.model_dump()}
    return {}
