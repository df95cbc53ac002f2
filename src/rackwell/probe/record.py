# SPDX-License-Identifier: Apache-2.0
"""Runs a command and records what the GPUs did meanwhile, on one clock with the command's own words.

The summary counts the window only: from the stdout line that announces the measurement to the line or the exit that
ends it. Readings from before and after it (a server that is loading, a GPU that idles again) say nothing about it.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rackwell.probe import loadgen
from rackwell.probe.report import host, problem
from rackwell.probe.serverload import ServerLoad
from rackwell.probe.telemetry import Sampler

SCHEMA = "rackwell.telemetry/1"
MAX_LINES = 20_000
MAX_LINE = 500  # characters
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def record(
    command: Sequence[str],
    out: Path,
    hz: float,
    start_pattern: str | None,
    end_pattern: str | None = None,
    server: tuple[str, int] | None = None,
    server_hz: float = 1.0,
) -> int:
    """Run ``command`` to its end, write the record to ``out`` and give the command's exit status.

    Args:
        command: program and arguments; its stdout passes through to ours, line by line.
        out: JSON file, written at the end in one piece.
        hz: samples a second.
        start_pattern: regular expression; the window starts at the first stdout line that it is found in. None = with
            the command.
        end_pattern: likewise for the end. None = with the command.
        server: address of the server under load, whose own metrics are read ``server_hz`` times a second.

    Returns:
        The command's exit status, 128 + N when signal N ended it, 126 or 127 when it could not be started.
    """
    sampler = Sampler(hz)
    sampler.start()
    load = ServerLoad(server[0] if server else None, server[1] if server else 0, server_hz if server else 0.0)
    load.start()
    with Relay() as relay:
        return _recorded(command, out, Window(start_pattern, end_pattern, sampler), sampler, load, relay)


def _recorded(
    command: Sequence[str], out: Path, window: Window, sampler: Sampler, load: ServerLoad, relay: Relay
) -> int:
    clock = Clock()
    used = _own_cpu()
    window.begin(clock.start)
    lines = Lines()
    problems = []
    try:
        code = _run(command, window, lines, relay)
    except OSError as error:
        code = 127 if error.errno == errno.ENOENT else 126
        what = f"{command[0]} cannot be started"
        problems.append(problem("command-not-started", what, host(), str(error.strerror), "give a program that exists"))
        sys.stderr.write(f"{what}: {error.strerror}\n")
    window.finish(time.monotonic())
    sampler.stop()
    load.stop()
    if sampler.unavailable:
        fix = "`python -m rackwell.probe check` says what is wrong with the driver"
        problems.append(problem("nvml-unavailable", "there is no telemetry", host(), sampler.unavailable, fix))
    report = {
        "schema": SCHEMA,
        "command": list(command),
        "exit_code": code,
        "clock": clock.as_dict(),
        "hz": sampler.hz,
        "driver_version": sampler.driver_version,
        "devices": sampler.devices,
        "samples": sampler.samples,
        "links": sampler.links,
        "processes": sampler.processes,
        "server": load.as_dict(),
        "lines": list(lines.kept),
        "lines_dropped": lines.dropped,
        "window_start": window.start,
        "window_end": window.end,
        "window": window.as_dict(),
        "telemetry": telemetry_of(sampler, _own_cpu() - used),
        "summary": summary(sampler, window.start, window.end),
        "problems": problems,
    }
    write(out, report)
    return code


class Clock:
    """All times of the record are seconds of the monotonic clock; this ties that to the wall clock."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.wall = time.time()

    def as_dict(self) -> dict[str, Any]:
        """Both clocks, read together as the command starts, the seconds from then until now, and by how much more or
        less the wall clock went on meanwhile."""
        return {
            "monotonic": self.start,
            "wall": self.wall,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.wall)),
            "seconds": round(time.monotonic() - self.start, 4),
            "wall_moved": round(time.time() - self.wall - (time.monotonic() - self.start), 4),
        }


class Lines:
    """The command's lines with their times: long ones cut, and of very many the last ones."""

    def __init__(self) -> None:
        self.kept: collections.deque[dict[str, Any]] = collections.deque(maxlen=MAX_LINES)
        self.dropped = 0

    def add(self, text: str, now: float) -> None:
        self.dropped += len(self.kept) == MAX_LINES
        self.kept.append({"t": now, "text": text[:MAX_LINE]})


