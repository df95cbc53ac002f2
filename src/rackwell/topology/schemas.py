# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the documents about GPUs: ``python -m rackwell.topology.schemas DIRECTORY`` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from rackwell.site.schema import Published
from rackwell.topology.baseline import Baseline
from rackwell.topology.gate import Gate
from rackwell.topology.model import Part
from rackwell.topology.report import GpuReport

MODELS: dict[str, type[Part]] = {"gpu": GpuReport, "gpu_baseline": Baseline, "gate": Gate}
PUBLISHED = Published(MODELS)

if __name__ == "__main__":
    PUBLISHED.write(Path(sys.argv[1]))
