# SPDX-License-Identifier: Apache-2.0
"""``sglang.bench_serving`` (0.5.9) and ``sglang.benchmark.serving`` (0.5.16): one JSON object a line, appended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackwell.bench.imports import foreign
from rackwell.bench.imports.foreign import NotThisError, Told
from rackwell.bench.result import BenchPoint, Latency, Reason, Requests, Throughput, Tokens

TOOL = "sglang.bench_serving"
_EVIDENCE_SHARE = 0.5
LOST = [
    "GPU power, utilisation and clocks",
    "when it was measured (the file's time is taken)",
    "the version of the client",
    "whether the prefix cache was flushed",
]


def knows(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is such a line."""
    return {"backend", "random_range_ratio", "duration", "output_throughput"} <= data.keys()


def read(data: Mapping[str, Any]) -> Told:
    """The point of one line. Raises NotThisError when a figure that every point needs is missing."""
    completed = int(foreign.needed(data, "completed"))
    detailed = isinstance(data.get("errors"), list)
    requested = len(data["errors"]) if detailed else completed
    if not requested:
        raise NotThisError("not one request was answered, and the file has no details")
    received = int(foreign.needed(data, "total_output_tokens"))
    lengths, remarks = _lengths(data, completed, received)
    streams = foreign.whole(data, "max_concurrency")
    if not streams:
        streams = requested
        remarks.append("No limit of requests in flight was set: all of them were sent at the request rate.")
    latency, samples, silent, chunks = _details(data) if detailed else (_summaries(data), {}, None, 0)
    retokenized = foreign.whole(data, "total_output_tokens_retokenized") or 0
    asked = completed * lengths[1] if data.get("random_range_ratio") == 1.0 and _random(data) else None
    failed = requested - completed if detailed else None
    reasons = foreign.judged(failed, silent, asked, received) + _unproved(received, max(chunks, retokenized))
    point = BenchPoint(
        concurrency=streams,
        num_prompts=requested,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        status="measured",
        valid=not reasons,
        reasons=reasons,
        remarks=remarks,
        errors=foreign.errors(data.get("errors")),
        server=foreign.server(data.get("server_info")),
        requests=Requests(requested=requested, completed=completed, failed=failed or 0, without_tokens=silent or 0),
        tokens=Tokens(
            input=foreign.whole(data, "total_input_tokens") or 0,
            output_requested=asked if asked is not None else received,
            output_received=received,
            output_retokenized=retokenized,
            output_chunks=chunks,
        ),
        throughput=Throughput(
            duration_s=foreign.needed(data, "duration"),
            request_per_s=foreign.number(data, "request_throughput") or 0,
            input_tok_per_s=foreign.number(data, "input_throughput") or 0,
            output_tok_per_s=foreign.needed(data, "output_throughput"),
            total_tok_per_s=foreign.needed(data, "total_throughput"),
            peak_output_tok_per_s=foreign.number(data, "max_output_tokens_per_s") or 0,
            concurrency_achieved=foreign.number(data, "concurrency") or 0,
            accept_length=foreign.number(data, "accept_length"),
        ),
        latency=latency,
        latency_samples=samples,
    )
    lost = list(LOST)
    if not detailed:
        lost.append("how many requests failed, and single latencies (no --output-details)")
    if not isinstance(data.get("server_info"), Mapping):
        lost.append("what server it was")
    return Told([point], lost, client=TOOL, model=point.server.served_model_name or point.server.model_path)


def _random(data: Mapping[str, Any]) -> bool:
    return str(data.get("dataset_name") or "").startswith("random")


def _lengths(data: Mapping[str, Any], completed: int, received: int) -> tuple[tuple[int, int], list[str]]:
    """Tokens of prompt and answer, and a remark where these are means."""
    declared = foreign.whole(data, "random_input_len"), foreign.whole(data, "random_output_len")
    if _random(data) and data.get("random_range_ratio") == 1.0 and declared[0] and declared[1]:
        return (declared[0], declared[1]), []
    count = max(completed, 1)
    means = max(1, round((foreign.number(data, "total_input_tokens") or 0) / count)), max(1, round(received / count))
    told = f"The lengths are means: the data set {data.get('dataset_name')} has requests of different lengths."
    return means, [told]


def _details(data: Mapping[str, Any]) -> tuple[Latency, dict[str, list[float]], int, int]:
    """Latencies, samples, answers without a token, chunks: from each request's own list."""
    ttfts, lens = foreign.numbers(data.get("ttfts")), foreign.numbers(data.get("output_lens"))
    itls = [foreign.numbers(one) for one in data.get("itls") or []]
    if not len(ttfts) == len(lens) == len(itls) == len(data["errors"]):
        raise NotThisError("its lists have different lengths")
    good = [place for place, error in enumerate(data["errors"]) if not error]
    spoke = [place for place in good if ttfts[place] > 0]
    samples = {
        "ttft_ms": [ttfts[place] * 1e3 for place in spoke],
        "itl_ms": [gap * 1e3 for place in spoke for gap in itls[place]],
        "e2e_ms": [(ttfts[place] + sum(itls[place])) * 1e3 for place in spoke],
    }
    tpot = [sum(itls[place]) * 1e3 / (lens[place] - 1) for place in spoke if lens[place] > 1]
    latency = Latency(
        ttft_ms=foreign.distribution(samples["ttft_ms"]),
        itl_ms=foreign.distribution(samples["itl_ms"]),
        tpot_ms=foreign.distribution(tpot),
        e2e_ms=foreign.distribution(samples["e2e_ms"]),
    )
    chunks = sum(1 + len(itls[place]) for place in spoke)
    return latency, {name: foreign.thinned(values) for name, values in samples.items()}, len(good) - len(spoke), chunks


def _summaries(data: Mapping[str, Any]) -> Latency:
    return Latency(
        ttft_ms=foreign.summary(data, "ttft_ms"),
        itl_ms=foreign.summary(data, "itl_ms"),
        tpot_ms=foreign.summary(data, "tpot_ms"),
        e2e_ms=foreign.summary(data, "e2e_latency_ms"),
    )


def _unproved(received: int, evidence: int) -> list[Reason]:
    """A server that does not count is credited with what was asked for."""
    if not evidence or evidence >= _EVIDENCE_SHARE * received:
        return []
    return [
        Reason(
            code="bench-tokens-unproved",
            what=f"{received} output tokens are credited, but text for only about {evidence} arrived",
            why="a server that does not report its own count is credited with what was asked for",
        )
    ]
