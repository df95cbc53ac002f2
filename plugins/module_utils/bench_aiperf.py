# SPDX-License-Identifier: Apache-2.0
"""Reads what aiperf (as of 0.13.0, read in its source) writes with ``--export-level records``."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Mapping, Optional


def _metric(record: Mapping[str, Any], name: str) -> Any:
    """Value of a metric of a record: a number, or a list of them; None when it is not there."""
    found = (record.get("metrics") or {}).get(name)
    return found.get("value") if isinstance(found, dict) else None


def read(text: str) -> Optional[Dict[str, Any]]:
    """``profile_export.jsonl`` in the shape of ``sglang.bench_serving``'s line. Latencies in it are milliseconds.

    Records of the warm-up are left out. Its times are of the wall clock: ``starts_wall``.
    """
    records = []
    for row in text.splitlines():
        try:
            record = json.loads(row)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and (record.get("metadata") or {}).get("benchmark_phase") == "profiling":
            records.append(record)
    if not records:
        return None
    records.sort(key=lambda record: record["metadata"]["request_start_ns"])
    line = {key: [] for key in ("input_lens", "output_lens", "ttfts", "itls", "errors", "starts_wall")}  # type: Dict[str, Any]
    for record in records:
        error = record.get("error")
        gaps = _metric(record, "inter_chunk_latency") or []
        line["input_lens"].append(int(_metric(record, "input_sequence_length") or 0))
        line["output_lens"].append(int(_metric(record, "output_sequence_length") or 0))
        line["ttfts"].append(float(_metric(record, "time_to_first_token") or 0) / 1e3)
        line["itls"].append([float(gap) / 1e3 for gap in gaps])
        line["errors"].append("" if not error else str(error.get("message") or error.get("type") or "failed"))
        line["starts_wall"].append(record["metadata"]["request_start_ns"] / 1e9)
    good = [i for i, error in enumerate(line["errors"]) if not error]
    ends = [record["metadata"]["request_end_ns"] / 1e9 for record in records]
    duration = max(ends) - min(line["starts_wall"])
    sent, received = (sum(line[key][i] for i in good) for key in ("input_lens", "output_lens"))
    latency = sum(line["ttfts"][i] + math.fsum(line["itls"][i]) for i in good)
    line.update(
        duration=duration,
        completed=len(good),
        total_input_tokens=sent,
        total_output_tokens=received,
        request_throughput=len(good) / duration,
        input_throughput=sent / duration,
        output_throughput=received / duration,
        total_throughput=(sent + received) / duration,
        concurrency=latency / duration,
    )
    return line
