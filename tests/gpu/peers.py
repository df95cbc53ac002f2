#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What other tools measure on this machine's GPUs, for tests/gpu/run.py to hold the probe's figures against.

nvbandwidth (a program that tests/gpu/nvbandwidth.sh builds from its source) for copies and latencies; all_reduce_perf
of nccl-tests and torch.distributed, both with NCCL, for allreduce. Runs on the machine itself, outside any container:

    python3 tests/gpu/peers.py --out peers.json [--nvbandwidth PROGRAM] [--nccl-tests ALL_REDUCE_PERF] [--no-torch]

Writes the peers' own figures and how long each took. Exit status: 0 done, 1 a peer failed, 2 it cannot be run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCHEMA = "rackwell.gpu_peers/1"

#: nvbandwidth's tests of what the probe measures between GPUs
TESTS = (
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_ce",
    "device_to_device_bidirectional_memcpy_read_ce",
    "device_to_device_bidirectional_memcpy_write_ce",
    "device_to_device_memcpy_read_sm",
    "device_to_device_memcpy_write_sm",
    "device_to_device_bidirectional_memcpy_read_sm",
    "device_to_device_bidirectional_memcpy_write_sm",
    "all_to_one_write_ce",
    "one_to_all_write_ce",
    "device_to_device_latency_sm",
)
SIZES = (*(8192 * 4**power for power in range(8)), 256 << 20)  # 8 KiB … 128 MiB, 256 MiB
ITERATIONS, REPETITIONS, WARM_UP = 20, 7, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nvbandwidth", type=Path, metavar="PROGRAM")
    parser.add_argument("--nccl-tests", type=Path, metavar="PROGRAM", help="its all_reduce_perf")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each nvbandwidth test")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return allreduce_rank(arguments.rank, arguments.ranks, arguments.out)
    for program in (arguments.nvbandwidth, arguments.nccl_tests):
        if program and not os.access(program, os.X_OK):
            print(f"peers.py: {program} is no program", file=sys.stderr)
            return 2
    found: dict[str, Any] = {"schema": SCHEMA, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    if arguments.nvbandwidth:
        found["nvbandwidth"] = [
            nvbandwidth(arguments.nvbandwidth, test) for test in TESTS for _ in range(arguments.repeat)
        ]
    if arguments.nccl_tests:
        found["nccl_tests"] = all_reduce_perf(arguments.nccl_tests)
    if not arguments.no_torch:
        found["torch"] = allreduce()
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    failed = [run for run in found.get("nvbandwidth", []) if run["status"] != "Passed"]
    return 1 if failed or any("error" in found.get(peer, {}) for peer in ("torch", "nccl_tests")) else 0


def nvbandwidth(program: Path, test: str) -> dict[str, Any]:
    """One test: its matrix as numbers (None where it says N/A) and the seconds it took."""
    started = time.monotonic()
    done = subprocess.run([program, "-t", test, "-j"], capture_output=True, text=True, check=False)
    seconds = round(time.monotonic() - started, 2)
    try:
        root = json.loads(done.stdout)["nvbandwidth"]
        case = root["testcases"][0]
    except (ValueError, KeyError, IndexError):
        return {"test": test, "status": "no result", "seconds": seconds, "stderr": done.stderr[-500:]}
    matrix = [[None if cell == "N/A" else float(cell) for cell in row] for row in case.get("bandwidth_matrix", [])]
    return {
        "test": test,
        "status": case["status"],
        "version": root.get("version"),
        "what": case.get("bandwidth_description"),
        "matrix": matrix,
        "sum": case.get("sum"),
        "seconds": seconds,
    }


def all_reduce_perf(program: Path) -> dict[str, Any]:
    """All sizes with one thread for all GPUs, as the probe has it; of three runs the median. Results checked by it."""
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    common = ["-g", str(gpus), "-n", str(ITERATIONS), "-w", str(WARM_UP)]
    samples: dict[int, list[float]] = {}
    wrong: dict[int, int] = {}
    for _ in range(3):
        for sizes in (["-b", "8K", "-e", "128M", "-f", "4"], ["-b", "256M", "-e", "256M"]):
            done = subprocess.run([program, *sizes, *common], capture_output=True, text=True, check=False, timeout=120)
            if done.returncode != 0:
                return {"error": (done.stdout + done.stderr)[-500:]}
            for line in done.stdout.splitlines():
                words = line.split()
                # size, count, type, operation, root, then out of place: us, algbw, busbw, wrong; then in place
                if len(words) >= 13 and words[0].isdigit():
                    samples.setdefault(int(words[0]), []).append(float(words[5]))
                    wrong[int(words[0])] = wrong.get(int(words[0]), 0) + int(words[8])
    points = []
    for size, times in sorted(samples.items()):
        microseconds = statistics.median(times)
        busbw = round(size / microseconds / 1e3 * 2 * (gpus - 1) / gpus, 3)
        points.append({"bytes": size, "us": microseconds, "busbw": busbw, "wrong": wrong[size], "samples_us": times})
    return {"ranks": gpus, "points": points}


def allreduce() -> dict[str, Any]:
    """One process a GPU, float32, back to back on the stream as nccl-tests does; the slowest rank counts."""
    try:
        import torch
    except ImportError as error:
        return {"error": str(error)}
    ranks = torch.cuda.device_count()
    out = Path(f"/tmp/rackwell-peers-{os.getpid()}.json")
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    command = [sys.executable, __file__, "--out", str(out), "--ranks", str(ranks), "--rank"]
    running = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(ranks)]
    try:
        codes = [process.wait(240) for process in running]
    except subprocess.TimeoutExpired:
        codes = [1]
    finally:
        for process in running:
            process.kill()
    if any(codes):
        return {"error": f"a rank ended with {max(codes)}"}
    found: dict[str, Any] = json.loads(out.read_text())
    out.unlink()
    return found


def allreduce_rank(rank: int, ranks: int, out: Path) -> int:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    points = []
    for size in SIZES:
        data = torch.ones(size // 4, dtype=torch.float32, device="cuda")
        check = data * (rank + 1)
        dist.all_reduce(check)
        wrong = int((check != ranks * (ranks + 1) / 2).sum())
        for _ in range(WARM_UP):
            dist.all_reduce(data)
        samples = []
        for _ in range(REPETITIONS):
            data.fill_(1.0)
            torch.cuda.synchronize()
            dist.barrier()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(ITERATIONS):
                dist.all_reduce(data)
            end.record()
            torch.cuda.synchronize()
            took = torch.tensor([start.elapsed_time(end) * 1e3 / ITERATIONS], device="cuda")
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            samples.append(round(float(took), 3))
        microseconds = statistics.median(samples)
        bandwidth = size / microseconds / 1e3
        points.append(
            {
                "bytes": size,
                "us": microseconds,
                "busbw": round(bandwidth * 2 * (ranks - 1) / ranks, 2),
                "wrong": wrong,
                "samples_us": samples,
            }
        )
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        out.write_text(json.dumps({"torch": torch.__version__, "nccl": version, "ranks": ranks, "points": points}))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