class Window:
    """The part of the run that counts; ``start`` and ``end`` are monotonic seconds, None while not seen."""

    def __init__(self, start_pattern: str | None, end_pattern: str | None, sampler: Sampler) -> None:
        self.start_pattern, self.end_pattern = start_pattern, end_pattern
        self.start: float | None = None
        self.end: float | None = None
        self.end_seen = False
        self._sampler = sampler

    def begin(self, now: float) -> None:
        """The command starts."""
        if self.start_pattern is None:
            self._open(now)

    def line(self, text: str, now: float) -> None:
        """The command has printed a line."""
        if self.start is None:
            if self.start_pattern and re.search(self.start_pattern, text):
                self._open(now)
        elif self.end is None and self.end_pattern and re.search(self.end_pattern, text):
            self.end_seen = True
            self._close(now)

    def mark(self) -> None:
        """Have a whole sample now."""
        self._sampler.mark()

    def finish(self, now: float) -> None:
        """The command has ended."""
        if self.start is not None and self.end is None:
            self._close(now)

    def _open(self, now: float) -> None:
        self.start = now
        self._sampler.mark()

    def _close(self, now: float) -> None:
        self.end = now
        self._sampler.mark()

    def as_dict(self) -> dict[str, Any]:
        why = None
        if self.start is None:
            why = f"no line of the command's output matches {self.start_pattern!r}"
        elif self.end_pattern and not self.end_seen:
            why = f"no line after the start matches {self.end_pattern!r}; the window ends with the command"
        return {
            "start_pattern": self.start_pattern,
            "end_pattern": self.end_pattern,
            "start": self.start,
            "end": self.end,
            "seconds": None if self.start is None or self.end is None else round(self.end - self.start, 4),
            "why": why,
        }


def _run(command: Sequence[str], window: Window, lines: Lines, relay: Relay) -> int:
    """Run it in its own process group and stay to record its end, whatever signal asks for that."""
    if shutil.which(command[0]) is None:
        code = errno.EACCES if Path(command[0]).exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), command[0])
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as output:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "rackwell.probe.launch", *command],
                stdout=writer,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        finally:
            os.close(writer)
        relay.attach(process.pid)
        for raw in output:
            now = time.monotonic()
            text = raw.decode(errors="replace").rstrip("\r\n")
            window.line(text, now)
            if text.startswith(loadgen.MARK):
                window.mark()  # the load generator's clock starts or stops
            lines.add(text, now)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
    code = process.wait()
    relay.detach()
    return code if code >= 0 else 128 - code


class Relay:
    """Passes SIGINT and SIGTERM on to the command's group instead of ending by them."""

    def __init__(self) -> None:
        self._group: int | None = None
        self._pending: list[int] = []

    def __enter__(self) -> Relay:
        self._before = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def attach(self, group: int) -> None:
        """The command runs: hand it what came before it did."""
        self._group = group
        for number in self._pending:
            self._pass_on(number)

    def detach(self) -> None:
        """The command has ended: its number may soon be another's."""
        self._group = None

    def _pass_on(self, number: int, _frame: object = None) -> None:
        if self._group is None:
            self._pending.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, number)


def telemetry_of(sampler: Sampler, own_cpu: float) -> dict[str, Any]:
    """Whether there are samples, why not or why they end early, and what taking them cost.

    ``own_cpu``: seconds that this process used meanwhile; it asks the server and passes the command's lines on.
    """
    if not sampler.samples:
        return {"available": False, "why": sampler.unavailable or "no sample was taken"}
    overhead = None
    if sampler.overhead:
        seconds = max(sampler.samples[-1]["t"] - sampler.samples[0]["t"], 1e-9)
        # both processes: the one that reads the GPUs, and this one, which also asks the server
        share = round((sampler.overhead["cpu_seconds"] + own_cpu) / seconds, 4)
        overhead = {**sampler.overhead, "cpu_share": share, "recorder_cpu_seconds": round(own_cpu, 4)}
    return {"available": True, "why": sampler.unavailable or None, "overhead": overhead}


