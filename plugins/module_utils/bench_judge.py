# SPDX-License-Identifier: Apache-2.0
"""What beside the client's own figures tells whether a measurement may be used.

Each function gives its part of ``rackwell.bench_point/1`` and adds to the reasons (the point does not count) or to the
remarks (it counts, and the reader should know).
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_telemetry, bench_window
from ansible_collections.rackwell.gpu.plugins.module_utils.bench_client import distribution, reason

Reasons = List[Dict[str, str]]

#: a client at so many percent of a core sends and reads as fast as it can, and no faster
BOUND_CPU_PCT = 90.0
#: The client's loop is late by more than this, seconds, and by more than this part of the gap between chunks, at one
#: moment of twenty: what it takes for the server's latencies is its own.
BOUND_LAG_S, BOUND_LAG_PART = 0.05, 0.5
#: the same, worth a remark
LATE_LAG_S, LATE_LAG_PART = 0.005, 0.1
#: a server that has less than this share of what the client says to have sent never got the rest
BOUND_SEEN_SHARE = 0.8
#: so many looks at the server's metrics, over so many seconds, are needed to say so: its gauges are renewed every forty
#: steps only
SEEN_SAMPLES, SEEN_SECONDS = 8, 10.0
#: throttled in more than this share of the samples
THROTTLE_SHARE = 0.05
#: seconds by which the wall clock may go apart from the monotonic clock: more is no slewing, but a clock that was set,
#: or a machine that stood still
SKEW_S, SKEW_PART = 0.25, 0.001
#: utilisation of the GPUs while the server has nothing to do, in percent
IDLE_PCT = 10.0
#: share of prompt tokens from the prefix cache from which on the throughput is not that of these prompts
CACHED_PCT = 5.0
#: share of bad answers from which on a point does not count
GARBAGE_SHARE = 0.1


def client_load(
    report: Mapping[str, Any],
    requests: Sequence[bench_window.Request],
    steady: Mapping[str, Any],
    server: Sequence[Mapping[str, Any]],
    window: Tuple[float, float],
    concurrency: int,
    reasons: Reasons,
    remarks: List[str],
) -> Dict[str, Any]:
    """``client_load``: whether the load generator set the pace."""
    lags = bench_window.loop_lag(report, window)
    share = bench_window.cpu_share(report, window)
    gaps = sorted(gap for request in requests for gap in request.gaps)
    gap = gaps[len(gaps) // 2] if gaps else 0.0
    lag = distribution(lags)
    why = []
    if share is not None and share * 100 >= BOUND_CPU_PCT:
        why.append("it used %.0f %% of a core" % (share * 100))
    if lag is not None:
        late = lag["p95"] / 1e3
        text = "its event loop was late by up to %.0f ms at 95 of 100 moments, with %.0f ms between chunks" % (
            lag["p95"],
            gap * 1e3,
        )
        if late > max(BOUND_LAG_S, BOUND_LAG_PART * gap):
            why.append(text)
        elif late > max(LATE_LAG_S, LATE_LAG_PART * gap):
            remarks.append("The client was busy: %s. Latencies are that much too long at times." % text)
    held = steady.get("concurrency")
    seen = _seen(server, steady, window)
    if held and seen is not None and concurrency >= 8 and seen < BOUND_SEEN_SHARE * held:
        why.append("the server had %.0f requests at a time, the client says to have had %.0f" % (seen, held))
    if why:
        reasons.append(
            reason(
                "bench-client-bound",
                "the load generator, not the server, set the pace",
                "; ".join(why),
                "leave it more cores, run fewer streams, or another client (client: in the bench file)",
            )
        )
    return {
        "loop_lag_ms": lag,
        "cpu_pct": None if share is None else round(share * 100, 1),
        "in_flight_mean": held,
        "bound": bool(why),
        "why": why,
    }


def _seen(
    server: Sequence[Mapping[str, Any]], steady: Mapping[str, Any], window: Tuple[float, float]
) -> Optional[float]:
    """Mean of running and queued requests on the server in the steady part."""
    if steady.get("start_s") is None:
        return None
    start, end = window[0] + steady["start_s"], window[0] + steady["end_s"]
    inside = [s for s in bench_window.between(server, start, end) if "running" in s]
    if len(inside) < SEEN_SAMPLES or end - start < SEEN_SECONDS:
        return None
    return math.fsum(float(s["running"]) + float(s.get("queued", 0)) for s in inside) / len(inside)


def server_load(server: Mapping[str, Any], window: Tuple[float, float]) -> Optional[Dict[str, Any]]:
    """``server_load``: what the server's own metrics say of the window; None where it was not asked."""
    every = server.get("samples") or []
    inside = bench_window.between(every, *window)
    if not server:
        return None

    def values(key: str) -> List[float]:
        return [float(s[key]) for s in inside if isinstance(s.get(key), (int, float))]

    def mean(key: str) -> Optional[float]:
        found = values(key)
        return round(math.fsum(found) / len(found), 3) if found else None

    def most(key: str, factor: float = 1.0) -> Optional[float]:
        found = values(key)
        return round(max(found) * factor, 3) if found else None

    def grown(key: str) -> Optional[float]:
        # a counter: from the last reading before the window to the first one behind it
        known = [(float(s["t"]), float(s[key])) for s in every if isinstance(s.get(key), (int, float))]
        before = [v for t, v in known if t <= window[0]] or [v for _t, v in known[:1]]
        after = [v for t, v in known if t >= window[1]] or [v for _t, v in known[-1:]]
        return after[0] - before[-1] if before and after and after[0] >= before[-1] else None

    prompt, cached = grown("prompt_tokens"), grown("cached_tokens")
    hit = 100 * cached / prompt if prompt and cached is not None else None
    accepted = [value for value in values("accept_length") if value > 0]
    return {
        "source": server.get("source"),
        "samples": len(inside),
        "running_mean": mean("running"),
        "running_max": most("running"),
        "queued_mean": mean("queued"),
        "queued_max": most("queued"),
        "kv_usage_max_pct": most("kv_usage", 100.0),
        "prefix_cache_hit_pct": None if hit is None else round(hit, 2),
        "accept_length": round(math.fsum(accepted) / len(accepted), 3) if accepted else None,
        "preemptions": _preemptions(values("retracted")),
    }


