# SPDX-License-Identifier: Apache-2.0
"""What the watch tells of a client that it runs unchanged, and that it leaves the client as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_window

import rackwell.probe.loadgen

LOADGEN = rackwell.probe.loadgen.__file__
#: in small what the engine's client does: a warm-up, a flush, then all requests; its loop stands still meanwhile
CLIENT = """
import asyncio, json, sys, time
from dataclasses import dataclass, field
import requests

@dataclass
class RequestFuncOutput:
    itl: list = field(default_factory=list)
    start_time: float = 0.0

    @staticmethod
    def init_new(given):
        return RequestFuncOutput()

async def request(number):
    output = RequestFuncOutput.init_new(None)
    output.start_time = time.perf_counter()
    await asyncio.sleep(0.05)
    if number == 1 and "block" in sys.argv:
        time.sleep(0.4)          # as tokenising on the loop does
    output.itl.append(number)
    await asyncio.sleep(0.1)
    return output

async def main():
    await asyncio.gather(request(-1))
    requests.post("http://127.0.0.1:9/flush_cache", headers={})
    outputs = await asyncio.gather(*[asyncio.create_task(request(n)) for n in range(3)])
    print("Serving Benchmark Result")
    return {"itls": [output.itl for output in outputs], "starts": [output.start_time for output in outputs]}

if __name__ == "__main__":
    result = asyncio.run(main())
    print(json.dumps([sys.argv[1:], result["starts"], __name__, sys.path[:2]]))
    sys.exit(3 if "fail" in sys.argv else 0)
"""
REQUESTS = """
import types
def post(url, **options):
    return types.SimpleNamespace(status_code=400 if "refuse" in __import__("sys").argv else 200)
"""


def run(folder: Path, *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    """Exit status, printed lines, report."""
    (folder / "client.py").write_text(CLIENT)
    (folder / "requests.py").write_text(REQUESTS)
    report = folder / "report.json"
    command = [sys.executable, LOADGEN, "--report", str(report), "--requests", "3", "client", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}
    )
    assert report.exists(), done.stderr
    return done.returncode, done.stdout.splitlines(), json.loads(report.read_text())


def test_starts_are_the_clients_own_in_the_order_of_its_lists(tmp_path: Path) -> None:
    status, lines, report = run(tmp_path, "--seed", "5")
    assert status == 0
    arguments, starts, name, path = json.loads(lines[-1])
    assert (arguments, name) == (["--seed", "5"], "__main__")
    assert str(Path(LOADGEN).parent) not in path  # whose modules would stand in for those of the client
    assert report["starts"] == starts
    (phase,) = report["phases"]
    assert lines[0] == f"{rackwell.probe.loadgen.BEGIN} {phase['begin']:.6f}"
    assert phase["begin"] <= min(starts) < phase["end"]
    assert lines[1].startswith(rackwell.probe.loadgen.END)
    assert report["flush"][0]["status"] == 200


def test_a_loop_that_stands_still_is_seen_as_long_as_it_does(tmp_path: Path) -> None:
    _, _, report = run(tmp_path, "block", "refuse")
    (phase,) = report["phases"]
    lags = sorted(bench_window.loop_lag(report, (phase["begin"], phase["end"])))
    assert 0.35 < lags[-1] < 5
    # one look in the 0.4 s, but twenty would have waited: most of the time in the window is lost
    assert lags[len(lags) // 2] > 0.02
    assert report["flush"][0]["status"] == 400


def test_the_clients_end_is_its_own_and_the_report_is_there(tmp_path: Path) -> None:
    status, _, report = run(tmp_path, "fail")
    assert (status, report["schema"]) == (3, "rackwell.loadgen/1")
    assert bench_window.cpu_share(report, (0.0, 1e12)) is not None


def test_a_client_without_such_habits_is_run_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("print('hello')\n")
    command = [sys.executable, LOADGEN, "--report", str(tmp_path / "r"), "--requests", "3", "other"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout == "hello\n"
    assert json.loads((tmp_path / "r").read_text())["starts"] == []
