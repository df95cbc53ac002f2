# SPDX-License-Identifier: Apache-2.0
"""What happened when inside a measurement: its steady part, its timeline, and how late the client itself was.

All times are seconds of the one monotonic clock that the client, the recorder and the server's host share.
"""

from __future__ import annotations

import bisect
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client

#: at most so many slices in a timeline, none shorter than this many seconds
SLICES, SLICE_S = 120, 0.5
#: values kept of each latency, quantiles of equal distance
SAMPLES = 400
#: what comes so short after the window's end is of its last slice, seconds
_EDGE_S = 0.005
#: a steady part needs this share of the window, or it says nothing of a steady state
MIN_STEADY_SHARE = 0.2


_STEADY = (
    "start_s",
    "end_s",
    "output_tok_per_s",
    "total_tok_per_s",
    "request_per_s",
    "concurrency",
    "ttft_ms",
    "itl_ms",
)


class Request(NamedTuple):
    """An answered request: start, seconds to the first chunk, gaps between chunks, tokens received and sent."""

    start: float
    ttft: float
    gaps: Sequence[float]
    tokens: int
    prompt: int

    @property
    def end(self) -> float:
        """When its last chunk came."""
        return self.start + self.ttft + math.fsum(self.gaps)


def requests_of(line: Mapping[str, Any], starts: Sequence[Any]) -> List[Request]:
    """The requests that gave an answer and whose start is known."""
    ttfts, itls = line.get("ttfts") or [], line.get("itls") or []
    lens, prompts, errors = line.get("output_lens") or [], line.get("input_lens") or [], line.get("errors") or []
    found = []
    for i, start in enumerate(starts):
        if i >= len(ttfts) or not isinstance(start, (int, float)) or ttfts[i] <= 0 or (i < len(errors) and errors[i]):
            continue
        gaps = [float(gap) for gap in itls[i]]
        prompt = int(prompts[i]) if i < len(prompts) else 0
        found.append(Request(float(start), float(ttfts[i]), gaps, int(lens[i]), prompt))
    return found


def in_flight(requests: Sequence[Request]) -> List[Tuple[float, int]]:
    """Steps of how many requests were in flight: (moment, count from then on)."""
    changes = sorted([(r.start, 1) for r in requests] + [(r.end, -1) for r in requests])
    steps, count = [], 0  # type: List[Tuple[float, int]], int
    for moment, change in changes:
        count += change
        if steps and steps[-1][0] == moment:
            steps[-1] = (moment, count)
        else:
            steps.append((moment, count))
    return steps


def mean_in_flight(steps: Sequence[Tuple[float, int]], start: float, end: float) -> float:
    """Time-weighted mean of the steps over [start, end]."""
    total = 0.0
    for i, (moment, count) in enumerate(steps):
        until = steps[i + 1][0] if i + 1 < len(steps) else end
        total += count * max(0.0, min(until, end) - max(moment, start))
    return total / (end - start) if end > start else 0.0


def _spread(requests: Sequence[Request], start: float, end: float) -> Tuple[float, float, float]:
    """(output tokens, prompt tokens, requests) of [start, end], each request spread evenly over its own time.

    Counting chunks by their moments instead would depend on where the edges lie: requests of one length begin, prefill
    and end together, in waves.
    """
    output = prompt = count = 0.0
    for request in requests:
        length = request.end - request.start
        part = max(0.0, min(request.end, end) - max(request.start, start)) / length if length > 0 else 0.0
        output += part * request.tokens
        prompt += part * request.prompt
        count += part
    return output, prompt, count


def steady(requests: Sequence[Request], concurrency: int, share: float, window: Tuple[float, float]) -> Dict[str, Any]:
    """The part of the window from the first to the last moment at which the client kept its streams busy.

    Before it the streams are being started, behind it there is nothing left to send.

    Returns:
        ``steady`` of ``rackwell.bench_point/1``: seconds from the window's start, and the rates in between.
    """
    nothing = dict.fromkeys(_STEADY, None)  # type: Dict[str, Any]
    if not requests:
        return dict(nothing, why="the client does not tell when its requests began")
    wanted = max(1, math.ceil(share * concurrency))
    steps = in_flight(requests)
    busy = [i for i, (_moment, count) in enumerate(steps) if count >= wanted]
    if not busy:
        return dict(nothing, why="there were never %d requests in flight" % wanted)
    start, last = steps[busy[0]][0], busy[-1]
    end = steps[last + 1][0] if last + 1 < len(steps) else steps[last][0]
    if end - start < MIN_STEADY_SHARE * (window[1] - window[0]):
        return dict(nothing, why="%d requests were in flight for %.1f s only" % (wanted, end - start))
    output, prompt, count = _spread(requests, start, end)
    seconds = end - start
    # each stream's first request is of the burst at the start, when the client opens all of its connections at once
    later = sorted(requests, key=lambda request: request.start)[concurrency:]
    return {
        "start_s": round(start - window[0], 4),
        "end_s": round(end - window[0], 4),
        "output_tok_per_s": round(output / seconds, 4),
        "total_tok_per_s": round((output + prompt) / seconds, 4),
        "request_per_s": round(count / seconds, 4),
        "concurrency": round(mean_in_flight(steps, start, end), 3),
        "ttft_ms": bench_client.distribution(request.ttft for request in later),
        "itl_ms": bench_client.distribution(gap for request in later for gap in request.gaps),
        "why": None,
    }