def _preemptions(gauge: Sequence[float]) -> Optional[float]:
    """How many requests were put back at least: the gauge tells of the last time only."""
    if not gauge:
        return None
    return gauge[0] + math.fsum(max(0.0, gauge[i + 1] - gauge[i]) for i in range(len(gauge) - 1))


def flush(
    told: Sequence[Mapping[str, Any]],
    own: Mapping[str, Any],
    load: Optional[Mapping[str, Any]],
    reasons: Reasons,
    remarks: List[str],
) -> Dict[str, Any]:
    """``flush``: whether the prefix cache was empty when the clock started.

    Args:
        told: what the client's own flush was answered with. own: the same of the module's, before the client started.
        load: ``server_load``.
    """
    hit = (load or {}).get("prefix_cache_hit_pct")
    last = told[-1] if told else own
    status = last.get("status")
    proved = status == 200
    who = "right before the clock started" if told else "before the client started"
    how = "flush_cache was answered with %s %s" % (status or "nothing", who)
    if proved:
        how += ", which the server does only while it has no request"
    if hit is not None and hit > CACHED_PCT:
        text = "%.0f %% of the prompt tokens came from the prefix cache" % hit
        if proved:
            remarks.append("%s though it was empty at the start: the prompts begin alike." % text.capitalize())
        else:
            reasons.append(
                reason(
                    "bench-cache-warm",
                    text,
                    how,
                    "take another seed; see that nobody else uses the server, which flushes only while it is idle",
                )
            )
    elif not proved:
        told_hit = "" if hit is None else "; %.0f %% of the prompt tokens came from it" % hit
        remarks.append("It is not proved that the prefix cache was empty: %s%s." % (how, told_hit))
    return {"proved": proved, "how": how}


def throttled(telemetry: Mapping[str, Any], reasons: Reasons, remarks: List[str]) -> None:
    """GPUs that heat or power supply slowed down. A power limit is none of these."""
    hot = []
    for gpu in telemetry.get("gpus") or []:
        bad = {n: s for n, s in (gpu.get("throttle") or {}).items() if n in bench_telemetry.BAD_REASONS}
        if bad:
            named = ", ".join("%s %.0f %%" % (name, share * 100) for name, share in sorted(bad.items()))
            hot.append((max(bad.values()), "GPU %s: %s of the samples" % (gpu.get("index"), named)))
    if not hot:
        return
    text = "; ".join(told for _share, told in hot)
    if max(share for share, _told in hot) > THROTTLE_SHARE:
        reasons.append(
            reason(
                "bench-throttled",
                "the GPUs were slowed down by heat or by their power supply",
                text,
                "look at fans, air and power cables; rackwell verify",
            )
        )
    else:
        remarks.append("The GPUs were slowed down at times (%s)." % text)