def summary(sampler: Sampler, start: float | None, end: float | None) -> dict[str, Any] | None:
    """Means and maxima inside the window, per GPU and for all; None when there is no window or no sample in it."""
    if start is None or end is None:
        return None
    # the samples asked for at the edges come a moment after them
    inside = [sample for sample in sampler.samples if start <= sample["t"] <= end]
    if not inside:
        return None
    edges = _edges(sampler.samples, start, end)
    gpus = []
    for index, device in enumerate(sampler.devices):
        readings = [sample["gpus"][index] for sample in inside]
        gpus.append({"index": index, "uuid": device["uuid"], "bus_id": device["bus_id"], **_gpu(readings)})
        gpus[-1].update(_energy(edges, index))
    return {"samples": len(inside), "gpus": gpus, "total": _total(inside, gpus)}


def _gpu(readings: list[dict[str, Any]]) -> dict[str, Any]:
    power = _values(readings, "power_w")
    limits = _values(readings, "power_limit_w")
    limit = max(limits, default=None)
    share = [watts / limit for watts in power] if limit else []
    use = _values(readings, "utilization_pct")
    return {
        "power_mean_w": _mean(power),
        "power_max_w": max(power, default=None),
        "power_limit_w": limit,
        "power_share_of_limit_mean": _mean(share, 4),
        "power_share_of_limit_max": round(max(share), 4) if share else None,
        "power_is_instant": all(reading["power_instant"] for reading in readings if reading["power_w"] is not None),
        "utilization_mean_pct": _mean(use),
        "utilization_max_pct": max(use, default=None),
        "memory_used_max_mib": max(_values(readings, "memory_used_mib"), default=None),
        "temperature_max_c": max(_values(readings, "temperature_c"), default=None),
        "sm_clock_mean_mhz": _mean(_values(readings, "sm_clock_mhz")),
    }


def _edges(samples: list[dict[str, Any]], start: float, end: float) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The whole samples closest to both edges of the window; None when that is one and the same."""
    whole = [sample for sample in samples if all(gpu["energy_mj"] is not None for gpu in sample["gpus"])]
    samples = whole or samples
    first = min(samples, key=lambda sample: abs(sample["t"] - start))
    last = min(samples, key=lambda sample: abs(sample["t"] - end))
    return None if first is last else (first, last)


def _energy(edges: tuple[dict[str, Any], dict[str, Any]] | None, index: int) -> dict[str, Any]:
    """Joules between the samples at the edges, by the counter, and the seconds that lie between them."""
    if edges is None:
        return {"energy_j": None, "energy_seconds": None}
    first, last = edges
    counters = [sample["gpus"][index]["energy_mj"] for sample in (first, last)]
    if None in counters or counters[1] < counters[0]:  # the counter starts again when the driver is loaded
        return {"energy_j": None, "energy_seconds": None}
    return {
        "energy_j": round((counters[1] - counters[0]) / 1000, 3),
        "energy_seconds": round(last["t"] - first["t"], 4),
    }


def _total(inside: list[dict[str, Any]], gpus: list[dict[str, Any]]) -> dict[str, Any]:
    sums = []
    for sample in inside:
        power = [reading["power_w"] for reading in sample["gpus"]]
        if None not in power:
            sums.append(sum(power))
    energies = [gpu["energy_j"] for gpu in gpus]
    uses = [gpu["utilization_mean_pct"] for gpu in gpus if gpu["utilization_mean_pct"] is not None]
    limits = [gpu["power_limit_w"] for gpu in gpus]
    return {
        "power_mean_w": _mean(sums),
        "power_max_w": round(max(sums), 3) if sums else None,
        "power_limit_w": None if None in limits else sum(limits),
        "utilization_mean_pct": _mean(uses),
        "energy_j": None if None in energies else round(sum(energies), 3),
    }


def _values(readings: list[dict[str, Any]], key: str) -> list[float]:
    return [reading[key] for reading in readings if reading[key] is not None]


def _mean(values: Sequence[float], digits: int = 3) -> float | None:
    return round(sum(values) / len(values), digits) if values else None


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write(out: Path, report: dict[str, Any]) -> None:
    """Replace ``out`` in one piece: a reader sees the whole record or the one before."""
    descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(report, stream)
            stream.write("\n")
        Path(name).chmod(0o644)
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
