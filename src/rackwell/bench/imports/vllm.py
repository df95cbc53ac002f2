# SPDX-License-Identifier: Apache-2.0
"""``vllm bench serve``: an object, or one a line with ``--append-result``; lists only with ``--save-detailed``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from rackwell.bench.imports import foreign
from rackwell.bench.imports.foreign import NotThisError, Told
from rackwell.bench.result import BenchPoint, Latency, Requests, Throughput, Tokens

TOOL = "vllm bench serve"
LOST = [
    "GPU power, utilisation and clocks",
    "the versions of client and server",
    "how many output tokens were asked for",
    "whether the prefix cache was flushed",
]


def knows(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a result."""
    return {"endpoint_type", "model_id", "duration", "total_token_throughput"} <= data.keys() or (
        {"backend", "model_id", "duration", "total_token_throughput"} <= data.keys()
    )


def read(data: Mapping[str, Any]) -> Told:
    """The point of one result. Raises NotThisError when a figure that every point needs is missing."""
    completed = int(foreign.needed(data, "completed"))
    requested = foreign.whole(data, "num_prompts") or completed
    if not completed:
        raise NotThisError("not one request was answered")
    if foreign.number(data, "output_throughput") is None:
        raise NotThisError("it has no output tokens: embeddings and the like are no decoding")
    told_failed = foreign.whole(data, "failed")
    failed = told_failed if told_failed is not None else requested - completed
    received = int(foreign.needed(data, "total_output_tokens"))
    prompt = int(foreign.needed(data, "total_input_tokens"))
    streams = foreign.whole(data, "max_concurrency")
    duration = foreign.needed(data, "duration")
    remarks = ["The lengths are means over all requests: the file does not say what was asked for."]
    if not streams:
        streams = requested
        remarks.append("No limit of requests in flight was set: all of them were sent at the request rate.")
    latency, samples = _latency(data)
    reasons = foreign.judged(failed, None, None, None)
    point = BenchPoint(
        concurrency=streams,
        num_prompts=requested,
        input_tokens=max(1, round(prompt / completed)),
        output_tokens=max(1, round(received / completed)),
        status="measured",
        valid=not reasons,
        reasons=reasons,
        remarks=remarks,
        errors=foreign.errors(data.get("errors")),
        requests=Requests(requested=requested, completed=completed, failed=failed),
        tokens=Tokens(input=prompt, output_requested=received, output_received=received),
        throughput=Throughput(
            duration_s=duration,
            request_per_s=foreign.number(data, "request_throughput") or 0,
            input_tok_per_s=prompt / duration if duration else 0,
            output_tok_per_s=foreign.needed(data, "output_throughput"),
            total_tok_per_s=foreign.needed(data, "total_token_throughput"),
            peak_output_tok_per_s=foreign.number(data, "max_output_tokens_per_s") or 0,
            accept_length=foreign.number(data, "spec_decode_acceptance_length"),
        ),
        latency=latency,
        latency_samples=samples,
    )
    lost = list(LOST)
    if told_failed is None:
        lost.append("how many requests failed (what is missing of num_prompts is taken)")
    if not samples:
        lost.append("single latencies (no --save-detailed)")
    return Told([point], lost, _date(data.get("date")), client=TOOL, model=str(data["model_id"]))


def _latency(data: Mapping[str, Any]) -> tuple[Latency, dict[str, list[float]]]:
    """Its own summaries; from the lists what it does not summarise."""
    samples = {}
    if isinstance(data.get("ttfts"), list):
        # a request that failed has 0
        samples["ttft_ms"] = [one * 1e3 for one in foreign.numbers(data["ttfts"]) if one > 0]
    if isinstance(data.get("itls"), list):
        samples["itl_ms"] = [gap * 1e3 for one in data["itls"] for gap in foreign.numbers(one)]
    if isinstance(data.get("latencies"), list):
        samples["e2e_ms"] = [one * 1e3 for one in foreign.numbers(data["latencies"]) if one > 0]
    of = {name: foreign.distribution(values) for name, values in samples.items()}
    latency = Latency(
        ttft_ms=of.get("ttft_ms") or foreign.summary(data, "ttft_ms"),
        itl_ms=of.get("itl_ms") or foreign.summary(data, "itl_ms"),
        tpot_ms=foreign.summary(data, "tpot_ms"),
        e2e_ms=of.get("e2e_ms") or foreign.summary(data, "e2el_ms"),
    )
    return latency, {name: foreign.thinned(values) for name, values in samples.items() if values}


def _date(value: Any) -> str | None:
    """``20260131-142501``, in the zone of the machine that measured: taken for UTC, since it does not say."""
    try:
        return dt.datetime.strptime(str(value), "%Y%m%d-%H%M%S").replace(tzinfo=dt.UTC).isoformat()
    except ValueError:
        return None
