# SPDX-License-Identifier: Apache-2.0
"""Reads and judges what the unit of a measurement left in its directory; the result is ``rackwell.bench_point/1``."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import (
    bench_answers,
    bench_client,
    bench_clients,
    bench_clock,
    bench_judge,
    bench_telemetry,
    bench_unit,
    bench_window,
)

if TYPE_CHECKING:
    from typing import Protocol

    class Server(Protocol):
        """What is asked about the server after the measurement."""

        unit: str

        def state(self) -> str: ...
        def answers(self) -> bool: ...
        def lines(self) -> List[str]: ...
        def known_answer(self, sane: Optional[Mapping[str, Any]], when: str) -> List[Dict[str, str]]: ...


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
#: what the user's files are packed into, for root
OUTPUT, RECORD = "out.jsonl.gz", "telemetry.json.gz"


class Reading:
    """The files of one measurement.

    Args:
        directory: where the unit left its files.
        options: the module's options. client: the load generator that runs.
        server: asked when something is amiss, and for the answer that it must know.
        owner: id of the service user, whose files alone are believed below ``client/``.
    """

    def __init__(
        self,
        directory: str,
        options: Mapping[str, Any],
        client: bench_clients.Client,
        server: Server,
        owner: int,
    ) -> None:
        self.directory = directory
        self.options = options
        self.client = client
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
            # not the directory, which is of this measurement: so that it can be run again anywhere
            command=self.client.command(self.options, ""),
            client=self.client.about(),
            directory=self.directory,
        )
        found.update(more)
        return found

    def read(self) -> Dict[str, Any]:
        """Read what the ended unit left, and judge it."""
        ended = bench_unit.outcome(self.directory, self.owner) or ("unknown", "", "")
        context = bench_unit.read_json(self.path("context.json")) or {}
        more = {"started_utc": context.get("started_utc"), "exit_status": ended[2]}  # type: Dict[str, Any]
        restarted = bool(context.get("server")) and context["server"] != self.server.state()
        line, record = self.client_line(), self.record()
        if line is None or ended[0] != "success":
            return self._without_numbers(ended[0], ended[2], restarted, more)
        remarks = [str(remark) for remark in context.get("remarks") or []]
        try:
            summary = bench_client.summarise(line, self.options)
            json.dumps(summary, allow_nan=False)
            reasons = bench_client.judge(summary)
            remarks += bench_client.remarks(summary, self.options["concurrency"])
        except _MALFORMED as error:
            return self._malformed(error, more)
        info = line.get("server_info") or {}
        more.update(summary)
        more.update(
            server={key: info.get(key) for key in ("version", "model_path", "served_model_name", "tp_size")},
            remarks=remarks,
        )
        if restarted or (reasons and not self.server.answers()):
            return self.crashed(reasons, **more)
        more["sanity"] = bench_judge.sane(line["sanity"], self._asked(context), reasons)
        more.update(self._aside(line, record, summary, context, reasons, remarks))
        return self.result("measured", self._counting(reasons, remarks), **more)

    def _counting(self, reasons: List[Dict[str, str]], remarks: List[str]) -> List[Dict[str, str]]:
        """The reasons without those that are tolerated, which become remarks."""
        tolerated = self.options.get("tolerate") or []
        remarks += ["Tolerated: %(code)s (%(what)s): %(why)s." % one for one in reasons if one["code"] in tolerated]
        return [found for found in reasons if found["code"] not in tolerated]

    def _aside(
        self,
        line: Mapping[str, Any],
        record: Optional[Dict[str, Any]],
        summary: Mapping[str, Any],
        context: Mapping[str, Any],
        reasons: List[Dict[str, str]],
        remarks: List[str],
    ) -> Dict[str, Any]:
        """What recorder, watch and the server's metrics tell beside the client's figures.

        Each part is by itself: a malformed file costs what is in it, and no more.
        """
        found = {"telemetry": None}  # type: Dict[str, Any]
        duration = float(summary["throughput"]["duration_s"])
        watch = (record or {}).get("client")
        watch = watch if isinstance(watch, dict) else {}
        try:
            found["latency_samples"] = bench_window.latency_samples(line)
            window = bench_clock.window_of(record, watch, line, self.client, duration)
        except _MALFORMED as error:
            remarks.append("No GPU telemetry: the recorder's file is malformed (%s)." % error)
            return found
        if record is None or window is None:
            remarks.append("No GPU telemetry: the recorder left no window.")
            return found
        edges = (window["start"], window["start"] + window["duration_s"])
        self._safely("GPU telemetry", remarks, lambda: self._telemetry(found, record, window, reasons, remarks))
        self._safely(
            "account of the client's load",
            remarks,
            lambda: self._loads(found, line, record, watch, edges, context, reasons, remarks),
        )
        self._safely("look at the clocks", remarks, lambda: bench_judge.clock_skew(record, edges, reasons))
        return found

    def _safely(self, what: str, remarks: List[str], part: Any) -> None:
        try:
            part()
        except _MALFORMED as error:
            remarks.append("No %s: the recorder's file is malformed (%s)." % (what, error))

    def _loads(
        self,
        found: Dict[str, Any],
        line: Mapping[str, Any],
        record: Mapping[str, Any],
        watch: Mapping[str, Any],
        edges: Tuple[float, float],
        context: Mapping[str, Any],
        reasons: List[Dict[str, str]],
        remarks: List[str],
    ) -> None:
        """Steady part, timeline, client and server."""
        concurrency = int(self.options["concurrency"])
        requests = bench_window.requests_of(line, bench_clock.starts_of(record, watch, line))
        server = record.get("server")
        server = server if isinstance(server, dict) else {}
        samples = list(server.get("samples") or [])
        steady = bench_window.steady(requests, concurrency, float(self.options["steady_share"]), edges)
        timeline = bench_window.timeline(requests, samples, edges)
        bad, said = [], []  # type: List[Dict[str, str]], List[str]
        load = bench_judge.client_load(watch, requests, steady, samples, edges, concurrency, bad, said)
        told = bench_judge.server_load(server, edges)
        flush = bench_judge.flush(list(watch.get("flush") or []), context.get("flush") or {}, told, bad, said)
        parts = {
            "steady": steady,
            "timeline": timeline,
            "client_load": load,
            "server_load": told,
            "flush": flush,
            "foreign": bench_judge.foreign(
                record, self.server.unit, bench_telemetry.find_line(record, self.client.warm_line), bad, said
            ),
        }
        json.dumps([parts, bad, said], allow_nan=False)
        found.update(parts)
        reasons += bad
        remarks += said

    def _telemetry(
        self,
        found: Dict[str, Any],
        record: Mapping[str, Any],
        window: Dict[str, Any],
        reasons: List[Dict[str, str]],
        remarks: List[str],
    ) -> None:
        """Telemetry of the window; what is missing is added to the remarks."""
        start, duration = window["start"], window["duration_s"]
        reduced = bench_telemetry.reduce(record, start, duration)
        shown = {key: value for key, value in window.items() if key != "start"}
        json.dumps([reduced, shown], allow_nan=False)
        found["telemetry"] = dict(reduced, window=shown)
        if not reduced["samples"]:
            told = record.get("telemetry")
            why = (told.get("why") if isinstance(told, dict) else None) or "no sample lies in the window"
            remarks.append("No GPU telemetry: %s." % str(why).rstrip("."))
            return
        if duration < SHORT_WINDOW_S:
            remarks.append(
                "The window is shorter than %d s: power and utilisation, which the driver averages, are coarse."
                % SHORT_WINDOW_S
            )
        if reduced["gaps"]:
            remarks.append(
                "The telemetry has %d gaps, the longest of %.1f s." % (reduced["gaps"], reduced["longest_gap_s"])
            )
        fell = bench_telemetry.counter_fell(record, start, start + duration)
        if fell:
            remarks.append(
                "The energy counter of GPU %s began again in the window: its energy is that of its mean power."
                % ", ".join(map(str, fell))
            )
        bench_judge.throttled(reduced, reasons, remarks)

    def _asked(self, context: Mapping[str, Any]) -> List[Dict[str, str]]:
        """The known answers: of before, and of after the measurement, asked when it is read for the first time."""
        kept = bench_unit.read_json(self.path("after.json"))
        if kept is None:
            kept = {"asked": self.server.known_answer(self.options.get("sane"), "after the measurement")}
            with contextlib.suppress(OSError):
                bench_unit.write_text(self.path("after.json"), json.dumps(kept))
        every = [*(context.get("asked") or []), *(kept.get("asked") or [])]
        return [one for one in every if isinstance(one, dict)]

    def client_line(self) -> Optional[Dict[str, Any]]:
        """The client's line, which is scrubbed of secrets and packed on the host the first time it is read."""
        kept = self._packed(OUTPUT)
        if kept is not None:
            return kept
        try:
            line = self.client.read(os.path.join(self.directory, bench_unit.CLIENT), self.owner)
        except _MALFORMED:
            line = None
        if line is None:
            return None
        answers = {"checked": 0, "bad": 0, "example": None, "why": None}  # type: Dict[str, Any]
        with contextlib.suppress(*_MALFORMED):
            answers = dict(bench_answers.check(line, int(self.options["sanity_answers"])))
        line = dict(bench_client.scrub(line, sanity=answers))
        self._pack(OUTPUT, line, self.client.outputs())
        return line

    def record(self) -> Optional[Dict[str, Any]]:
        """The recorder's record with the watch's report in ``client``, packed the first time it is read."""
        kept = self._packed(RECORD)
        if kept is not None:
            return kept
        found = bench_unit.read_json(self.client_path(bench_clients.TELEMETRY), self.owner)
        watch = bench_unit.read_json(self.client_path(bench_clients.WATCH), self.owner)
        if found is None and watch is None:
            return None
        # of both together: one without the other still tells something
        record = dict(found or {"samples": [], "devices": []}, client=watch)
        with contextlib.suppress(ValueError):
            json.dumps(record, allow_nan=False)
            self._pack(RECORD, record, [bench_clients.TELEMETRY, bench_clients.WATCH])
        return record

    def _packed(self, name: str) -> Optional[Dict[str, Any]]:
        if not os.path.exists(self.path(name)):
            return None
        with gzip.open(self.path(name), "rt", encoding="utf-8") as stream:
            kept = bench_client.parse_output(stream.read())
        return None if kept is None else dict(kept)

    def _pack(self, name: str, content: Mapping[str, Any], sources: List[str]) -> None:
        # a controller that was cut off may have left a reader behind, which does the same at the same time
        partial = "%s.%d" % (self.path(name), os.getpid())
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as stream:
            stream.write(json.dumps(content) + "\n")
        os.replace(partial, self.path(name))
        for source in sources:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.client_path(source))

    def _malformed(self, error: Exception, more: Dict[str, Any]) -> Dict[str, Any]:
        """A line of the client that is not what this version of it writes."""
        reason = bench_client.reason(
            "bench-output-malformed",
            "the client's numbers cannot be read",
            "%s: %s" % (type(error).__name__, error),
            "read %s; is the client of a release that rackwell knows?" % self.path(OUTPUT),
        )
        return self.result("failed", [reason], **more)

    def crashed(self, reasons: List[Dict[str, str]], **more: Any) -> Dict[str, Any]:
        """The result of a server that died: that is the first reason, and its last words are kept."""
        return self.result("crashed", [self._died(), *reasons], lines=self.server.lines(), **more)

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
            return self.crashed([], **more)
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
