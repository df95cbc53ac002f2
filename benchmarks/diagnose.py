#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast `rackwell diagnose` reads large logs, beside `grep` and (if there) `rg`, which only look for words in them.

    python benchmarks/diagnose.py [--megabytes 200] [--runs 1] [--kind KIND ...] [--out FILE]

Makes a log of each kind: `error` (one error, again and again), `dense` (decode lines of eight ranks in a journal),
`access` (lines of HTTP requests), `serving` (what a server writes in a day: batches, requests, health checks, warnings
and few errors), `worst` (no line like another, each with words of many rules), `crashes` (a server that is started
again every 300 lines). All but the last have one line of a lost GPU in their middle, which must be among what is found.
Runs each program as a process on the same file, one after the other: seconds of the clock and of the processor, MB/s
and the largest resident memory.

The peers print a number of lines, and know neither rules, prefixes, contexts nor starts: `grep -c Error`; `grep -E -c
-f` and `rg -c -f` with one literal of each expression of the rules.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOST = "Nov 29 12:00:00 pve1 kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=702, GPU has fallen off the bus.\n"
_LITERALS = r"""
import re
from rackwell import shipped
from rackwell.diagnose.rules import load_rules
pieces = set()
other = r"\\.|\[[^]]*\]|\(\?[^:)]*[:>)]|.[?*{]"
for rule in load_rules(shipped.catalog()):
    for leaf in rule.tree.leaves:
        found = re.findall(r"[A-Za-z_][A-Za-z_ -]{2,}", re.sub(other, "\n", leaf.pattern))
        pieces.update([max(found, key=len)] if found else [])
print("\n".join(sorted(pieces)))
"""


def _clock(n: int) -> str:
    return f"{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}"


def dense(n: int) -> str:
    """A line of a batch that is decoded."""
    return (
        f"Nov 29 {_clock(n)} gpu-ct sglang[702]: [2026-11-29 {_clock(n)} TP{n % 8}] Decode batch, "
        f"#running-req: {n % 64}, #token: {n}, token usage: 0.{n % 80 + 10}, cuda graph: True, "
        f"gen throughput (token/s): {n % 997}.34, #queue-req: 0\n"
    )


def error(n: int) -> str:
    """A line of the one error."""
    return (
        f"[2026-11-29 {_clock(n)} TP{n % 8}] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        f"{n % 999}.00 MiB. GPU {n % 8} has a total capacity of 94.97 GiB\n"
    )


def access(n: int) -> str:
    """A line of a request."""
    return f'INFO:     192.0.2.{n % 250}:{n % 60000} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


_WORDS = (
    "RuntimeError", "CUDA error", "out of memory", "NCCL WARN", "Connection refused", "illegal memory access", "torch",
    "Traceback (most recent call last)", "timed out", "No such file or directory", "Permission denied", "scheduler",
    "undefined symbol", "NVRM: Xid", "flashinfer", "sglang", "vllm", "invalid argument", "not supported", "mismatch",
    "all_reduce", "peer access", "ninja", "nvcc", "assert", "killed", "deprecated", "warning", "fallback", "weights",
    "token usage", "safetensors", "quantization", "fp8", "tokenizer", "health check", "watchdog", "HTTP/1.1", "lxc",
)  # fmt: skip
_CHANCE = random.Random(8)  # noqa: S311


def serving(n: int) -> str:
    """A line of a day of a server."""
    at = f"[2026-11-29 {_clock(n // 20)} TP{n % 8}] "
    kind = _CHANCE.random()
    if kind < 0.55:
        return (
            f"{at}Decode batch, #running-req: {_CHANCE.randrange(1, 64)}, #token: {_CHANCE.randrange(900000)}, "
            f"token usage: 0.{_CHANCE.randrange(100):02}, cuda graph: True, gen throughput (token/s): "
            f"{_CHANCE.randrange(3000)}.{_CHANCE.randrange(100):02}, #queue-req: {_CHANCE.randrange(3)}\n"
        )
    if kind < 0.75:
        return (
            f"{at}Prefill batch, #new-seq: {_CHANCE.randrange(1, 9)}, #new-token: {_CHANCE.randrange(9000)}, "
            f"#cached-token: {_CHANCE.randrange(90000)}, token usage: 0.{_CHANCE.randrange(100):02}, "
            f"#running-req: {_CHANCE.randrange(64)}, #queue-req: {_CHANCE.randrange(3)}\n"
        )
    at = f"[2026-11-29 {_clock(n // 20)}] "
    if kind < 0.95:
        what = _CHANCE.choice(("POST /v1/chat/completions", "POST /generate", "GET /health", "GET /metrics"))
        address = f"192.0.2.{_CHANCE.randrange(256)}:{_CHANCE.randrange(1024, 65536)}"
        return f'{at}INFO:     {address} - "{what} HTTP/1.1" {_CHANCE.choice((200, 200, 200, 400, 503))} OK\n'
    if kind < 0.97:
        return f"{at}Finish: obj=GenerateReqInput(rid='{_CHANCE.getrandbits(128):032x}', stream=True), out=...\n"
    if kind < 0.999:
        return f"{at}WARNING: cache miss of prefix {_CHANCE.getrandbits(32):08x}, retrying in {n % 90} ms\n"
    return f"{at}ValueError: request {_CHANCE.getrandbits(64):016x} is longer than the model's context length\n"


