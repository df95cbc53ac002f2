# SPDX-License-Identifier: Apache-2.0
"""Reads and judges what the unit of a measurement left in its directory; the result is ``rackwell.bench_point/1``."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import json
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client, bench_telemetry, bench_unit

if TYPE_CHECKING:
    from typing import Protocol

    class Server(Protocol):
        """What is asked about the server after the measurement."""

        unit: str

        def state(self) -> str: ...
        def answers(self) -> bool: ...
        def lines(self) -> List[str]: ...


SCHEMA = "rackwell.bench_point/1"
#: Below this, what the driver averages over up to a second is a large part of the window.
SHORT_WINDOW_S = 10
#: what a file may raise that has not the form that its writer gives it
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_ECHO = (
    "run_id",
    "concurrency",
    "num_prompts",
    "input_tokens",
    "output_tokens",
    "repeat",
    "seed",
    "warmup_requests",
)


def utc(wall: float) -> str:
    """Seconds since the epoch as ISO 8601."""
    return dt.datetime.fromtimestamp(wall, dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_now() -> str:
    """Now, as ISO 8601."""
    return utc(time.time())


class Reading:
    """The files of one measurement.

    Args:
        directory: where the unit left its files.
        options: the module's options. command: the client's command line, for the record.
        client_version: as installed. server: asked only when something is amiss.
        owner: id of the service user, whose files alone are believed below ``client/``.
    """

    def __init__(
        self,
        directory: str,
        options: Mapping[str, Any],
        command: List[str],
        client_version: Optional[str],
        server: Server,
        owner: int,
    ) -> None:
        self.directory = directory
        self.options = options
        self.command = command
        self.client = {"name": "sglang.bench_serving", "version": client_version}
        self.server = server
        self.owner = owner

    def path(self, name: str) -> str:
        """A file of this measurement."""
        return os.path.join(self.directory, name)

    def client_path(self, name: str) -> str:
        """A file that the service user wrote."""
        return os.path.join(self.directory, bench_unit.CLIENT, name)

    def result(self, status: str, reasons: Optional[List[Dict[str, str]]] = None, **more: Any) -> Dict[str, Any]:
        """The result, whatever became of it. ``status``: measured, failed, crashed or planned."""
        found = {"schema": SCHEMA}  # type: Dict[str, Any]
        found.update({key: self.options[key] for key in _ECHO})
        found.update(
            status=status,
            valid=status == "measured" and not reasons,
            reasons=reasons or [],
            remarks=[],
            lines=[],
            command=self.command,
            client=self.client,
        )
        found.update(more)
        return found

    def read(self) -> Dict[str, Any]:
        """Read what the ended unit left, and judge it."""
        ended = bench_unit.outcome(self.directory, self.owner) or ("unknown", "", "")
        context = bench_unit.read_json(self.path("context.json")) or {}
        more = {"started_utc": context.get("started_utc"), "exit_status": ended[2]}  # type: Dict[str, Any]
        restarted = bool(context.get("server")) and context["server"] != self.server.state()
        line = self.client_line()
        if line is None or ended[0] != "success":
            return self._without_numbers(ended[0], ended[2], restarted, more)
        try:
            summary = bench_client.summarise(line, self.options)
            json.dumps(summary, allow_nan=False)
            reasons = bench_client.judge(summary)
            remarks = bench_client.remarks(summary, self.options["concurrency"])
        except _MALFORMED as error:
            return self._malformed(error, more)
        info = line.get("server_info") or {}
        more.update(summary)
        more.update(
            server={key: info.get(key) for key in ("version", "model_path", "served_model_name", "tp_size")},
            remarks=remarks,
        )
        if restarted or (reasons and not self.server.answers()):
            return self.result("crashed", [self._died(), *reasons], lines=self.server.lines(), **dict(more))
        telemetry = self._telemetry(summary["throughput"]["duration_s"], more["remarks"])
        return self.result("measured", reasons, telemetry=telemetry, **more)

    def client_line(self) -> Optional[Dict[str, Any]]:
        """The client's line, which is scrubbed of secrets and packed on the host the first time it is read."""
        packed = self.path("out.jsonl.gz")
        if os.path.exists(packed):
            with gzip.open(packed, "rt", encoding="utf-8") as stream:
                kept = bench_client.parse_output(stream.read())
            return None if kept is None else dict(kept)
        line = bench_client.parse_output(bench_unit.read_text(self.client_path("out.jsonl"), self.owner))
        if line is None:
            return None
        line = dict(bench_client.scrub(line))
        # a controller that was cut off may have left a reader behind, which does the same at the same time
        partial = "%s.%d" % (packed, os.getpid())
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as stream:
            stream.write(json.dumps(line) + "\n")
        os.replace(partial, packed)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.client_path("out.jsonl"))
        return line

    def _telemetry(self, duration: float, remarks: List[str]) -> Optional[Dict[str, Any]]:
        """Telemetry of the window; what is missing is added to the remarks."""
        telemetry = bench_unit.read_json(self.client_path("telemetry.json"), self.owner)
        try:
            window = bench_window(telemetry, duration)
            if telemetry is None or window is None:
                remarks.append("No GPU telemetry: the recorder left no window.")
                return None
            reduced = bench_telemetry.reduce(telemetry, window.pop("start"), duration)
            json.dumps([reduced, window], allow_nan=False)
        except _MALFORMED as error:
            remarks.append("No GPU telemetry: the recorder's file is malformed (%s)." % error)
            return None
        if not reduced["samples"]:
            told = telemetry.get("telemetry")
            why = (told.get("why") if isinstance(told, dict) else None) or "no sample lies in the window"
            remarks.append("No GPU telemetry: %s." % str(why).rstrip("."))
        elif duration < SHORT_WINDOW_S:
            remarks.append(
                "The window is shorter than %d s: power and utilisation, which the driver averages, are coarse."
                % SHORT_WINDOW_S
            )
        return dict(reduced, window=window)

    def _malformed(self, error: Exception, more: Dict[str, Any]) -> Dict[str, Any]:
        """A line of the client that is not what this version of it writes."""
        reason = bench_client.reason(
            "bench-output-malformed",
            "the client's numbers cannot be read",
            "%s: %s" % (type(error).__name__, error),
            "read %s; is the client the version that the build bench-client pins?" % self.path("out.jsonl.gz"),
        )
        return self.result("failed", [reason], **more)

    def _died(self) -> Dict[str, str]:
        """The reason that outranks all others."""
        found = bench_client.reason(
            "server-crashed",
            "the server died during the measurement",
            "its unit was started anew, or nothing listens on its port any more",
            "read `journalctl -u %s`; the last lines of it are in the result" % self.server.unit,
        )
        return dict(found)

    def _without_numbers(self, ended: str, status: str, restarted: bool, more: Dict[str, Any]) -> Dict[str, Any]:
        """A client that left no numbers: the server's death, the deadline, or its own failure."""
        if restarted or not self.server.answers():
            return self.result("crashed", [self._died()], lines=self.server.lines(), **more)
        stdout, stderr = (bench_unit.read_text(self.path(name)) for name in ("stdout", "stderr"))
        lines = bench_client.telling_lines(stdout, stderr)
        if ended == "timeout":
            reason = bench_client.reason(
                "bench-timeout",
                "the measurement was not done after %d s" % self.options["point_timeout"],
                "it was stopped by its deadline",
                "raise point_timeout in the bench file, or lower prompts_per_stream",
            )
        else:
            reason = bench_client.reason(
                "bench-client-failed",
                "the client ended without numbers (%s)" % " ".join(filter(None, (ended, status))),
                lines[-1] if lines else "it printed nothing",
                "read %s" % self.path("stderr"),
            )
        return self.result("failed", [reason], lines=lines, **more)


def bench_window(telemetry: Optional[Mapping[str, Any]], duration: float) -> Optional[Dict[str, Any]]:
    """The client's clock on the recorder's clock, with the bound on how far off it can be.

    The client prints its start line, flushes the server's cache, sleeps for a second and starts its clock; it stops the
    clock, counts tokens and prints the head of its result. Both lines are stamped by the recorder.
    """
    seen = (telemetry or {}).get("window_start")
    if telemetry is None or not isinstance(seen, (int, float)):
        return None
    start = seen + bench_client.PAUSE_S
    closed = bench_telemetry.find_line(telemetry, bench_client.END_PATTERN)
    clock = telemetry.get("clock") or {}
    wall = clock["wall"] + start - clock["monotonic"] if {"wall", "monotonic"} <= set(clock) else None
    return {
        "start": start,
        "start_utc": None if wall is None else utc(wall),
        "duration_s": duration,
        "uncertainty_s": None if closed is None else round(max(closed - duration - start, 0.0), 3),
    }
