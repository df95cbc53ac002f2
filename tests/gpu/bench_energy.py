#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the energy that rackwell's recorder tells true, and does recording slow the GPUs' work? On any machine with NVIDIA
GPUs and torch; nothing of the GPUs is configured.

    python3 tests/gpu/bench_energy.py [--carry FOLDER] [--out FILE] [--seconds 40] [--rounds 15]

1. Energy: matrix products on every GPU for --seconds, under `python -m rackwell.probe record` with 5 samples a second,
   while `nvidia-smi --query-gpu=index,power.draw.instant,power.draw -lms 100` runs beside. The energy of the window by
   the device's counter, as the recorder and the module bench_point reckon it, is held against the integral of
   nvidia-smi's instant samples: they must agree within 3 %.
2. Speed: the same load, and one of many small kernels in a CUDA graph as a server decodes, run on while sampling is
   switched on and off in turns (ABBA, so that what drifts cancels; the sampler is stopped and continued by signals).
   The load's process has a core of its own. Median over the fours of turns with its bootstrap interval (95 %): it holds
   when that lies within 0.5 %, fails when it lies outside, and is inconclusive else.
3. What each call to NVML costs, of wall time and of a core.

Prints one JSON object, a short table on stderr. Needs python3 (3.11 or newer), torch, and nvidia-ml-py: installed, or
its wheel in FOLDER (default .rackwell/gpu-energy; `pip download --no-deps -d .rackwell/gpu-energy nvidia-ml-py`).
Exit status: 0 both hold, 1 one does not, 2 it cannot be run here.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.util
import json
import os
import platform
import pty
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
SCHEMA = "rackwell.gpu_energy/1"
BEGIN, END = "load begins", "load ends"
HZ = 5.0
SMI = ["nvidia-smi", "--query-gpu=index,power.draw.instant,power.draw", "--format=csv,noheader,nounits", "-lms", "100"]
ENERGY_LIMIT, SPEED_LIMIT = 0.03, 0.005
#: seconds of a turn, and how many of them at its start do not count
TURN, GUARD = 2.0, 0.25
RESAMPLES = 4000


def log(text: str) -> None:
    sys.stderr.write(f"[energy] {text}\n")


# -- the load, in a process for each GPU -----------------------------------------------------------------------------


def load(gpu: int, kind: str, seconds: float) -> None:
    """Matrix products for so long; prints ``MONOTONIC PRODUCTS`` after each batch, when it is done on the GPU."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1 - gpu})
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    size, batch = (8192, 8) if kind == "large" else (512, 1000)
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16) / size**0.5
    right = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(right)

    def once() -> None:
        for _ in range(batch):
            torch.mm(left, right, out=out)

    once()
    torch.cuda.synchronize(device)
    work = once
    if kind == "small":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        work = graph.replay
    work()
    torch.cuda.synchronize(device)
    if gpu == 0:
        print(BEGIN, flush=True)
    end = time.monotonic() + seconds
    lines = []
    while time.monotonic() < end:
        work()
        torch.cuda.synchronize(device)
        lines.append(f"{time.monotonic():.6f} {batch}")
    if gpu == 0:
        print(END, flush=True)
    print("\n".join(lines), flush=True)


def loads(kind: str, seconds: float) -> int:
    """One load on each GPU; the lines of the first pass through."""
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        log("torch sees no GPU")
        return 2
    me = [sys.executable, __file__, "--load", kind, "--seconds", str(seconds), "--gpu"]
    children = [
        subprocess.Popen([*me, str(gpu)], stdout=None if gpu == 0 else subprocess.DEVNULL) for gpu in range(count)
    ]
    return max(child.wait() for child in children)


# -- energy ----------------------------------------------------------------------------------------------------------


def telemetry_module() -> Any:
    """The collection's own arithmetic; its file needs nothing of Ansible."""
    path = REPO / "plugins/module_utils/bench_telemetry.py"
    spec = importlib.util.spec_from_file_location("bench_telemetry", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Smi:
    """nvidia-smi beside the load: GPU -> (monotonic seconds as its line came, instant watts, average watts)."""

    def __init__(self) -> None:
        self.samples: dict[int, list[tuple[float, float | None, float | None]]] = {}

    def __enter__(self) -> Smi:
        # a terminal: into a pipe or file its lines may come late, in blocks
        reader, writer = pty.openpty()
        self._process = subprocess.Popen(SMI, stdout=writer, stderr=subprocess.DEVNULL)
        os.close(writer)
        self._thread = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join(5)

    def _read(self, reader: int) -> None:
        rest = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while data := os.read(reader, 65536):
                now = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._line(line.decode(errors="replace"), now)

    def _line(self, line: str, now: float) -> None:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].isdigit():
            self.samples.setdefault(int(fields[0]), []).append((now, watts(fields[1]), watts(fields[2])))


