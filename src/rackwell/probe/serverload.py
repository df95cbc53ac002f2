# SPDX-License-Identifier: Apache-2.0
"""What the server under load says of itself, and how busy the machine's cores are, about once a second.

The first endpoint that answers is asked from then on: ``/metrics`` (only with ``--enable-metrics``), ``/v1/loads``,
``/get_load``. An API key comes from the environment variable ``OPENAI_API_KEY``, never from a command line. Times are
of the monotonic clock.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: gauges and counters of /metrics -> (our name, how the label sets of several ranks are put together)
_METRICS: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "sglang:num_running_reqs": ("running", sum),
    "sglang:num_queue_reqs": ("queued", sum),
    "sglang:token_usage": ("kv_usage", max),
    "sglang:spec_accept_length": ("accept_length", max),
    "sglang:num_retracted_reqs": ("retracted", sum),
    "sglang:prompt_tokens_total": ("prompt_tokens", sum),
    "sglang:cached_tokens_total": ("cached_tokens", sum),
    "sglang:cache_hit_rate": ("cache_hit_rate", max),
}
_TIMEOUT = 5.0
#: a server that is busy with its first requests may not answer at once
_REFUSALS = 5


def metrics(text: str) -> dict[str, float] | None:
    """Our names and values of a Prometheus text; None where it is no server's of ours."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        if not line.startswith("sglang:"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name in _METRICS:
            try:
                found.setdefault(name, []).append(float(line.rpartition(" ")[2]))
            except ValueError:
                continue
    if "sglang:num_running_reqs" not in found:
        return None
    return {_METRICS[name][0]: _METRICS[name][1](values) for name, values in found.items()}


def loads(text: str) -> dict[str, float] | None:
    """The same of ``/v1/loads`` and of the older ``/get_load``, a list with an entry for each data-parallel rank."""
    content = json.loads(text)
    ranks = content.get("loads") if isinstance(content, dict) else content
    if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, dict) for rank in ranks):
        return None
    if not all("num_waiting_reqs" in rank for rank in ranks):
        return None
    queued = sum(float(rank["num_waiting_reqs"]) for rank in ranks)
    found = {"queued": queued}
    if all("num_running_reqs" in rank for rank in ranks):
        found["running"] = sum(float(rank["num_running_reqs"]) for rank in ranks)
    else:  # the older one counts both together
        found["running"] = sum(float(rank.get("num_reqs", 0)) for rank in ranks) - queued
    for name, ours in (("token_usage", "kv_usage"), ("cache_hit_rate", "cache_hit_rate")):
        values = [float(rank[name]) for rank in ranks if isinstance(rank.get(name), int | float)]
        if values:
            found[ours] = max(values)
    accepted = [rank["speculative"]["accept_length"] for rank in ranks if isinstance(rank.get("speculative"), dict)]
    if accepted:
        found["accept_length"] = max(float(value) for value in accepted)
    return found


_ENDPOINTS: tuple[tuple[str, Callable[[str], dict[str, float] | None]], ...] = (
    ("/metrics", metrics),
    ("/v1/loads", loads),
    ("/get_load", loads),
)


def cpu_times(stat: Path = Path("/proc/stat")) -> tuple[float, float] | None:
    """(busy, all) ticks of all cores that this machine or container has, since its start."""
    try:
        with stat.open(encoding="ascii") as stream:
            fields = [float(value) for value in stream.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(fields) < 5:
        return None
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


class ServerLoad:
    """Reads in a thread from :meth:`start` to :meth:`stop`; never raises for what a server does.

    Args:
        host, port: the server's. hz: readings a second; 0 reads the machine's cores only, once a second.

    Attributes:
        samples: ``{"t": monotonic seconds, "took": s, "running": …}``. source: the endpoint that answers.
        unavailable: why there is nothing. cpu: ``{"t", "pct"}`` since the reading before, of all cores together.
        clocks: ``[monotonic, wall]`` pairs, which show a clock that was set.
    """

    def __init__(self, host: str | None, port: int, hz: float) -> None:
        self.host, self.port = host, port
        self.asks = host is not None and hz > 0
        self.period = 1 / hz if hz > 0 else 1.0
        self.source: str | None = None
        self.unavailable = "" if self.asks else "it was not asked"
        self.samples: list[dict[str, Any]] = []
        self.cpu: list[dict[str, float]] = []
        self.clocks: list[list[float]] = []
        self._over = threading.Event()
        self._refusals = 0
        self._cpu_before: tuple[float, float] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        key = os.environ.get("OPENAI_API_KEY", "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No reading is waited for longer than its own timeout."""
        self._over.set()
        self._thread.join(_TIMEOUT + 1)

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            self._read()
            due = max(due + self.period, time.monotonic())
            if self._over.wait(max(0.0, due - time.monotonic())):
                self._read()
                return

    def _read(self) -> None:
        self.clocks.append([round(time.monotonic(), 4), round(time.time(), 4)])
        self._read_cpu()
        if not self.asks or self._refusals >= _REFUSALS:
            return
        began = time.monotonic()
        found = self._ask()
        ended = time.monotonic()
        if found is None:
            # once it has answered, silence is a gap and not the end
            self._refusals += self.source is None
            self.unavailable = self.unavailable or "no endpoint of the server tells its load"
            return
        self.unavailable = ""
        self.samples.append({"t": round((began + ended) / 2, 4), "took": round(ended - began, 4), **found})

    def _read_cpu(self) -> None:
        now = cpu_times()
        before, self._cpu_before = self._cpu_before, now
        if now is not None and before is not None and now[1] > before[1]:
            pct = 100 * (now[0] - before[0]) / (now[1] - before[1])
            self.cpu.append({"t": round(time.monotonic(), 4), "pct": round(min(max(pct, 0.0), 100.0), 1)})

    def _ask(self) -> dict[str, float] | None:
        for path, read in _ENDPOINTS:
            if self.source not in (None, path):
                continue
            text = self._get(path)
            try:
                found = read(text) if text is not None else None
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                found = None
            if found is not None:
                self.source = path
                return found
        return None

    def _get(self, path: str) -> str | None:
        connection = http.client.HTTPConnection(str(self.host), self.port, timeout=_TIMEOUT)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.unavailable = str(error) or type(error).__name__
            return None
        finally:
            connection.close()
        if answer.status == 200:
            return text
        self.unavailable = f"HTTP {answer.status} for {path}"
        return None

    def as_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "source": self.source,
            "why": self.unavailable or None,
            "samples": self.samples,
            "cpu": self.cpu,
            "clocks": self.clocks,
        }
