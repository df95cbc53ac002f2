# SPDX-License-Identifier: Apache-2.0
"""The stand-in engine on the path, and a small package in the place of sglang's for it to read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "lab" / "engine"
sys.path.insert(0, str(ENGINE))

# every form in which the original defines its options
SERVER_ARGS = """
import argparse
import dataclasses
from sglang.srt.parsers import ToolParser, TARGETS as LORA_TARGETS

KINDS = ["triton", "flashinfer_cutlass"]
MORE_KINDS = [*KINDS, "unquant"]
SAMPLING = {"pytorch", "flashinfer"}
PREFIXES = ()


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    tp_size: int = 1
    api_key: str | None = None
    admin_api_key: str | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    moe_runner_backend: str = KINDS[0]
    disable_flashinfer_autotune: bool = False
    disable_cuda_graph: bool = False
    enable_metrics: bool = False
    preferred_sampling_params: str | None = None
    weight_version: str = "default"
    fraction: float = 0.9
    made_up: list = dataclasses.field(default_factory=list)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        choices = list(ToolParser.Enum.keys())
        rule = ("a" "b")
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--tokenizer-path", type=str, default=ServerArgs.tokenizer_path)
        parser.add_argument("--served-model-name", type=str, default=ServerArgs.served_model_name)
        parser.add_argument("--host", type=str, default=ServerArgs.host, help=f"rule {rule}")
        parser.add_argument("--port", type=int, default=ServerArgs.port)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size)
        parser.add_argument("--api-key", type=str, default=ServerArgs.api_key)
        parser.add_argument("--admin-api-key", type=str, default=None)
        parser.add_argument("--context-length", type=int, default=ServerArgs.context_length)
        parser.add_argument("--max-running-requests", type=int, default=ServerArgs.max_running_requests)
        parser.add_argument("--moe-runner-backend", type=str, choices=KINDS, default=ServerArgs.moe_runner_backend)
        parser.add_argument("--draft", type=str, choices=MORE_KINDS)
        parser.add_argument("--sampling", type=str, choices=SAMPLING)
        parser.add_argument("--tool", type=str, choices=choices)
        parser.add_argument("--lora", type=str, choices=LORA_TARGETS + ["all"], nargs="*", action=LoRAPathAction)
        parser.add_argument("--prefixes", type=str, default=list(PREFIXES), nargs="*")
        parser.add_argument("--json", type=json.loads, default=None)
        parser.add_argument("--json-list", type=json_list_type, default=None)
        parser.add_argument("--revision", type=nullable_str, default=None)
        parser.add_argument("--fraction", type=float, default=-1.5)
        parser.add_argument("--disable-cuda-graph", action="store_true")
        parser.add_argument("--disable-flashinfer-autotune", action="store_true")
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--old", action=DeprecatedAction)
        parser.add_argument("--config", type=str)
"""
PARSERS = """
TARGETS = ["q_proj"]


class ToolParser:
    Enum: dict = {"glm45": object, "glm47": object}
"""
MODEL_RUNNER = """
class ModelRunner:
    def _should_run_flashinfer_autotune(self):
        if self.backend not in [
            "flashinfer_trtllm",
            # "flashinfer_cutlass",
        ]:
            return False
        return True
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of a package ``sglang`` with the modules that the stand-in reads."""
    root = tmp_path / "site" / "sglang"
    for name, text in {
        "__init__": "",
        "srt/__init__": "",
        "srt/server_args": SERVER_ARGS,
        "srt/parsers": PARSERS,
        "srt/model_executor/__init__": "",
        "srt/model_executor/model_runner": MODEL_RUNNER,
    }.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory; its engine loads in no time and decodes fast."""
    path = tmp_path / "toy"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["Toy"], "max_position_embeddings": 256}))
    behaviour = {"load_seconds": 0, "warmup_seconds": 0, "health_seconds": 0, "drain_poll_seconds": 0.01, "speed": 20}
    (path / "rackwell-lab-engine.json").write_text(json.dumps(behaviour))
    return path


@pytest.fixture
def environment(package: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes the environment of an engine process; ``faults`` go into it."""

    def make(**faults: object) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": f"{package.parent}:{ENGINE}",
            "RACKWELL_LAB_LOAD": str(tmp_path / "load"),
            "RACKWELL_LAB_ENGINE": json.dumps({"faults": faults}),
        }

    return make
