# SPDX-License-Identifier: Apache-2.0
"""The real ``sglang.bench_serving`` on the loopback: what others complain of, with the fault in it and without.

Needs an environment of the build bench-client: RACKWELL_BENCH_CLIENT=/opt/rackwell/bench-client/env/bin/python.
Ten seconds a run are imports, so these tests run on demand only.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client, bench_clients, bench_window

import rackwell.probe.loadgen

from .conftest import OPTIONS
from .sse_server import Streaming

CLIENT = os.environ.get("RACKWELL_BENCH_CLIENT", "")
TOKENIZER = Path(__file__).parents[2] / "lab" / "site" / "model"
pytestmark = pytest.mark.skipif(not CLIENT, reason="RACKWELL_BENCH_CLIENT names no environment of build bench-client")

#: the client with a fault: what others had by default is put where the engine's client has something better
FAULTS = {
    "buffer": "make = aiohttp.ClientSession.__init__\n"
    "def init(self, *a, **k): make(self, *a, **{**k, 'read_bufsize': 2**16})\n"
    "aiohttp.ClientSession.__init__ = init\n",
    "cap": "made, shared = aiohttp.ClientSession.__init__, []\n"
    "def init(self, *a, **k):\n"
    "    shared.append(shared[0] if shared else aiohttp.TCPConnector(limit=4))\n"
    "    made(self, *a, connector=shared[0], connector_owner=False, **k)\n"
    "aiohttp.ClientSession.__init__ = init\n",
    "loop": "loads = json.loads\n"
    "def slow(text, *a, **k):\n"
    "    time.sleep(0.02)\n"
    "    return loads(text, *a, **k)\n"
    "json.loads = slow\n",
}


@pytest.fixture
def server() -> Iterator[Streaming]:
    found = Streaming()
    yield found
    found.close()


class Ran:
    """What a run left."""

    def __init__(self, folder: Path, server: Streaming, fault: str = "", **options: Any) -> None:
        self.options = {**OPTIONS, "concurrency": 4, "num_prompts": 8, "output_tokens": 16, "warmup_requests": 1}
        self.options.update(port=server.port, tokenizer=str(TOKENIZER), **options)
        folder.mkdir(exist_ok=True)
        client = bench_clients.Client("/")
        module = client.module()
        if fault:
            code = f"import aiohttp, json, runpy, time\n{FAULTS[fault]}"
            code += f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
            (folder / "faulty.py").write_text(code)
            module = "faulty"
        told = ["--report", str(folder / "watch.json"), "--requests", str(self.options["num_prompts"])]
        command = [CLIENT, rackwell.probe.loadgen.__file__, *told, module, *client.arguments(self.options, str(folder))]
        self.done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(folder / "hf")},
        )
        output = folder / "out.jsonl"
        self.text = output.read_text() if output.exists() else ""
        self.line: dict[str, Any] = bench_client.parse_output(self.text) or {}
        self.watch: dict[str, Any] = json.loads((folder / "watch.json").read_text())

    @property
    def summary(self) -> dict[str, Any]:
        assert self.line, self.done.stderr[-2000:]
        return dict(bench_client.summarise(self.line, self.options))

    @property
    def codes(self) -> list[str]:
        return [reason["code"] for reason in bench_client.judge(self.summary)]

    @property
    def lag_ms(self) -> float:
        """95 of 100 moments are less late."""
        phase = self.watch["phases"][-1]
        lags = sorted(bench_window.loop_lag(self.watch, (phase["begin"], phase["end"])))
        return lags[int(0.95 * len(lags))] * 1e3


def test_a_plain_run_counts_and_is_watched(tmp_path: Path, server: Streaming) -> None:
    ran = Ran(tmp_path, server)
    assert ran.codes == []
    assert ran.summary["tokens"]["output_received"] == 8 * 16
    assert all(isinstance(start, float) for start in ran.watch["starts"])
    assert len(ran.watch["starts"]) == 8
    assert ran.watch["flush"][0]["status"] == 200
    assert "Infinity" in ran.text  # not JSON to everybody, and read all the same
    assert ran.line["request_rate"] is None


def test_lines_longer_than_64_kb_are_read_by_the_engines_client_and_fail_with_the_usual_buffer(
    tmp_path: Path, server: Streaming
) -> None:
    server.padding = 400_000
    assert Ran(tmp_path / "own", server).codes == []
    faulty = Ran(tmp_path / "faulty", server, "buffer")
    assert faulty.line == {} or "bench-requests-failed" in faulty.codes  # the warm-up may fail already


def test_a_cap_on_connections_is_not_the_engines_clients(tmp_path: Path, server: Streaming) -> None:
    options = {"concurrency": 120, "num_prompts": 120, "output_tokens": 40}
    server.gap = 0.1
    Ran(tmp_path / "own", server, **options)
    assert server.most > 100
    server.most, server.gap = 0, 0.02
    faulty = Ran(tmp_path / "faulty", server, "cap", concurrency=12, num_prompts=24)
    assert server.most <= 4
    # what the client says of itself is wrong, which is why the server is asked
    assert faulty.line["concurrency"] > 6


def test_work_on_the_loop_is_lag(tmp_path: Path, server: Streaming) -> None:
    faulty = Ran(tmp_path / "faulty", server, "loop", concurrency=8, num_prompts=16)
    assert faulty.lag_ms > 40


def test_a_chunk_without_choices_fails_its_request(tmp_path: Path, server: Streaming) -> None:
    server.tail = json.dumps({"choices": [], "usage": {"completion_tokens": 16}})
    ran = Ran(tmp_path, server, warmup_requests=0)
    assert ran.codes[0] == "bench-requests-failed"
    assert "IndexError" in ran.summary["errors"][0]["text"]


def test_the_same_seed_asks_the_same_and_another_seed_does_not_and_the_file_is_appended_to(
    tmp_path: Path, server: Streaming
) -> None:
    asked = []
    for seed in (1, 1, 2):
        server.prompts.clear()
        ran = Ran(tmp_path, server, seed=seed, num_prompts=4, warmup_requests=0)
        asked.append(sorted(server.prompts))
    assert asked[0] == asked[1]
    assert not set(asked[0]) & set(asked[2])
    assert len(ran.text.splitlines()) == 3
    assert ran.line["duration"] == json.loads(ran.text.splitlines()[-1])["duration"]
