# SPDX-License-Identifier: Apache-2.0
"""Contexts as the examples of rule files write them: what is not given is as a plain profile on the target has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell.lint.context import Context
from rackwell.lint.facts import gpu_facts, model_facts
from rackwell.lint.tables import Tables

KEYS = {
    "sglang", "flashinfer", "python", "flags", "environment", "limits", "server", "sane", "model", "gpu", "gpus",
    "machine", "patches", "packages", "dependencies", "probe_environment", "role", "untabled",
}  # fmt: skip


def context(given: Mapping[str, Any], catalog: Path, tables: Tables) -> Context:
    """The context of an example.

    Raises:
        ValueError: a key is not one of `KEYS`.
    """
    if unknown := sorted(set(given) - KEYS):
        raise ValueError(f"an example has no {', '.join(unknown)}")
    sglang, flashinfer = given.get("sglang", "0.5.9"), given.get("flashinfer", "0.6.3")
    model = given.get("model", {})
    plain = {"host": "127.0.0.1", "port": 30000}
    return Context(
        role=given.get("role", "server"),
        sglang=sglang,
        flashinfer=flashinfer,
        python=given.get("python", "3.11"),
        table=tables.get("sglang", sglang) if sglang else None,
        flashinfer_table=tables.get("flashinfer-python", flashinfer) if flashinfer else None,
        flags=given.get("flags", {}),
        environment={key: str(value) for key, value in given.get("environment", {}).items()},
        limits={"ready_timeout": 5400, "stop_timeout": 120, "nofile": 1048576, **given.get("limits", {})},
        server={**plain, **given.get("server", {})},
        sane=given.get("sane", {}),
        model=model_facts(catalog, [], str(model)) if isinstance(model, str) else model,
        gpu={**gpu_facts(catalog, [], given.get("gpu", "")), "count": given.get("gpus", 8)},
        machine=given.get("machine", {}),
        patches=frozenset(given.get("patches", [])),
        packages={str(key): str(value) for key, value in given.get("packages", {}).items()},
        dependencies=given.get("dependencies", "full"),
        untabled=given.get("untabled", ""),
        probe_environment=given.get("probe_environment", {}),
    )