def worst(n: int) -> str:
    """A line unlike any other, with words of many rules."""
    words = _CHANCE.sample(_WORDS, 8)
    return f"[2026-11-29 {_clock(n)} TP{n % 8}] {_CHANCE.getrandbits(80):020x} {': '.join(words)} at {n}\n"


def crashes(n: int) -> str:
    """A line of a server that dies, and is started again, every 300 lines."""
    if n % 300 == 0:
        return f"Nov 29 {_clock(n)} ct systemd[1]: sglang.service: Main process exited, code=killed, status=9/KILL\n"
    if n % 300 == 1:
        return f"Nov 29 {_clock(n)} ct systemd[1]: Started sglang.service - SGLang.\n"
    return error(n) if n % 300 > 290 else dense(n)


KINDS: dict[str, Callable[[int], str]] = {
    "error": error, "dense": dense, "access": access, "serving": serving, "worst": worst, "crashes": crashes,
}  # fmt: skip


def write(path: Path, kind: str, size: int) -> int:
    """A log of about `size` bytes; returns its lines."""
    _CHANCE.seed(8)
    written, number, lost = 0, 0, kind == "crashes"
    with path.open("w", encoding="utf-8") as stream:
        while written < size:
            if written > size // 2 and not lost:
                written, lost = written + stream.write(LOST), True
            written += stream.write("".join(map(KINDS[kind], range(number, number + 1000))))
            number += 1000
    return number


def timed(command: list[str]) -> tuple[dict[str, float], str]:
    """(figures, standard output) of a process."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        figures = {
            "seconds": round(time.monotonic() - began, 2),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
            "memory_mib": round(usage.ru_maxrss / 1024, 1),
            "load": round(os.getloadavg()[0], 1),
        }
        out.seek(0)
        return figures, out.read().decode("utf-8", "replace")


def programs(folder: Path) -> dict[str, list[str]]:
    """The commands, which end with the name of the log."""
    # by a process of its own: what this one holds would count as the peers' memory
    literals = subprocess.run([sys.executable, "-c", _LITERALS], check=True, capture_output=True, text=True).stdout
    (folder / "literals").write_text(literals, encoding="utf-8")
    count = literals.count("\n")
    told = {
        "rackwell": [sys.executable, "-c", "from rackwell.cli.main import run; run()", "diagnose", "--json"],
        "grep -c Error": ["grep", "-c", "Error"],
        f"grep -E, {count} literals": ["grep", "-E", "-c", "-f", str(folder / "literals")],
    }
    if shutil.which("rg"):
        told[f"rg, {count} literals"] = ["rg", "-c", "-f", str(folder / "literals")]
    return told


def said(program: str, out: str) -> dict[str, Any]:
    """What a program found."""
    if program != "rackwell":
        return {"lines": int(out.strip() or 0)}
    found = json.loads(out)["result"]["findings"]
    return {
        "findings": {each["id"]: each["count"] for each in found},
        "first": found[0]["id"] if found else "",
        "lost_at": next(
            (line["number"] for each in found for line in each["lines"] if "fallen off" in line["text"]), 0
        ),
    }


def main() -> None:
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--only", action="append", help="the programs whose names begin so")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = programs(folder)
        for kind in asked.kind or KINDS:
            log = folder / f"{kind}.log"
            lines = write(log, kind, asked.megabytes * 1_000_000)
            size = log.stat().st_size / 1e6
            for program, command in commands.items():
                if asked.only and not program.startswith(tuple(asked.only)):
                    continue
                for _ in range(asked.runs):
                    figures, out = timed([*command, str(log)])
                    rate = round(size / figures["seconds"], 1)
                    told = said(program, out)
                    row = {"log": kind, "program": program, "megabytes": round(size, 1), "lines": lines, **figures}
                    results.append({**row, "megabytes_per_second": rate, "said": told})
                    note = {**told, "findings": len(told["findings"])} if "findings" in told else told
                    print(
                        f"{kind:<8} {lines:>8} lines {size:4.0f} MB  {program:<24} {figures['seconds']:7.2f} s "
                        f"{figures['cpu_seconds']:7.2f} cpu {rate:7.1f} MB/s {figures['memory_mib']:6.0f} MiB  {note}",
                        flush=True,
                    )
            log.unlink()
    if asked.out:
        whole = {
            "schema": "rackwell.diagnose_speed/1",
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "command": f"benchmarks/diagnose.py --megabytes {asked.megabytes} --runs {asked.runs} --out FILE",
            "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
            "results": results,
        }
        asked.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
