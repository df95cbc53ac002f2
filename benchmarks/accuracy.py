#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does `rackwell bench` measure what is there? Against an engine and GPUs whose behaviour is set by file.

    benchmarks/accuracy.py --client ENV/bin/python [--streams 16 64 256] [--seconds 30] [--json FILE]

The stand-in engine serves each request on an exact schedule (first token so many milliseconds after the request came,
then a token at each due moment), so throughput, TTFT and ITL are known by arithmetic; the stand-in of NVML draws the
power that a load file gives. Engine, recorder, watch and load generator are real processes on the loopback, the load
generator is the real `sglang.bench_serving` of ENV (build bench-client), and what is printed comes out of the same
reading that `bench_point` does. Needs root (device nodes of the stand-in GPUs) and gcc.

The limits: total tok/s within 1 %; percentiles of TTFT and ITL within 2 ms or 2 %; power and energy within 1 %;
sampling under 2 % of a core. Latencies are those of the steady part: at its start the client opens a connection for
each stream at once, and takes the time of that for the server's (printed in brackets). The client needs some hundredths
of a second from one request to the next, which no schedule knows: take long requests (--seconds 60).

Everything runs on one machine: what else uses its cores makes the client late, which the "loop lag" shows; `chrt -r 5`
in front gives it the cores first. Exit status: 0 all hold, 1 one does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
GPU = REPO / "tests/lab/gpu"
MODEL = REPO / "tests/lab/site/model"
DRIVER = "595.58.03"
#: streams -> schedule: times of the first token, gaps between tokens, both taken in turns, milliseconds. Real servers
#: of this size have such gaps; a Python client on a small machine reads so many chunks and not more. Five entries, so
#: that no percentile lies between two of them.
SCHEDULES: dict[int, dict[str, list[float]]] = {
    16: {"ttft_ms": [300, 350, 450, 500, 600], "itl_ms": [40, 50, 60, 50, 50]},
    64: {"ttft_ms": [600, 700, 900, 1000, 1200], "itl_ms": [80, 100, 120, 100, 100]},
    256: {"ttft_ms": [2000, 2300, 2700, 3000, 3500], "itl_ms": [280, 300, 320, 300, 300]},
}
INPUT_TOKENS, PERCENTILES = 128, ("p50", "p90", "p99")
UTILISATION, IDLE_W, BUSY_W = 80.0, 88.0, 250.0
RATE, TIME_MS, TIME_PART, POWER, SAMPLING = 0.01, 2.0, 0.02, 0.01, 0.02


def machine(root: Path) -> dict[str, str]:
    """A directory in place of / with eight stand-in GPUs; the environment of a process that sees them."""
    subprocess.run([str(GPU / "build.sh"), str(root / "driver"), DRIVER], check=True, stdout=subprocess.DEVNULL)
    for folder in ("dev/shm", "proc/driver/nvidia", "sys/module/nvidia"):
        (root / folder).mkdir(parents=True)
    state = json.loads((GPU / "machine.json").read_text())
    for gpu in state["gpus"]:
        gpu.update(idle_w=IDLE_W, busy_w=BUSY_W)
    (root / "proc/driver/nvidia/rackwell-lab-gpus.json").write_text(json.dumps(state))
    (root / "sys/module/nvidia/version").write_text(DRIVER + "\n")
    for name, minor in [("nvidiactl", 255), *((f"nvidia{minor}", minor) for minor in range(len(state["gpus"])))]:
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    return {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(root / "driver" / DRIVER),
        "RACKWELL_LAB_ROOT": str(root),
        "RACKWELL_LAB_LOAD": str(root / "load"),
    }