def clock_skew(record: Mapping[str, Any], window: Tuple[float, float], reasons: Reasons) -> None:
    """Whether the wall clock and the monotonic clock went apart in the window."""
    pairs = [(float(m), float(w)) for m, w in (record.get("server") or {}).get("clocks") or []]
    clock = record.get("clock") or {}
    if isinstance(clock.get("monotonic"), (int, float)) and isinstance(clock.get("wall"), (int, float)):
        pairs.insert(0, (float(clock["monotonic"]), float(clock["wall"])))
    before = [w - m for m, w in pairs if m <= window[0]] or [w - m for m, w in pairs[:1]]
    after = [w - m for m, w in pairs if m >= window[1]] or [w - m for m, w in pairs[-1:]]
    inside = [w - m for m, w in pairs if window[0] < m < window[1]]
    offsets = [*before[-1:], *inside, *after[:1]]
    if len(offsets) < 2:
        return
    moved = max(offsets) - min(offsets)
    if moved > max(SKEW_S, SKEW_PART * (window[1] - window[0])):
        reasons.append(
            reason(
                "bench-clock-skew",
                "the machine's clocks went apart by %.2f s during the measurement" % moved,
                "somebody set the clock, or the machine stood still",
                "let the clock settle (timedatectl), then measure again",
            )
        )


def foreign(
    record: Mapping[str, Any], unit: str, client_starts: Optional[float], reasons: Reasons, remarks: List[str]
) -> List[Dict[str, Any]]:
    """Who else used the GPUs.

    Args:
        record: of the recorder. unit: of the server; its processes are in its control group. client_starts: monotonic
            seconds at which the client sent its first request; until then the server had nothing to do.
    """
    found, unseen, own = {}, 0, 0  # type: Dict[Tuple[int, int], Dict[str, Any]], int, int
    for look in record.get("processes") or []:
        for process in look.get("processes") or []:
            group = process.get("cgroup")
            if group is None:
                unseen += 1
            elif unit in str(group):
                own += 1
            else:
                key = (int(process["gpu"]), int(process["pid"]))
                found[key] = {
                    "gpu": key[0],
                    "pid": key[1],
                    "name": process.get("name"),
                    "memory_mib": process.get("mib"),
                }
    strangers = [found[key] for key in sorted(found)]
    why = ["%(name)s (pid %(pid)s) on GPU %(gpu)s" % stranger for stranger in strangers[:4]]
    if unseen and own:
        # our own are seen by their numbers, so those that are not are of another container, or of the host
        why.append("processes of another container or of the host are on these GPUs")
    elif unseen and not strangers:
        remarks.append("The driver names processes on the GPUs, but not so that this container knows whose they are.")
    busy = _busy_while_idle(record, client_starts)
    if busy:
        why.append(busy)
    if why:
        reasons.append(
            reason(
                "bench-gpus-shared",
                "somebody else used the GPUs",
                "; ".join(why),
                "stop what does not belong to the server (nvidia-smi names it), then measure again",
            )
        )
    return strangers


def _busy_while_idle(record: Mapping[str, Any], client_starts: Optional[float]) -> Optional[str]:
    """GPUs that worked before the client sent anything; None when none did, or nobody looked."""
    if client_starts is None:
        return None
    before = [s for s in record.get("samples") or [] if float(s["t"]) < client_starts - 0.2]
    # what the driver averages over a second may still tell of what came before
    before = [s for s in before if float(s["t"]) > float(before[0]["t"]) + 1.5]
    if len(before) < 5:
        return None
    for place in range(len(record.get("devices") or [])):
        used = sorted(
            float(s["gpus"][place]["utilization_pct"])
            for s in before
            if isinstance(s["gpus"][place].get("utilization_pct"), (int, float))
        )
        if used and used[len(used) // 2] > IDLE_PCT:
            return "GPU %d worked (%.0f %%) while the server had nothing to do" % (place, used[len(used) // 2])
    return None


def sane(checked: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], reasons: Reasons) -> Dict[str, Any]:
    """``sanity``: the sampled answers, and the prompts with a known answer, asked before and after.

    Args:
        checked: as :func:`bench_answers.check` gives it. asked: ``{"when", "answer", "problem"}``.
    """
    why = []
    wrong = [one for one in asked if one.get("problem")]
    if checked["checked"] and checked["bad"] > GARBAGE_SHARE * checked["checked"]:
        why.append("%d of %d sampled answers: %s" % (checked["bad"], checked["checked"], checked["why"]))
    why += ["asked %s: %s" % (one["when"], one["problem"]) for one in wrong]
    if why:
        reasons.append(
            reason(
                "bench-garbage",
                "the server's answers are garbage",
                "; ".join(why),
                "rackwell verify; compare with a build without its patches: speed without right answers is nothing",
            )
        )
    example = checked["example"]
    if example is None and wrong:
        example = str(wrong[0].get("answer") or "")[:80]
    return {"checked": checked["checked"], "bad": checked["bad"], "example": example, "why": "; ".join(why) or None}
