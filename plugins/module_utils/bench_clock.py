# SPDX-License-Identifier: Apache-2.0
"""Puts the client's measured time on the recorder's clock."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_clients, bench_telemetry


def utc(wall: float) -> str:
    """Seconds since the epoch as ISO 8601."""
    return dt.datetime.fromtimestamp(wall, dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_now() -> str:
    """Now, as ISO 8601."""
    return utc(time.time())


def starts_of(record: Mapping[str, Any], watch: Mapping[str, Any], line: Mapping[str, Any]) -> List[Any]:
    """When each request began, monotonic seconds, in the order of the client's lists; empty where nobody knows."""
    starts = watch.get("starts")
    if isinstance(starts, list) and starts:
        return starts
    clock = record.get("clock") or {}
    if line.get("starts_wall") and {"wall", "monotonic"} <= set(clock):
        return [float(start) - clock["wall"] + clock["monotonic"] for start in line["starts_wall"]]
    return []


def window_of(
    record: Optional[Mapping[str, Any]],
    watch: Mapping[str, Any],
    line: Mapping[str, Any],
    client: bench_clients.Client,
    duration: float,
) -> Optional[Dict[str, Any]]:
    """The client's measured time on the recorder's clock: exact where the client was watched, else from its lines."""
    if record is None:
        return None
    clock = record.get("clock") or {}
    phases = watch.get("phases") or []
    starts = [start for start in starts_of(record, watch, line) if isinstance(start, (int, float))]
    if phases and {"begin", "end"} <= set(phases[-1]):
        start, length, doubt = float(phases[-1]["begin"]), float(phases[-1]["end"] - phases[-1]["begin"]), 0.0
    elif client.watched or not starts:
        return window_of_lines(record, client, duration)
    else:
        start, length, doubt = float(min(starts)), duration, 0.0
    wall = clock["wall"] + start - clock["monotonic"] if {"wall", "monotonic"} <= set(clock) else None
    return {
        "start": start,
        "start_utc": None if wall is None else utc(wall),
        "duration_s": round(length, 4),
        "uncertainty_s": doubt,
    }


def window_of_lines(
    record: Mapping[str, Any], client: bench_clients.Client, duration: float
) -> Optional[Dict[str, Any]]:
    """The window where only the client's lines tell it, with the bound on how far off it can be.

    The client prints its start line, flushes the server's cache, sleeps for a second and starts its clock; it stops the
    clock, counts tokens and prints the head of its result. Both lines are stamped by the recorder.
    """
    seen = record.get("window_start")
    if not isinstance(seen, (int, float)):
        return None
    start = seen + client.pause
    closed = bench_telemetry.find_line(record, client.end_line)
    clock = record.get("clock") or {}
    wall = clock["wall"] + start - clock["monotonic"] if {"wall", "monotonic"} <= set(clock) else None
    return {
        "start": start,
        "start_utc": None if wall is None else utc(wall),
        "duration_s": duration,
        "uncertainty_s": None if closed is None else round(max(closed - duration - start, 0.0), 3),
    }
