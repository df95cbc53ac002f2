# SPDX-License-Identifier: Apache-2.0
"""Results of other tools as runs: ``sglang.bench_serving`` JSONL, ``vllm bench serve`` JSON, aiperf JSON.

What a tool does not tell is listed in the run's ``origin.lost``, and is None in its points; nothing is made up.
"""

from __future__ import annotations

from rackwell.bench.imports.reading import read

__all__ = ["read"]
