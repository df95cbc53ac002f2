# SPDX-License-Identifier: Apache-2.0
"""STAND-IN caches: a file where FlashInfer and SGLang would keep what they compiled and tuned at the first start."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

_PLACES = (
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer/stand-in/120f/cached_ops/lab/lab.so"),
    ("SGLANG_CACHE_DIR", "flashinfer/autotune/stand-in/sm120/rank_tp0.json"),
)


def stage(environment: Mapping[str, str]) -> str:
    """Write what is missing of them, where the environment names their directories. Returns the line to log."""
    paths = [Path(environment[name], path) for name, path in _PLACES if environment.get(name)]
    cold = [path for path in paths if not path.exists()]
    for path in cold:
        with contextlib.suppress(OSError):  # as the original: without its cache it compiles again the next time
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"stand-in\n" + hashlib.sha256(path.name.encode()).digest() * 256)
    return f"JIT cache: {len(paths) - len(cold)} of {len(paths)} files found, {len(cold)} compiled"