@contextlib.contextmanager
def engine(python: str, work: Path, environment: dict[str, str], schedule: dict[str, list[float]]) -> Iterator[int]:
    """The stand-in engine on a schedule; gives its port."""
    model = work / "model"
    shutil.copytree(MODEL, model)
    behaviour = {"load_seconds": 0.1, "exact": schedule, "utilisation": {"1": UTILISATION}}
    (model / "rackwell-lab-engine.json").write_text(json.dumps(behaviour))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [python, "-m", "rackwell_lab_engine", "--model-path", str(model), "--served-model-name", "exact"]
    command += ["--port", str(port), "--enable-metrics"]
    with (work / "engine.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**environment, "PYTHONPATH": str(REPO / "tests/lab/engine")},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 60
        while "fired up" not in (work / "engine.log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((work / "engine.log").read_text()[-2000:])
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


class Unasked:
    """The server, as far as the reading asks about it."""

    unit = "no unit"

    def state(self) -> str:
        return ""

    def answers(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return []

    def known_answer(self, _sane: object, _when: str) -> list[dict[str, str]]:
        return []


def measure(python: str, work: Path, environment: dict[str, str], streams: int, seconds: float) -> dict[str, Any]:
    """A point as ``bench_point`` measures it, without systemd. ``rackwell.bench_point/1``."""
    from ansible_collections.rackwell.gpu.plugins.module_utils import bench_clients, bench_reading, bench_unit

    schedule = SCHEDULES[streams]
    output = max(8, int((seconds / 4 - mean(schedule["ttft_ms"]) / 1e3) / (mean(schedule["itl_ms"]) / 1e3)))
    folder = work / "point"
    (folder / bench_unit.CLIENT).mkdir(parents=True)
    with engine(python, work, environment, schedule) as port:
        options: dict[str, Any] = {
            "run_id": "accuracy",
            "concurrency": streams,
            "num_prompts": 4 * streams,
            "input_tokens": INPUT_TOKENS,
            "output_tokens": output,
            "repeat": 1,
            "seed": 1 + streams,
            "warmup_requests": 2,
            "host": "127.0.0.1",
            "port": port,
            "served_name": "exact",
            "tokenizer": str(MODEL),
            "sample_hz": 5,
            "server_hz": 1,
            "steady_share": 0.9,
            "sanity_answers": 32,
            "point_timeout": 900,
        }
        client = bench_clients.Client("/nowhere")
        argv = bench_clients.recorded(
            client,
            options,
            sys.executable,
            str(REPO / "src/rackwell/probe/loadgen.py"),
            str(folder / bench_unit.CLIENT),
        )
        argv = [python if word == client.python else word for word in argv]
        told = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HOME": str(work / "hf"),
            "PYTHONUNBUFFERED": "1",
        }
        paths = os.pathsep.join([str(REPO / "src"), *environment.get("PYTHONPATH", "").split(os.pathsep)])
        with (work / "client.log").open("w") as log:
            done = subprocess.run(
                argv,
                env={**environment, **told, "PYTHONPATH": paths},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            raise SystemExit((work / "client.log").read_text()[-3000:])
    (folder / bench_unit.CLIENT / "outcome").write_text("success exited 0\n")
    (folder / "context.json").write_text(json.dumps({"server": ""}))
    return dict(bench_reading.Reading(str(folder), options, client, Unasked(), os.geteuid()).read())


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def expected(streams: int, point: dict[str, Any]) -> dict[str, float]:
    """What the schedule says, by arithmetic: each stream has four requests, one after the other.

    Requests are numbered as they come; over a whole number of turns of the lists their order does not matter, except
    for the last stream to end: the duration is that of all streams together within one part of a list.
    """
    from ansible_collections.rackwell.gpu.plugins.module_utils import bench_client

    first, gaps = SCHEDULES[streams]["ttft_ms"], SCHEDULES[streams]["itl_ms"]
    count, tokens = point["num_prompts"], point["output_tokens"]
    ttft = sorted(first[i % len(first)] for i in range(streams, count))
    itl = sorted(gaps[(i + j) % len(gaps)] for i in range(streams, count) for j in range(tokens - 1))
    found = {f"ttft_{name}": float(bench_client.percentile(ttft, int(name[1:]))) for name in PERCENTILES}
    found |= {f"itl_{name}": float(bench_client.percentile(itl, int(name[1:]))) for name in PERCENTILES}
    found["request_s"] = (mean(ttft) + mean(itl) * (tokens - 1)) / 1e3
    found["power_w"] = IDLE_W + (BUSY_W - IDLE_W) * UTILISATION / 100
    return found


def compare(streams: int, point: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows: what, expected, measured, error, whether it holds."""
    want = expected(streams, point)
    rows: list[dict[str, Any]] = []

    def row(what: str, right: float, found: float | None, *, part: float, least: float = 0.0) -> None:
        error = math.inf if found is None else found - right
        holds = abs(error) <= max(part * abs(right), least)
        rows.append({"what": what, "expected": right, "measured": found, "error": error, "holds": holds})

    steady, telemetry = point["steady"], point["telemetry"]
    # while all streams are busy: tokens a stream gives in the time that one of its requests takes
    rate = streams * point["output_tokens"] / want["request_s"]
    total = streams * (point["output_tokens"] + INPUT_TOKENS) / want["request_s"]
    row("output tok/s, steady", rate, steady["output_tok_per_s"], part=RATE)
    row("total tok/s, steady", total, steady["total_tok_per_s"], part=RATE)
    # over the whole window the last streams end one after the other, for as long as the schedule says
    row("total tok/s, whole", whole(streams, point), point["throughput"]["total_tok_per_s"], part=RATE)
    for latency in ("ttft", "itl"):
        for name in PERCENTILES:
            found = steady[f"{latency}_ms"][name]
            row(f"{latency} {name} ms, steady", want[f"{latency}_{name}"], found, part=TIME_PART, least=TIME_MS)
    seconds = telemetry["window"]["duration_s"]
    for gpu in telemetry["gpus"][:1]:
        row("power of a GPU, W", want["power_w"], gpu["power_w"]["mean"], part=POWER)
    count = len(telemetry["gpus"])
    row("energy of all GPUs, J", count * want["power_w"] * seconds, telemetry["energy_j"], part=POWER)
    row("sampling, share of a core", 0.0, telemetry["cpu_share"], part=0.0, least=SAMPLING)
    return rows


def whole(streams: int, point: dict[str, Any]) -> float:
    """Total tok/s of the whole window: the schedule played through, a stream taking the next request as one ends."""
    first, gaps = SCHEDULES[streams]["ttft_ms"], SCHEDULES[streams]["itl_ms"]
    count, tokens = point["num_prompts"], point["output_tokens"]
    free = [0.0] * streams
    for number in range(count):
        place = free.index(min(free))
        answer = first[number % len(first)] + math.fsum(gaps[(number + j) % len(gaps)] for j in range(tokens - 1))
        free[place] += answer / 1e3
    return count * (INPUT_TOKENS + tokens) / max(free)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--client", required=True, metavar="PYTHON", help="interpreter of the bench-client environment")
    parser.add_argument("--streams", type=int, nargs="+", choices=sorted(SCHEDULES), default=sorted(SCHEDULES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each point, default: %(default)g")
    parser.add_argument("--pynvml", metavar="WHEEL", help="nvidia-ml-py, where this environment has none")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="rackwell-accuracy-") as folder:
        environment = machine(Path(folder) / "root")
        if given.pynvml:
            environment["PYTHONPATH"] = given.pynvml
        for streams in given.streams:
            work = Path(folder) / str(streams)
            work.mkdir()
            before = os.getloadavg()[0]
            point = measure(given.client, work, environment, streams, given.seconds)
            if "telemetry" not in point or point.get("telemetry") is None:
                raise SystemExit(json.dumps(point)[:3000])
            rows = compare(streams, point)
            load = point["client_load"]
            lag = load["loop_lag_ms"] or {}
            lengths = f"{INPUT_TOKENS} + {point['output_tokens']}"
            print(
                f"\n{streams} streams, {point['num_prompts']} requests of {lengths} tokens, "
                f"{point['telemetry']['window']['duration_s']:.1f} s; client {load['cpu_pct']} % of a core, loop lag "
                f"{lag.get('p50', 0):.1f}/{lag.get('p95', 0):.1f}/{lag.get('p99', 0):.1f} ms (p50/p95/p99), "
                f"bound: {load['bound']}; load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after"
            )
            for row in rows:
                measured = "-" if row["measured"] is None else f"{row['measured']:12.4g}"
                share = f"{row['error'] / row['expected']:+.2%}" if row["expected"] else ""
                out = "" if row["holds"] else "OUT"
                print(f"  {row['what']:<26}{row['expected']:12.4g}{measured:>12} {share:>8}  {out}")
            ttft, itl = (point["latency"][name] for name in ("ttft_ms", "itl_ms"))
            print(f"  (p99 with the burst at the start: TTFT {ttft['p99']:.0f} ms, ITL {itl['p99']:.1f} ms)")
            for text in [reason["code"] for reason in point["reasons"]] + point["remarks"]:
                print(f"  ({text})")
            results.append({"streams": streams, "rows": rows, "client_load": load, "load_average": os.getloadavg()[0]})
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(row["holds"] for result in results for row in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
