# SPDX-License-Identifier: Apache-2.0
"""Points as flat rows, for spreadsheets and programs: plain numbers, units in the names, None for what is not known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rackwell.bench.result import BenchPoint, BenchResult, Distribution

_LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
_SHARES = ("mean", "p50", "p90", "p95", "p99")


def rows(result: BenchResult, run: str) -> Iterator[dict[str, Any]]:
    """A row for each point of `result`; every row has the same columns in the same order.

    Args:
        run: the run's name in the store.
    """
    release, profile = result.release, result.profile
    head = {
        "run": run,
        "container": result.container,
        "host": result.host,
        "date_utc": result.date_utc,
        "sweep": result.bench,
        "build": release.name if release else None,
        "release": release.digest if release else None,
        "profile": profile.name if profile else None,
        "profile_digest": profile.digest if profile else None,
        "gpus": result.hardware.summary if result.hardware.gpus else None,
        "driver": result.hardware.driver_version,
        "origin": result.origin.tool if result.origin else None,
    }
    for point in result.points:
        yield {**head, **_point(point)}


def _point(point: BenchPoint) -> dict[str, Any]:
    rate, tokens, requests = point.throughput, point.tokens, point.requests
    seen, steady, client, server = point.telemetry, point.steady, point.client_load, point.server_load
    latencies = {name: getattr(point.latency, name) for name in _LATENCIES}
    return {
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "concurrency": point.concurrency,
        "repeat": point.repeat,
        "seed": point.seed,
        "started_utc": point.started_utc,
        "status": point.status,
        "valid": point.valid,
        "reasons": " ".join(reason.code for reason in point.reasons) or None,
        "client_bound": point.client_bound if client is not None else None,
        "requests": requests.requested if requests else point.num_prompts,
        "completed": requests.completed if requests else None,
        "failed": requests.failed if requests else None,
        "output_tokens_received": tokens.output_received if tokens else None,
        "duration_s": rate.duration_s if rate else None,
        "request_per_s": rate.request_per_s if rate else None,
        "output_tok_per_s": rate.output_tok_per_s if rate else None,
        "total_tok_per_s": rate.total_tok_per_s if rate else None,
        "concurrency_achieved": rate.concurrency_achieved if rate else None,
        "steady_output_tok_per_s": steady.output_tok_per_s if steady else None,
        "steady_total_tok_per_s": steady.total_tok_per_s if steady else None,
        **{
            f"{name.removesuffix('_ms')}_{share}_ms": _share(latencies[name], share)
            for name in _LATENCIES
            for share in _SHARES
        },
        "server_running_mean": server.running_mean if server else None,
        "prefix_cache_hit_pct": server.prefix_cache_hit_pct if server else None,
        "power_w_all_gpus": seen.mean_power_w if seen else None,
        "power_limit_w_all_gpus": seen.power_limit_w if seen else None,
        "utilization_pct": seen.mean_utilization_pct if seen else None,
        "energy_j": seen.energy_j if seen else None,
        "joules_per_output_token": point.joules_per_output_token,
    }


def _share(distribution: Distribution | None, share: str) -> float | None:
    return getattr(distribution, share) if distribution is not None else None


def as_csv(found: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV with a head line (RFC 4180); empty when there is none."""
    if not found:
        return ""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_plain(row) for row in found)
    return stream.getvalue()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: ("true" if value else "false") if isinstance(value, bool) else _unarmed(value)
        for key, value in row.items()
    }


def _unarmed(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value


def as_jsonl(found: Sequence[dict[str, Any]]) -> str:
    """A JSON object a line."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in found)
