# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the benchmark results: ``python -m rackwell.bench.schemas DIRECTORY`` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from rackwell.bench.result import BenchPoint, BenchResult, Part
from rackwell.site.schema import Published

MODELS: dict[str, type[Part]] = {"bench": BenchResult, "bench_point": BenchPoint}
PUBLISHED = Published(MODELS)

if __name__ == "__main__":
    PUBLISHED.write(Path(sys.argv[1]))
