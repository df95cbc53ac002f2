# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the benchmark results: ``python -m rackwell.bench.schemas DIRECTORY`` writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rackwell.bench.result import BenchPoint, BenchResult, Part
from rackwell.site import schema as schemas

MODELS: dict[str, type[Part]] = {"bench": BenchResult, "bench_point": BenchPoint}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of document `name`. Raises KeyError for an unknown one."""
    return schemas.of(MODELS[name], name)


def text(name: str) -> str:
    """The file of that schema."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"


def main(directory: Path) -> None:
    """Write every schema to `directory`."""
    for name in MODELS:
        (directory / f"rackwell.{name}.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
