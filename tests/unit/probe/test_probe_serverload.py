# SPDX-License-Identifier: Apache-2.0
"""The server's own metrics, from whichever endpoint its release has, beside the samples of the GPUs."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import serverload
from rackwell.probe.serverload import ServerLoad

METRICS = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",dp_rank="0"} 12.0
sglang:num_running_reqs{engine_type="unified",dp_rank="1"} 4.0
sglang:num_queue_reqs{engine_type="unified"} 3.0
sglang:token_usage{dp_rank="0"} 0.25
sglang:token_usage{dp_rank="1"} 0.5
sglang:cached_tokens_total{cache_source="device"} 17536.0
sglang:cached_tokens_total{cache_source="host"} 64.0
sglang:prompt_tokens_total{} 20000.0
sglang:num_running_reqs_of_something_else{} 99.0
sglang:gen_throughput{} NaN
process_cpu_seconds_total 5
"""
#: of 0.5.16, and of 0.5.9
LOADS = {"timestamp": "…", "loads": [{"num_running_reqs": 7, "num_waiting_reqs": 2, "token_usage": 0.125}] * 2}
OLD_LOAD = [{"dp_rank": 0, "num_reqs": 9, "num_waiting_reqs": 2, "num_tokens": 400, "ts_tic": 1.0}]


class Endpoints:
    """A server with these answers; counts who asked for what, and with which key."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        endpoints = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoints.asked.append((self.path, self.headers.get("Authorization")))
                answer = endpoints.answers.get(self.path)
                body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    found = Endpoints()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def once(port: int) -> ServerLoad:
    """One reading."""
    load = ServerLoad("127.0.0.1", port, 1.0)
    load._read()
    return load


def test_metrics_of_all_ranks_are_put_together() -> None:
    found = serverload.metrics(METRICS)
    assert found == {
        "running": 16.0, "queued": 3.0, "kv_usage": 0.5, "cached_tokens": 17600.0, "prompt_tokens": 20000.0
    }  # fmt: skip
    assert serverload.metrics("process_cpu_seconds_total 5\n") is None


@pytest.mark.parametrize(
    ("path", "answer", "running", "queued"),
    [("/metrics", METRICS, 16, 3), ("/v1/loads", LOADS, 14, 4), ("/get_load", OLD_LOAD, 7, 2)],
)
def test_whichever_endpoint_answers_is_asked_from_then_on(
    endpoints: Endpoints, path: str, answer: Any, running: int, queued: int
) -> None:
    endpoints.answers[path] = answer
    load = once(endpoints.port)
    load._read()
    assert load.source == path
    assert [(s["running"], s["queued"]) for s in load.samples] == [(running, queued)] * 2
    assert endpoints.asked[-1][0] == endpoints.asked[-2][0] == path


def test_the_key_comes_from_the_environment(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    endpoints.answers["/metrics"] = METRICS
    once(endpoints.port)
    assert endpoints.asked == [("/metrics", "Bearer sk-1")]


def test_a_server_that_tells_nothing_is_left_alone_soon(endpoints: Endpoints) -> None:
    load = ServerLoad("127.0.0.1", endpoints.port, 1.0)
    for _ in range(20):
        load._read()
    assert (load.samples, load.source) == ([], None)
    assert load.unavailable == "HTTP 404 for /get_load"
    assert len(endpoints.asked) == 3 * 5
    assert len(load.cpu) >= 1
    assert len(load.clocks) == 20


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[1]", '[{"num_waiting_reqs": "x"}]', '{"loads": 5}'])
def test_anything_else_is_no_load(endpoints: Endpoints, text: str) -> None:
    endpoints.answers.update({"/metrics": text, "/v1/loads": text, "/get_load": text})
    assert once(endpoints.port).samples == []


def test_a_machine_without_proc_stat_has_no_cpu(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 800 50 0 0 0 0 0\n")
    assert serverload.cpu_times(tmp_path / "stat") == (150.0, 1000.0)
    (tmp_path / "stat").write_text("nothing\n")
    assert serverload.cpu_times(tmp_path / "stat") is None
    assert serverload.cpu_times(tmp_path / "none") is None


def test_the_record_holds_the_server_beside_the_gpus(endpoints: Endpoints, tmp_path: Path) -> None:
    endpoints.answers["/metrics"] = METRICS
    out = tmp_path / "telemetry.json"
    command = [sys.executable, "-m", "rackwell.probe", "record", "--out", str(out), "--server-hz", "20"]
    command += ["--server", f"127.0.0.1:{endpoints.port}", "--", "sleep", "0.6"]
    subprocess.run(command, check=True, env={**os.environ, "OPENAI_API_KEY": "sk-1"})
    record = json.loads(out.read_text())
    samples = record["server"]["samples"]
    assert len(samples) >= 2
    assert samples[0]["running"] == 16
    # on the clock of the samples of the GPUs
    assert record["samples"][0]["t"] - 1 < samples[0]["t"] < record["samples"][-1]["t"] + 1
    assert "sk-1" not in out.read_text()
    # the driver is asked now and then who uses the GPUs, and how much crosses their links
    assert record["processes"][0]["processes"][0]["pid"] == 4242
    assert {tuple(link[1:3]) for link in record["links"]} <= {(gpu, way) for gpu in (0, 1) for way in ("tx", "rx")}
    assert record["links"][0][3] == 12.0