def watts(field: str) -> float | None:
    """Of a field such as ``88.12`` or ``[N/A]``."""
    try:
        return float(field)
    except ValueError:
        return None


def energy(seconds: float, work: Path) -> dict[str, Any]:
    """Both energies of one load, per GPU, in joules."""
    record = work / "record.json"
    command = [sys.executable, "-m", "rackwell.probe", "record", "--out", str(record), "--hz", f"{HZ:g}"]
    command += ["--window-start-pattern", BEGIN, "--window-end-pattern", END, "--"]
    command += [sys.executable, __file__, "--load", "large", "--seconds", str(seconds)]
    with Smi() as smi:
        time.sleep(1.0)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        time.sleep(0.5)
    told = json.loads(record.read_text())
    if not told["samples"]:
        raise SystemExit(f"no telemetry: {told['telemetry']}")
    start, end = told["window_start"], told["window_end"]
    arithmetic = telemetry_module()
    reduced = arithmetic.reduce(told, start, end - start)
    gpus = []
    for gpu in reduced["gpus"]:
        beside_it = smi.samples.get(gpu["index"], [])
        sums = {}
        for name, column in (("instant", 1), ("average", 2)):
            pairs = [(s[0], s[column]) for s in beside_it if s[column] is not None]
            mean = arithmetic.mean_over(pairs, start, end) if pairs else None
            sums[name] = None if mean is None else round(mean * (end - start), 1)
        ours = gpu["energy_j"]
        gpus.append(
            {
                "gpu": gpu["index"],
                "name": gpu["name"],
                "recorder_j": ours,
                "source": gpu["energy_source"],
                "recorder_mean_w": gpu["power_w"]["mean"],
                "smi_instant_j": sums["instant"],
                "smi_average_j": sums["average"],
                "smi_samples_in_window": sum(start <= s[0] <= end for s in beside_it),
                "difference": round(ours / sums["instant"] - 1, 5) if ours and sums["instant"] else None,
                "throttle": gpu.get("throttle"),
                "pcie_tx_mb_per_s": (gpu.get("pcie_tx_mb_per_s") or {}).get("mean"),
                "pcie_rx_mb_per_s": (gpu.get("pcie_rx_mb_per_s") or {}).get("mean"),
            }
        )
    differences = [gpu["difference"] for gpu in gpus]
    return {
        "window_s": round(end - start, 3),
        "recorder_hz": reduced["hz"],
        "sampling_cpu_share": ((told["telemetry"] or {}).get("overhead") or {}).get("cpu_share"),
        "gpus": gpus,
        "processes_seen": (told["processes"] or [{}])[-1].get("processes"),
        "holds": all(d is not None and abs(d) < ENERGY_LIMIT for d in differences),
    }


# -- speed -----------------------------------------------------------------------------------------------------------


