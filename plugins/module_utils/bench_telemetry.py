# SPDX-License-Identifier: Apache-2.0
"""GPU telemetry of one benchmark window: statistics from all samples, and a series thin enough to travel and to plot.

Input is ``rackwell.telemetry/1`` as the probe's recorder writes it: all times are seconds of one monotonic clock. The
window's edges are on the same clock, so nothing before or after the load is counted.
"""

from __future__ import annotations

import bisect
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

MAX_HZ = 5.0
MAX_SAMPLES = 600

#: quantity of each sample -> decimals kept in the series
SERIES = {
    "power_w": 1,
    "utilization_pct": 0,
    "memory_used_mib": 0,
    "temperature_c": 0,
    "sm_clock_mhz": 0,
    "memory_clock_mhz": 0,
    "memory_utilization_pct": 0,
}
#: way in the recorder's readings -> quantity of the result
LINKS = {"tx": "pcie_tx_mb_per_s", "rx": "pcie_rx_mb_per_s"}
#: a bit of the driver's clocks event reasons -> its name
REASONS = {
    0x1: "gpu-idle",
    0x2: "applications-clocks",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clocks",
}
#: those that say that the GPU was slower than its limits allow; a power limit is no fault
BAD_REASONS = ("hw-slowdown", "sw-thermal", "hw-thermal", "hw-power-brake")
#: without a sample for so many periods there is a gap
GAP_PERIODS = 3.0

_Pair = Tuple[float, float]


def find_line(telemetry: Mapping[str, Any], text: str) -> Optional[float]:
    """Time of the first output line of the command that contains ``text``."""
    for line in telemetry.get("lines") or []:
        if text in str(line.get("text", "")):
            return float(line["t"])
    return None


def mean_over(pairs: Sequence[_Pair], start: float, end: float) -> Optional[float]:
    """Time-weighted mean of a sampled quantity over [start, end], linear between samples, flat beyond them."""
    if not pairs or end <= start:
        return None
    total = 0.0
    points = [(start, at(pairs, start))] + [p for p in pairs if start < p[0] < end] + [(end, at(pairs, end))]
    for i in range(1, len(points)):
        total += (points[i][0] - points[i - 1][0]) * (points[i][1] + points[i - 1][1]) / 2
    return total / (end - start)


def at(pairs: Sequence[_Pair], moment: float) -> float:
    """Value of a sampled quantity at a moment, linear between the neighbours, flat beyond the ends."""
    if moment <= pairs[0][0]:
        return pairs[0][1]
    right = bisect.bisect_left([t for t, _v in pairs], moment)
    if right == len(pairs):
        return pairs[-1][1]
    (t0, v0), (t1, v1) = pairs[right - 1], pairs[right]
    return v0 + (v1 - v0) * (moment - t0) / (t1 - t0)


def thin(
    times: Sequence[float], values: Sequence[Optional[float]], buckets: int, start: float, width: float
) -> List[Optional[float]]:
    """Means of equal time slices; a slice without a reading is None."""
    sums, counts = [0.0] * buckets, [0] * buckets
    for i, value in enumerate(values):
        place = math.floor((times[i] - start) / width)
        if value is not None and 0 <= place < buckets:
            sums[place] += value
            counts[place] += 1
    return [sums[i] / counts[i] if counts[i] else None for i in range(buckets)]


def _value(sample: Mapping[str, Any], gpu: int, key: str) -> Optional[float]:
    gpus = sample.get("gpus") or []
    found = gpus[gpu].get(key) if gpu < len(gpus) and isinstance(gpus[gpu], dict) else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _energy(
    samples: Sequence[Mapping[str, Any]], gpu: int, start: float, end: float, power: Optional[float]
) -> Tuple[Optional[float], str]:
    """Joules in the window: from the device's counter where it covers the edges, else from the mean power."""
    counter = [(float(s["t"]), v) for s in samples for v in [_value(s, gpu, "energy_mj")] if v is not None]
    # the sample before the window, those in it, and the one behind it
    first = max((i for i, pair in enumerate(counter) if pair[0] <= start), default=None)
    last = min((i for i, pair in enumerate(counter) if pair[0] >= end), default=None)
    if first is not None and last is not None and first < last:
        values = [value for _t, value in counter[first : last + 1]]
        # a counter that falls was started anew with the driver
        if values[-1] > values[0] and all(values[i] <= values[i + 1] for i in range(len(values) - 1)):
            return (at(counter, end) - at(counter, start)) / 1e3, "counter"
    return (power * (end - start), "power") if power is not None else (None, "none")


def counter_fell(record: Mapping[str, Any], start: float, end: float) -> List[int]:
    """GPUs whose energy counter went back in the window: their driver was loaded anew meanwhile."""
    found = []
    every = sorted(record.get("samples") or [], key=lambda s: float(s["t"]))
    for gpu in range(len(record.get("devices") or [])):
        values = [_value(s, gpu, "energy_mj") for s in every if start <= float(s["t"]) <= end]
        known = [value for value in values if value is not None]
        if any(known[i + 1] < known[i] for i in range(len(known) - 1)):
            found.append(gpu)
    return found


