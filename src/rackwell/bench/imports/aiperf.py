# SPDX-License-Identifier: Apache-2.0
"""aiperf's ``profile_export_aiperf.json``: one object, a metric each with its unit, averages and percentiles."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from rackwell.bench.imports import foreign
from rackwell.bench.imports.foreign import NotThisError, Told
from rackwell.bench.result import BenchPoint, Distribution, Latency, Reason, RequestError, Requests, Throughput, Tokens

TOOL = "aiperf"
LOST = [
    "how many output tokens were asked for",
    "the version of the server",
    "GPU telemetry by our clock (its own is a mean over the whole run, and is not taken)",
    "whether the prefix cache was flushed",
]
_TO_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}


def knows(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such an export."""
    rate, latency = data.get("request_throughput"), data.get("request_latency")
    return isinstance(rate, Mapping) and isinstance(latency, Mapping) and "unit" in latency


def read(data: Mapping[str, Any]) -> Told:
    """The point of one export. Raises NotThisError when a figure that every point needs is missing."""
    completed = int(_needed(data, "request_count"))
    failed_ = _value(data, "error_request_count")
    failed = int(failed_ or 0)
    if not completed:
        raise NotThisError("not one request was answered")
    prompt, answer = _needed(data, "input_sequence_length"), _needed(data, "output_sequence_length")
    received = int(_value(data, "total_osl") or _value(data, "total_output_tokens") or round(answer * completed))
    sent = int(_value(data, "total_isl") or round(prompt * completed))
    seconds = _milliseconds(data, "benchmark_duration", "avg")
    rate = _needed(data, "output_token_throughput")
    duration = seconds / 1e3 if seconds else received / rate
    streams = _concurrency(data.get("input_config"))
    remarks = ["The lengths are means over all requests."]
    if streams is None:
        streams = completed + failed
        remarks.append("No concurrency is told: requests were sent at a rate, or by another plan.")
    reasons = foreign.judged(failed, None, None, None)
    if data.get("was_cancelled") or data.get("is_complete") is False:
        why = str(data.get("incomplete_reason") or "it was cancelled")
        reasons.append(Reason(code="bench-incomplete", what="the run did not come to its end", why=why))
    point = BenchPoint(
        concurrency=streams,
        num_prompts=completed + failed,
        input_tokens=max(1, round(prompt)),
        output_tokens=max(1, round(answer)),
        seed=_seed(data),
        status="measured",
        valid=not reasons,
        reasons=reasons,
        remarks=remarks,
        errors=_errors(data.get("error_summary")),
        started_utc=_date(data.get("start_time")),
        requests=Requests(requested=completed + failed, completed=completed, failed=failed),
        tokens=Tokens(input=sent, output_requested=received, output_received=received),
        throughput=Throughput(
            duration_s=duration,
            request_per_s=_needed(data, "request_throughput"),
            input_tok_per_s=sent / duration if duration else 0,
            output_tok_per_s=rate,
            total_tok_per_s=_value(data, "total_token_throughput") or (rate + (sent / duration if duration else 0)),
        ),
        latency=Latency(
            ttft_ms=_distribution(data, "time_to_first_token"),
            # its inter-token latency is one mean for each request, which everybody else calls TPOT
            tpot_ms=_distribution(data, "inter_token_latency"),
            itl_ms=_distribution(data, "inter_chunk_latency"),
            e2e_ms=_distribution(data, "request_latency"),
        ),
    )
    lost = [*LOST, "single latencies"]
    if failed_ is None:
        lost.append("failed requests where there were none: it leaves the figure out")
    version = data.get("aiperf_version")
    return Told([point], lost, point.started_utc, str(version) if version else None, TOOL, _model(data))


def _metric(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def _value(data: Mapping[str, Any], name: str) -> float | None:
    return foreign.number(_metric(data, name), "avg")


def _needed(data: Mapping[str, Any], name: str) -> float:
    value = _value(data, name)
    if value is None:
        raise NotThisError(f"'{name}.avg' is no number")
    return value


def _milliseconds(data: Mapping[str, Any], name: str, share: str) -> float | None:
    metric = _metric(data, name)
    value, factor = foreign.number(metric, share), _TO_MS.get(str(metric.get("unit")))
    return None if value is None or factor is None else value * factor


def _distribution(data: Mapping[str, Any], name: str) -> Distribution | None:
    mean, median = _milliseconds(data, name, "avg"), _milliseconds(data, name, "p50")
    if mean is None or median is None:
        return None
    shares = {share: _milliseconds(data, name, share) for share in ("min", "max", "p90", "p95", "p99")}
    return Distribution(mean=mean, p50=median, **shares)


def _concurrency(config: Any) -> int | None:
    """Of the phase that is measured; in versions before phases, of the load generator."""
    if not isinstance(config, Mapping):
        return None
    phases = config.get("phases")
    if isinstance(phases, list):
        measured = [one for one in phases if isinstance(one, Mapping) and one.get("name") != "warmup"]
        return next((found for one in measured if (found := foreign.whole(one, "concurrency"))), None)
    load = config.get("loadgen")
    return foreign.whole(load, "concurrency") if isinstance(load, Mapping) else None


def _seed(data: Mapping[str, Any]) -> int:
    info = data.get("run_info")
    return (foreign.whole(info, "random_seed") if isinstance(info, Mapping) else None) or 0


def _model(data: Mapping[str, Any]) -> str | None:
    config = data.get("input_config")
    models = (config.get("models") or config.get("model_names")) if isinstance(config, Mapping) else None
    if isinstance(models, Mapping):
        models = models.get("items")
    first = models[0] if isinstance(models, list) and models else models
    name = first.get("name") if isinstance(first, Mapping) else first
    return name if isinstance(name, str) else None


def _errors(found: Any) -> list[RequestError]:
    rows = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

    def text(row: Mapping[str, Any]) -> str:
        details = row.get("error_details")
        return str(details.get("message") or details.get("type") if isinstance(details, Mapping) else details)[:400]

    return [RequestError(text=text(row), count=foreign.whole(row, "count") or 1) for row in rows[:5]]


def _date(value: Any) -> str | None:
    """Its times have no zone: they are of the machine that measured, and are taken for UTC."""
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).isoformat(timespec="seconds")