def speed(kind: str, rounds: int) -> dict[str, Any]:
    """Products a second of the first GPU's load without and with sampling, in fours of turns."""
    from rackwell.probe.telemetry import Sampler

    sampler = Sampler(HZ)
    sampler.start()
    number = sampler._process.pid  # the session of the child that reads
    os.killpg(number, signal.SIGSTOP)
    total = 4 * rounds * TURN + 3
    turns: list[list[tuple[int, float, float]]] = []
    with subprocess.Popen(
        [sys.executable, __file__, "--load", kind, "--seconds", str(total)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        if child.stdout.readline().strip() != BEGIN:
            raise SystemExit("the load did not begin")
        time.sleep(2.0)
        for turn in range(rounds):
            turns.append([])
            # without, with, with, without; the next four the other way round
            for sampled in (0, 1, 1, 0) if turn % 2 == 0 else (1, 0, 0, 1):
                os.killpg(number, signal.SIGCONT if sampled else signal.SIGSTOP)
                began = time.monotonic()
                time.sleep(TURN)
                turns[-1].append((sampled, began + GUARD, time.monotonic()))
        os.killpg(number, signal.SIGCONT)
        batches = [line.split() for line in child.stdout.read().splitlines() if line[:1].isdigit()]
    sampler.stop()
    done = [(float(moment), int(products)) for moment, products in batches]

    def rate(start: float, end: float) -> float:
        inside = [pair for pair in done if start <= pair[0] <= end]
        # from the end of the first batch to that of the last one
        return sum(products for _t, products in inside[1:]) / (inside[-1][0] - inside[0][0])

    ratios: list[float] = []
    rates: dict[int, list[float]] = {0: [], 1: []}
    for four in turns:
        sums = {0: 0.0, 1: 0.0}
        for sampled, start, end in four:
            found = rate(start, end)
            sums[sampled] += found
            rates[sampled].append(found)
        ratios.append(sums[1] / sums[0])
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
    verdict = "inconclusive"
    if abs(low - 1) < SPEED_LIMIT and abs(high - 1) < SPEED_LIMIT:
        verdict = "holds"
    elif high < 1 - SPEED_LIMIT or low > 1 + SPEED_LIMIT:
        verdict = "fails"
    return {
        "products_per_s_without": round(statistics.median(rates[0]), 2),
        "products_per_s_with": round(statistics.median(rates[1]), 2),
        "ratio": round(statistics.median(ratios), 5),
        "interval": [round(low, 5), round(high, 5)],
        "ratios": [round(ratio, 5) for ratio in ratios],
        "samples": len(sampler.samples),
        "verdict": verdict,
    }


def costs() -> dict[str, Any]:
    """Milliseconds (wall, CPU) of each kind of call; the median of some."""
    from rackwell.probe.readings import Nvml

    nvml = Nvml()

    def cost(call: Any, times: int) -> dict[str, float]:
        walls, before = [], time.process_time()
        for _ in range(times):
            began = time.perf_counter()
            call()
            walls.append(time.perf_counter() - began)
        used = (time.process_time() - before) / times
        return {"wall_ms": round(statistics.median(walls) * 1e3, 3), "cpu_ms": round(used * 1e3, 3)}

    return {
        "gpus": nvml.count,
        "sample_of_all": cost(nvml.sample, 50),
        "of_one_gpu": {name: cost(call, 20) for name, call in nvml.calls(0).items()},
        "pcie_throughput_of_one_way": cost(lambda: nvml.link_rate(0, received=True), 20),
        "processes": cost(nvml.processes, 10),
        "driver_version": nvml.driver_version(),
        "devices": [{key: d[key] for key in ("name", "power_limit_w", "memory_total_mib")} for d in nvml.devices()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--carry", type=Path, default=REPO / ".rackwell/gpu-energy", metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=15, help="fours of turns, each 2 s")
    parser.add_argument("--load", choices=("large", "small"), help=argparse.SUPPRESS)
    parser.add_argument("--gpu", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        if given.gpu is None:
            return loads(given.load, given.seconds)
        load(given.gpu, given.load, given.seconds)
        return 0
    paths = [str(REPO / "src"), *map(str, sorted(given.carry.glob("nvidia_ml_py-*.whl")))]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        import torch
    except ImportError as error:
        log(f"{error}; see the head of this file")
        return 2
    cores = os.cpu_count() or 1
    if cores >= 4:
        # the last cores are the loads' (see load); everything else stays away from them
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, set(range(cores - torch.cuda.device_count())))
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "date_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }
    result["costs_idle"] = costs()
    with tempfile.TemporaryDirectory() as folder:
        log(f"energy: {given.seconds:g} s of load")
        result["energy"] = energy(given.seconds, Path(folder))
    for kind in ("large", "small"):
        log(f"speed with {kind} products: {4 * given.rounds} turns of {TURN:g} s")
        result[f"speed_{kind}"] = speed(kind, given.rounds)
    text = json.dumps(result, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)
    for gpu in result["energy"]["gpus"]:
        told = f"{gpu['recorder_j']} J by its {gpu['source']}, {gpu['smi_instant_j']} J by nvidia-smi"
        log(f"GPU {gpu['gpu']} {gpu['name']}: {told}, difference {gpu['difference']}")
    for kind in ("large", "small"):
        found = result[f"speed_{kind}"]
        log(f"{kind} products with sampling: {found['ratio'] - 1:+.3%} {found['interval']}: {found['verdict']}")
    fine = result["energy"]["holds"] and all(
        result[f"speed_{kind}"]["verdict"] == "holds" for kind in ("large", "small")
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