def _gaps(times: Sequence[float], start: float, end: float, hz: float) -> Tuple[int, Optional[float]]:
    """How often, and for how long at most, the window is without a sample."""
    if not times or hz <= 0:
        return 0, None
    edges = [start, *times, end]
    pauses = [edges[i + 1] - edges[i] for i in range(len(edges) - 1)]
    # a recorder that keeps to its budget may sample more rarely than it was asked to
    usual = max(1 / hz, sorted(pauses)[len(pauses) // 2])
    long = [pause for pause in pauses if pause > GAP_PERIODS * usual]
    return len(long), round(max(long), 3) if long else None


def _throttle(samples: Sequence[Mapping[str, Any]], gpu: int) -> Dict[str, float]:
    """Name of each reason for lower clocks -> share of the samples that name it."""
    masks = [int(v) for s in samples for v in [_value(s, gpu, "throttle_reasons")] if v is not None]
    shares = {name: sum(bool(mask & bit) for mask in masks) / len(masks) for bit, name in REASONS.items() if masks}
    return {name: round(share, 4) for name, share in shares.items() if share}


def _sampled(pairs: Sequence[_Pair], decimals: int, grid: Tuple[float, int, float]) -> Dict[str, Any]:
    """Mean, highest and thinned series of a quantity that has samples of its own; ``grid``: start, slices, width."""
    start, buckets, width = grid
    series = thin([t for t, _v in pairs], [v for _t, v in pairs], buckets, start, width) if buckets else []
    return {
        "mean": round(sum(v for _t, v in pairs) / len(pairs), 2) if pairs else None,
        "max": round(max(v for _t, v in pairs), 2) if pairs else None,
        "series": [None if v is None else round(v, decimals) if decimals else round(v) for v in series],
    }


def _pairs(items: Any, first: str, second: str, start: float, end: float) -> List[_Pair]:
    """(time, value) of a list of objects, those inside the window."""
    found = []
    for item in items or []:
        moment, value = item.get(first), item.get(second)
        if isinstance(moment, (int, float)) and isinstance(value, (int, float)) and start <= moment <= end:
            found.append((float(moment), float(value)))
    return found


def reduce(record: Mapping[str, Any], start: float, duration: float) -> Dict[str, Any]:
    """The ``telemetry`` part of ``rackwell.bench_point/1``.

    Args:
        record: ``rackwell.telemetry/1``.
        start: monotonic time at which the window opens. duration: seconds.

    Returns:
        ``t`` (seconds from the window's start), and for each GPU its series over ``t``, and mean, highest and energy
        over the window from *all* samples in it. Absent readings are None.
    """
    end = start + duration
    every = sorted(record.get("samples") or [], key=lambda s: float(s["t"]))
    inside = [s for s in every if start <= float(s["t"]) <= end]
    buckets = min(len(inside), MAX_SAMPLES, max(1, math.ceil(duration * MAX_HZ))) if inside else 0
    width = duration / buckets if buckets else 0.0
    gpus = [
        _gpu(device, place, every, inside, (start, end, buckets, width))
        for place, device in enumerate(record.get("devices") or [])
    ]
    for link in record.get("links") or []:
        moment, place, way, rate = link
        if start <= moment <= end and place < len(gpus):
            gpus[place].setdefault("_" + str(way), []).append((float(moment), float(rate)))
    for gpu in gpus:
        for way, name in LINKS.items():
            gpu[name] = _sampled(gpu.pop("_" + way, []), 0, (start, buckets, width))
    joules = [g["energy_j"] for g in gpus if g["energy_j"] is not None]
    gaps, longest = _gaps([float(s["t"]) for s in inside], start, end, float(record.get("hz") or 0))
    overhead = (record.get("telemetry") or {}).get("overhead") or {}
    cores = _pairs((record.get("server") or {}).get("cpu"), "t", "pct", start, end)
    return {
        "driver_version": record.get("driver_version"),
        "samples": len(inside),
        "hz": round(len(inside) / duration, 2) if duration > 0 else 0.0,
        "t": [round((i + 0.5) * width, 3) for i in range(buckets)],
        "gpus": gpus,
        "gaps": gaps,
        "longest_gap_s": longest,
        "cpu_share": overhead.get("cpu_share"),
        "cpu_pct": _sampled(cores, 0, (start, buckets, width)),
        "energy_j": round(math.fsum(joules), 2) if gpus and len(joules) == len(gpus) else None,
    }


def _gpu(
    device: Mapping[str, Any],
    place: int,
    every: Sequence[Mapping[str, Any]],
    inside: Sequence[Mapping[str, Any]],
    window: Tuple[float, float, int, float],
) -> Dict[str, Any]:
    start, end, buckets, width = window
    times = [float(s["t"]) for s in inside]
    limits = [v for s in inside for v in [_value(s, place, "power_limit_w")] if v is not None]
    gpu = {
        "index": device.get("index", place),
        "uuid": device.get("uuid"),
        "name": device.get("name"),
        "bus_id": device.get("bus_id"),
        "memory_total_mib": device.get("memory_total_mib"),
        "power_limit_w": min(limits) if limits else device.get("power_limit_w"),
    }  # type: Dict[str, Any]
    for name, decimals in SERIES.items():
        values = [_value(s, place, name) for s in inside]
        pairs = [(times[i], v) for i, v in enumerate(values) if v is not None]
        mean = mean_over(pairs, start, end)
        series = thin(times, values, buckets, start, width) if buckets else []
        gpu[name] = {
            "mean": None if mean is None else round(mean, 2),
            "max": round(max(v for _t, v in pairs), 2) if pairs else None,
            "series": [None if v is None else round(v, decimals) if decimals else round(v) for v in series],
        }
    joules, source = _energy(every, place, start, end, gpu["power_w"]["mean"])
    gpu["energy_j"] = None if joules is None else round(joules, 2)
    gpu["energy_source"] = source
    gpu["throttle"] = _throttle(inside, place)
    return gpu
