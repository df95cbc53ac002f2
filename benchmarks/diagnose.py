#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast `rackwell diagnose` reads large logs, beside `grep -E -f` with the same expressions (and `rg -f`, if there).

    python benchmarks/diagnose.py [--megabytes 200] [--runs 1] [--kind dense|error|access|mixed] [--without-grep]

Makes a log of each kind: `dense` (decode lines of eight ranks in a journal), `error` (one error, again and again),
`access` (lines of HTTP requests), `mixed` (all of these, with one failed start at the end). Runs each program as a
process, and prints seconds, MB/s and the largest memory; grep gets the expressions of all rules as far as extended
expressions can say them, prints nothing but a number of lines, and knows neither prefixes nor contexts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_END = """\
[2026-11-29 20:00:00] server_args=ServerArgs(model_path='/srv/models/glm', tp_size=8, mem_fraction_static=0.95)
[2026-11-29 20:03:10 TP3] Scheduler hit an exception: Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB. GPU 3 has a total capacity of 94.97 GiB
[2026-11-29 20:03:11] Received sigquit from a child process. It usually means the child failed.
[2026-11-29 20:03:11] kill_process_tree called
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


def mixed(n: int) -> str:
    """Any of them."""
    return (dense, access, dense)[n % 3](n) if n % 50_000 else error(n)


KINDS: dict[str, Callable[[int], str]] = {"dense": dense, "error": error, "access": access, "mixed": mixed}


def write(path: Path, kind: str, size: int) -> int:
    """A log of about `size` bytes; returns its lines."""
    written, number = 0, 0
    with path.open("w", encoding="utf-8") as stream:
        while written < size:
            written += stream.write("".join(KINDS[kind](n) for n in range(number, number + 1000)))
            number += 1000
        if kind == "mixed":
            stream.write(_END)
    return number


def expressions() -> list[str]:
    """The expressions of all rules, as grep writes them."""
    from rackwell import shipped
    from rackwell.diagnose.rules import load_rules

    found = {leaf.pattern for rule in load_rules(shipped.catalog()) for leaf in rule.tree.leaves}
    told = []
    for pattern in sorted(found):
        plain = re.sub(r"\(\?(?:P?<\w+>|:|i:|i\))", lambda m: "" if m[0] == "(?i)" else "(", pattern)
        for old, new in ((r"\d", "[0-9]"), (r"\S", "[^[:space:]]"), (r"\s", "[[:space:]]"), (r"\w", "[[:alnum:]_]")):
            plain = re.sub(rf"(\[[^\]]*){re.escape(old)}", lambda m, new=new: m[1] + new[1:-1], plain)
            plain = plain.replace(old, new)
        checked = subprocess.run(["grep", "-E", "-e", plain], input="", capture_output=True, text=True, check=False)
        if checked.returncode == 1 and not checked.stderr:
            told.append(plain)
    print(f"{len(found)} expressions, {len(told)} of them also for grep")
    return told


def timed(command: list[str]) -> tuple[float, float, str]:
    """(seconds, MiB at most, standard output) of a process."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        out.seek(0)
        return time.monotonic() - began, usage.ru_maxrss / 1024, out.read().decode("utf-8", "replace")


def main() -> None:
    """The measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    parser.add_argument("--without-grep", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = {
            "rackwell": [sys.executable, "-c", "from rackwell.cli.main import run; run()", "diagnose", "--json"]
        }
        if not asked.without_grep:
            (folder / "expressions").write_text("\n".join(expressions()) + "\n", encoding="utf-8")
            programs["grep -E"] = ["grep", "-E", "-c", "-f", str(folder / "expressions")]
            if shutil.which("rg"):
                programs["rg"] = ["rg", "-c", "-f", str(folder / "expressions")]
        for kind in asked.kind or KINDS:
            log = folder / f"{kind}.log"
            lines = write(log, kind, asked.megabytes * 1_000_000)
            size = log.stat().st_size / 1e6
            for program, command in programs.items():
                for _ in range(asked.runs):
                    seconds, memory, out = timed([*command, str(log)])
                    said = re.search(r'"id": "([^"]+)"', out)
                    counted = re.search(r'"count": (\d+)', out)
                    note = f"{said[1]} x{counted[1]}" if said and counted else out.strip()[:20] if len(out) < 30 else ""
                    what = f"{kind:<7} {lines:>8} lines {size:6.0f} MB  {program:<9}"
                    print(f"{what} {seconds:7.2f} s {size / seconds:7.1f} MB/s {memory:6.0f} MiB  {note}", flush=True)
            log.unlink()


if __name__ == "__main__":
    main()