def timeline(
    requests: Sequence[Request], server: Sequence[Mapping[str, Any]], window: Tuple[float, float]
) -> Optional[Dict[str, Any]]:
    """Rates and loads slice by slice; None for an empty window. ``server``: samples of the server's own metrics."""
    start, end = window
    if end <= start:
        return None
    slices = max(1, min(SLICES, int((end - start) / SLICE_S)))
    width = (end - start) / slices
    output = [0.0] * slices
    for request in requests:
        weight = request.tokens / (1 + len(request.gaps))
        moment = request.start + request.ttft - start
        for gap in [0.0, *request.gaps]:
            moment += gap
            # the very last chunk ends the window
            if 0 <= moment <= end - start + _EDGE_S:
                output[min(int(moment / width), slices - 1)] += weight
    steps = in_flight(requests)
    found = {
        "t": [round((i + 0.5) * width, 3) for i in range(slices)],
        "output_tok_per_s": [round(tokens / width, 2) for tokens in output] if requests else [],
        "in_flight": _means(steps, start, width, slices) if requests else [],
    }  # type: Dict[str, Any]
    for name, key, factor in (
        ("server_running", "running", 1.0),
        ("server_queued", "queued", 1.0),
        ("kv_usage_pct", "kv_usage", 100.0),
    ):
        sums, counts = [0.0] * slices, [0] * slices
        for sample in server:
            value, place = sample.get(key), int((float(sample["t"]) - start) / width)
            if isinstance(value, (int, float)) and sample["t"] >= start and place < slices:
                sums[place] += value * factor
                counts[place] += 1
        found[name] = [round(sums[i] / counts[i], 2) if counts[i] else None for i in range(slices)]
        if not any(counts):
            found[name] = []
    return found


def _means(steps: Sequence[Tuple[float, int]], start: float, width: float, slices: int) -> List[float]:
    """Mean of the steps in each slice."""
    sums = [0.0] * slices
    for i, (moment, count) in enumerate(steps[:-1]):
        left, right = moment - start, steps[i + 1][0] - start
        for place in range(max(0, int(left / width)), min(slices - 1, int(right / width)) + 1):
            overlap = min(right, (place + 1) * width) - max(left, place * width)
            sums[place] += count * max(0.0, overlap)
    return [round(total / width, 2) for total in sums]


def thinned(values: Sequence[float], digits: int = 3) -> List[float]:
    """At most :data:`SAMPLES` values that stand for all: quantiles of equal distance, in rising order."""
    ordered = sorted(values)
    if len(ordered) <= SAMPLES:
        return [round(value, digits) for value in ordered]
    return [round(ordered[int((i + 0.5) * len(ordered) / SAMPLES)], digits) for i in range(SAMPLES)]


def latency_samples(line: Mapping[str, Any]) -> Dict[str, List[float]]:
    """Thinned raw values of the answered requests, for resampling; milliseconds, and tokens a second of a request."""
    ttfts, itls, lens = line.get("ttfts") or [], line.get("itls") or [], line.get("output_lens") or []
    errors = line.get("errors") or []
    good = [i for i, ttft in enumerate(ttfts) if ttft > 0 and not (i < len(errors) and errors[i])]
    ends = {i: ttfts[i] + math.fsum(itls[i]) for i in good}
    found = {
        "ttft_ms": [ttfts[i] * 1e3 for i in good],
        "itl_ms": [gap * 1e3 for i in good for gap in itls[i]],
        "e2e_ms": [ends[i] * 1e3 for i in good],
        "request_tok_per_s": [lens[i] / ends[i] for i in good],
    }
    return {name: thinned(values) for name, values in found.items() if values}


def loop_lag(report: Mapping[str, Any], window: Tuple[float, float]) -> List[float]:
    """Seconds by which the client's event loop was late, as somebody would see it who looks at any moment.

    A loop that stands still for a second answers once, a second late. Who had looked every period in between would have
    waited for a second, a period less, two periods less, ...: all of these count.
    """
    period = float(report.get("period") or 0.02)
    found = []
    for moment, late in report.get("lag") or []:
        # what began before the window is of something else: the client sleeps in its loop before it starts
        if moment > window[1] or moment - late - period < window[0]:
            continue
        found.append(max(float(late), 0.0))
        missed = float(late) - period
        while missed > 0:
            found.append(missed)
            missed -= period
    return found


def cpu_share(report: Mapping[str, Any], window: Tuple[float, float]) -> Optional[float]:
    """Share of one core that the client's process used in the window."""
    phases = report.get("phases") or []
    if phases and {"begin", "end", "cpu_begin", "cpu_end"} <= set(phases[-1]):
        phase = phases[-1]
        if phase["end"] > phase["begin"]:
            return float(phase["cpu_end"] - phase["cpu_begin"]) / float(phase["end"] - phase["begin"])
    inside = [(float(t), float(used)) for t, used in report.get("cpu") or [] if window[0] <= t <= window[1]]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        return None
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def between(samples: Sequence[Mapping[str, Any]], start: float, end: float) -> List[Mapping[str, Any]]:
    """Samples inside [start, end]; they come in the order of their times."""
    times = [float(sample["t"]) for sample in samples]
    return list(samples[bisect.bisect_left(times, start) : bisect.bisect_right(times, end)])
