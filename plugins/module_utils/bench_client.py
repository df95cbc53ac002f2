# SPDX-License-Identifier: Apache-2.0
"""What the engine's own load generator is told and what it tells: its arguments, and its one JSON line made small.

It is ``sglang.bench_serving`` of 0.5.9 and ``sglang.benchmark.serving`` of later releases (read: 0.5.16 and 0.5.23),
which take the same arguments and write the same keys, the later ones some more. It has habits that this module exists
for (read in its source, seen in its runs):

* it leaves with 0 when requests failed, and counts an answer without a single token as a success;
* it credits an answer with the tokens *asked for* unless the server says in each chunk how many there were, so the
  server is asked to (``continuous_usage_stats``; never ``include_usage``, whose last chunk has no choices, on which
  this client stumbles);
* ``server_info`` in its output holds the server's API key;
* ``"request_rate": Infinity`` is not JSON to every reader.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

#: The client prints this, flushes the server's cache, sleeps for :data:`PAUSE_S`, and starts its clock.
START_PATTERN = "Starting main benchmark run"
#: The client prints this once it has stopped its clock and counted tokens.
END_PATTERN = "Serving Benchmark Result"
#: Seconds that the client of 0.5.9 sleeps between :data:`START_PATTERN` and the start of its clock.
PAUSE_S = 1.0

PERCENTILES = (50, 90, 95, 99)
#: Fewer received tokens than this share of the requested ones make a point invalid. Not 1: the server's count stands in
#: the last chunk *with text*, and an answer may end in tokens that have none.
MIN_RECEIVED_SHARE = 0.99
#: Below this share of what was credited, neither chunks nor re-tokenised text support the credited tokens.
MIN_EVIDENCE_SHARE = 0.5
#: Below this share of the declared concurrency the client did not keep its streams busy.
MIN_CONCURRENCY_SHARE = 0.8

_KEPT_SERVER_INFO = ("version", "model_path", "served_model_name", "tp_size")
_LONGEST_LINE = 400


def arguments(options: Mapping[str, Any], output_file: str) -> List[str]:
    """What stands behind the module's name. The OpenAI endpoint always: with the native one the client counts requests
    that were rejected as served.

    Args:
        options: ``host``, ``port``, ``served_name``, ``tokenizer``, ``concurrency``, ``num_prompts``, ``input_tokens``,
            ``output_tokens``, ``seed``, ``warmup_requests``.
        output_file: the client *appends* its line there.
    """
    usage = json.dumps(
        {"stream_options": {"include_usage": False, "continuous_usage_stats": True}}, separators=(",", ":")
    )
    return [
        "--backend", "sglang-oai",
        "--host", str(options["host"]),
        "--port", str(options["port"]),
        "--model", str(options["served_name"]),
        "--tokenizer", str(options["tokenizer"]),
        "--dataset-name", "random-ids",
        "--num-prompts", str(options["num_prompts"]),
        "--random-input-len", str(options["input_tokens"]),
        "--random-output-len", str(options["output_tokens"]),
        "--random-range-ratio", "1.0",
        "--request-rate", "inf",
        "--max-concurrency", str(options["concurrency"]),
        "--warmup-requests", str(options["warmup_requests"]),
        "--seed", str(options["seed"]),
        "--flush-cache",
        "--disable-tqdm",
        "--extra-request-body", usage,
        "--output-file", output_file,
        "--output-details",
    ]  # fmt: skip


def parse_output(text: str) -> Optional[Dict[str, Any]]:
    """The last whole JSON object of the client's output file, or None: the client writes nothing when it fails.

    ``Infinity`` and ``NaN`` become None, so that what follows is JSON to everybody.
    """
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line, parse_constant=lambda _name: None)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def scrub(line: Mapping[str, Any], **more: Any) -> Dict[str, Any]:
    """The client's line without the server's secrets and without the generated texts; with what else is to be kept."""
    clean = {key: value for key, value in line.items() if key != "generated_texts"}
    info = line.get("server_info")
    clean["server_info"] = {k: info[k] for k in _KEPT_SERVER_INFO if k in info} if isinstance(info, dict) else None
    clean.update(more)
    return clean


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks, as numpy does. ``ordered`` is sorted and not empty."""
    place = (len(ordered) - 1) * share / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(seconds: Iterable[float]) -> Optional[Dict[str, float]]:
    """Mean, extremes and percentiles in milliseconds, or None when there is nothing to describe."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    found = {"p%d" % share: percentile(ordered, share) * 1e3 for share in PERCENTILES}
    found.update(mean=math.fsum(ordered) / len(ordered) * 1e3, min=ordered[0] * 1e3, max=ordered[-1] * 1e3)
    return {key: round(value, 4) for key, value in found.items()}


def summarise(line: Mapping[str, Any], options: Mapping[str, Any]) -> Dict[str, Any]:
    """Numbers of one run from the client's line (with ``--output-details``); per-request arrays become percentiles.

    Returns:
        ``requests``, ``tokens``, ``throughput``, ``latency`` and ``errors`` of ``rackwell.bench_point/1``.
    """
    ttfts = [float(v) for v in line.get("ttfts") or []]
    itls = line.get("itls") or []
    lens = [int(v) for v in line.get("output_lens") or []]
    texts = [str(v or "") for v in line.get("errors") or []]
    good = [i for i, text in enumerate(texts) if not text]
    malformed = {i for i in good if ttfts[i] < 0 or any(float(gap) < 0 for gap in itls[i])}
    spoke = [i for i in good if ttfts[i] > 0 and i not in malformed]
    chunks = sum(1 + len(itls[i]) for i in spoke)
    credited = sum(lens[i] for i in good)
    latency = {
        "ttft_ms": distribution(ttfts[i] for i in spoke),
        "itl_ms": distribution(float(v) for i in spoke for v in itls[i]),
        "tpot_ms": distribution(math.fsum(itls[i]) / (lens[i] - 1) for i in spoke if lens[i] > 1),
        "e2e_ms": distribution(ttfts[i] + math.fsum(itls[i]) for i in spoke),
    }
    asked = int(options["num_prompts"])
    return {
        "requests": {
            "requested": asked,
            "completed": int(line.get("completed") or 0),
            "failed": asked - int(line.get("completed") or 0),
            "without_tokens": len(good) - len(spoke) - len(malformed),
            "malformed": len(malformed),
        },
        "tokens": {
            "input": int(line.get("total_input_tokens") or 0),
            "output_requested": asked * int(options["output_tokens"]),
            "output_received": credited,
            "output_retokenized": int(line.get("total_output_tokens_retokenized") or 0),
            "output_chunks": chunks,
        },
        "throughput": {
            "duration_s": float(line["duration"]),
            "request_per_s": float(line.get("request_throughput") or 0),
            "input_tok_per_s": float(line.get("input_throughput") or 0),
            "output_tok_per_s": float(line.get("output_throughput") or 0),
            "total_tok_per_s": float(line.get("total_throughput") or 0),
            "peak_output_tok_per_s": float(line.get("max_output_tokens_per_s") or 0),
            "concurrency_achieved": float(line.get("concurrency") or 0),
            "accept_length": line.get("accept_length"),
        },
        "latency": latency,
        "errors": count_errors(texts),
    }


def count_errors(texts: Iterable[str]) -> List[Dict[str, Any]]:
    """Distinct error texts with their counts, the most frequent first; a traceback is told by its last line."""
    counts = {}  # type: Dict[str, int]
    for text in texts:
        if text:
            last = text.strip().splitlines()[-1] if text.strip() else text
            counts[last[:_LONGEST_LINE]] = counts.get(last[:_LONGEST_LINE], 0) + 1
    return [{"text": text, "count": count} for text, count in sorted(counts.items(), key=lambda item: -item[1])[:5]]


def reason(code: str, what: str, why: str = "", fix: str = "") -> Dict[str, str]:
    """One cause for which a point does not count, in the shape of every error of rackwell."""
    return {"code": code, "what": what, "where": "", "why": why, "fix": fix}


def judge(summary: Mapping[str, Any]) -> List[Dict[str, str]]:
    """Why the numbers of a run that ended must not be used; empty when they may."""
    requests, tokens = summary["requests"], summary["tokens"]
    found = []
    if requests["completed"] != requests["requested"]:
        errors = summary["errors"]
        found.append(
            reason(
                "bench-requests-failed",
                "%d of %d requests failed" % (requests["failed"], requests["requested"]),
                'most often: "%s"' % errors[0]["text"] if errors else "the client names no error",
                "read the server's journal of that time; lower the concurrency when it ran out of slots",
            )
        )
    if requests["malformed"]:
        found.append(
            reason(
                "bench-stream-malformed",
                "%d answers have a token before its request, or before the token ahead of it" % requests["malformed"],
                "the stream of the server, or the client's reading of it, is broken",
                "look at one streamed answer of the server by hand",
            )
        )
    if requests["without_tokens"]:
        found.append(
            reason(
                "bench-empty-answers",
                "%d answers came without a single token" % requests["without_tokens"],
                "the client counts them as successes, which inflates every throughput",
                "ask the server for one completion by hand and read its journal",
            )
        )
    expected = requests["completed"] * (tokens["output_requested"] // max(requests["requested"], 1))
    if tokens["output_received"] < MIN_RECEIVED_SHARE * expected:
        found.append(
            reason(
                "bench-short-answers",
                "%d of %d requested output tokens were received" % (tokens["output_received"], expected),
                "the server ended answers early although it was told to ignore end-of-sequence",
                "check the context length of the server against input_tokens + output_tokens",
            )
        )
    evidence = max(tokens["output_chunks"], tokens["output_retokenized"])
    if evidence < MIN_EVIDENCE_SHARE * tokens["output_received"]:
        found.append(
            reason(
                "bench-tokens-unproved",
                "%d output tokens are credited, but text for only about %d arrived"
                % (tokens["output_received"], evidence),
                "a server that does not report its own count is credited with what was asked for",
                "look at one streamed answer of the server by hand",
            )
        )
    return found


def remarks(summary: Mapping[str, Any], concurrency: int) -> List[str]:
    """What a reader of the numbers should know, though they may be used."""
    found = []
    achieved = summary["throughput"]["concurrency_achieved"]
    if achieved < MIN_CONCURRENCY_SHARE * concurrency:
        found.append(
            "On average %.1f of %d streams were in flight: ramp and tail are a large part of this run."
            % (achieved, concurrency)
        )
    if summary["requests"]["requested"] < 2 * concurrency:
        found.append("Fewer than two prompts per stream: there is no steady state to speak of.")
    return found


_TELLING = re.compile(
    r"error|exception|refused|not ready|traceback|killed|fail|no such|denied|unrecognized", re.IGNORECASE
)
_NOISE = re.compile(
    r"^(benchmark_args=|Namespace\()|tokenizer config|huggingface\.co|None of PyTorch|RLIMIT_NOFILE|"
    r"^During handling of the above|^The above exception was|^Traceback"
)


def telling_lines(stdout: str, stderr: str, limit: int = 6) -> List[str]:
    """The last lines that say why the client gave up; the last lines of all when none does."""
    lines = [line.strip()[:_LONGEST_LINE] for line in (stdout + "\n" + stderr).splitlines() if line.strip()]
    lines = [line for line in lines if not _NOISE.search(line)]
    told = [line for line in lines if _TELLING.search(line)]
    unique = list(dict.fromkeys(reversed(told or lines)))[:limit]
    return list(reversed(unique))
