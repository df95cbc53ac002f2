# SPDX-License-Identifier: Apache-2.0
"""One point in detail: its timeline, its GPUs, and what was checked of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rackwell.bench.report import timeline
from rackwell.bench.report.figure import Figure, unit
from rackwell.bench.report.gpus import Gpus, gpus
from rackwell.bench.report.loads import Load
from rackwell.bench.report.sweeps import short
from rackwell.bench.result import BenchPoint, ServerLoad
from rackwell.page import scales
from rackwell.page.scales import UNKNOWN, milliseconds, number

#: A page shows no more points than this in detail; the others are in ``bench.json``.
MOST = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Detail:
    """A point as the page shows it. label: on its button. facts: name and value of each thing that was checked."""

    ident: str
    label: str
    title: str
    point: BenchPoint
    time: Figure | None
    gpus: Gpus | None
    facts: list[tuple[str, str]]


def details(every: Sequence[Load]) -> list[Detail]:
    """Of each load the repeat nearest to the median, or the first where none counts; those with nothing to show go."""
    several = len({load.key[:2] for load in every}) > 1
    chosen = [(load, load.chosen or load.points[0]) for load in every][:MOST]
    most = timeline.resolution(len(chosen))
    found = [_detail(load, point, most, several) for load, point in chosen]
    return [detail for detail in found if detail.time or detail.gpus or detail.point.requests]


def _detail(load: Load, point: BenchPoint, most: int, several: bool) -> Detail:
    label = f"{load.concurrency:,}"
    title = scales.count(load.concurrency)
    if several:
        label = f"{label} · {short(load.input_tokens)}+{short(load.output_tokens)}"
        title = f"{title}, {load.input_tokens:,} + {load.output_tokens:,} tokens"
    if len(load.points) > 1:
        title = f"{title}, repeat {point.repeat} of {len(load.points)}"
    return Detail(
        load.ident,
        label,
        title,
        point,
        timeline.timeline(point, load.ident, most),
        gpus(point, load.ident),
        [(name, value) for name, value in facts(point) if value and value != UNKNOWN],
    )


def facts(point: BenchPoint) -> list[tuple[str, str]]:
    """What was counted and checked."""
    asked, tokens, rate = point.requests, point.tokens, point.throughput
    return [
        ("Answered", f"{asked.completed:,} of {asked.requested:,} requests" if asked and asked.requested else ""),
        ("Output tokens", f"{tokens.output_received:,} of {tokens.output_requested:,}" if tokens else ""),
        (
            "Kept in flight",
            f"{number(rate.concurrency_achieved)} of {point.concurrency:,}"
            if rate and rate.concurrency_achieved
            else "",
        ),
        ("Steady state", _steady(point)),
        *_client(point),
        *(_server(point.server_load) if point.server_load else []),
        ("Cache emptied", _flush(point)),
        ("Answers", _sanity(point)),
        ("Others on the GPUs", _foreign(point)),
        ("Sampling cost", _cost(point)),
        ("CPU of the machine", unit(point.telemetry.cpu_pct.mean if point.telemetry else None, "%")),
        ("Seed", str(point.seed)),
    ]


def _cost(point: BenchPoint) -> str:
    cost = point.telemetry.cpu_share if point.telemetry else None
    return "" if cost is None else f"{100 * cost:.1f} % of a core"


def _steady(point: BenchPoint) -> str:
    steady = point.steady
    if steady is None:
        return ""
    if steady.output_tok_per_s is None or steady.start_s is None or steady.end_s is None:
        return f"none: {steady.why}" if steady.why else "none"
    return f"{number(steady.output_tok_per_s)} tok/s from {number(steady.start_s)} to {number(steady.end_s)} s"


def _client(point: BenchPoint) -> list[tuple[str, str]]:
    seen = point.client_load
    if seen is None:
        return []
    lag = seen.loop_lag_ms
    words = [f"{number(seen.cpu_pct)} % of a core" if seen.cpu_pct is not None else ""]
    words.append(f"loop late by {milliseconds(lag.p99)} (p99)" if lag else "")
    found = [("Client", ", ".join(word for word in words if word))]
    if seen.bound:
        found.append(("Bound by the client", "; ".join(seen.why) or "yes"))
    return found


def _server(seen: ServerLoad) -> list[tuple[str, str]]:
    def pair(mean: float | None, most: float | None) -> str:
        return "" if mean is None and most is None else f"mean {number(mean)}, most {number(most)}"

    return [
        ("Running in the server", pair(seen.running_mean, seen.running_max)),
        ("Queued in the server", pair(seen.queued_mean, seen.queued_max)),
        ("KV cache, most", unit(seen.kv_usage_max_pct, "%")),
        ("Prefix-cache hits", unit(seen.prefix_cache_hit_pct, "%")),
        ("Tokens accepted a step", number(seen.accept_length)),
        ("Preemptions", number(seen.preemptions)),
    ]


def _flush(point: BenchPoint) -> str:
    flush = point.flush
    return "" if flush is None else f"{'proved' if flush.proved else 'not proved'}: {flush.how}"


def _sanity(point: BenchPoint) -> str:
    seen = point.sanity
    if seen is None:
        return ""
    words = f"{seen.checked:,} looked at, {seen.bad:,} garbage"
    return f"{words}: {seen.why}" if seen.bad and seen.why else words


def _foreign(point: BenchPoint) -> str:
    return ", ".join(
        f"GPU {each.gpu}: {each.name or 'a process'}{f' (pid {each.pid})' if each.pid else ''}"
        for each in point.foreign
    )
