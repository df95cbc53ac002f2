#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does rackwell's main job work with the real SGLang on this machine's NVIDIA GPUs, and what does it cost there?

    tests/gpu/prepare.sh --engine                                          once, on a Debian machine with the network
    sudo tests/gpu/engine.py --machine .gpu-carry --out results.json       any Linux with GPUs, torch and nvcc

Enters the prepared machine as tests/gpu/run.py does. In it: a laboratory of two hosts with the real GPUs; a release
from the wheels that the machine carries, on this machine's own torch, CUDA compiler and Python, which the containers
see by bind mounts; a toy of GLM-5's architecture on all GPUs; then the steps of engine_steps.py: CUDA and P2P, cold and
warm start, caches, a stop, a killed rank, the caches in a second container, a benchmark with energy, a roll, one that
must return by itself, the boot gate. Prints a line a step, and writes the results after each: a run that is cut tells
what came before.

Exit status: 0 all steps hold, 1 one does not (the others are tried where they can be), 2 it cannot be run here.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/lab"))
sys.path.insert(0, str(REPO / "tests/gpu"))

import run as gpu_run  # noqa: E402 (beside this file)
from rwlab import real  # noqa: E402 (the laboratory is no installed package)
from rwlab.paths import Instance  # noqa: E402

SCHEMA = "rackwell.gpu_engine_run/1"
# in the prepared machine
MACHINE, BASE = "srv/machine", "var/cache/rackwell-lab/base/trixie"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="results, JSON; the logs go beside it, FILE.log")
    parser.add_argument("--machine", type=Path, metavar="FOLDER", help="what prepare.sh --engine made")
    parser.add_argument("--root", type=Path, help="unpack it there, keep it, take it if it is there")
    parser.add_argument("--torch", type=Path, metavar="FOLDER", help="site-packages with torch; default: this Python's")
    parser.add_argument("--cuda", type=Path, metavar="FOLDER", help="default: CUDA_HOME, or /usr/local/cuda")
    parser.add_argument("--python", type=Path, metavar="ROOT", default=Path("/"), help="where usr/bin/pythonX.Y is")
    parser.add_argument("--python-version", default=f"3.{sys.version_info[1]}", help="torch's; default: %(default)s")
    parser.add_argument("--gpus", type=int, help="how many the engine takes; default: all")
    parser.add_argument("--stand-in", action="store_true", help="rehearse on a processor, with a toy Llama")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps")
    parser.add_argument("--deadline", type=int, default=0, metavar="S", help="begin no step after so many seconds")
    parser.add_argument("--name", default="gpue1", help="laboratory instance; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="leave the laboratory up")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        if os.geteuid() != 0:
            raise gpu_run.CannotRunError("must run as root: it starts containers")
        if os.environ.get(gpu_run.INSIDE):
            return steps(arguments)
        if not real.present() and not arguments.stand_in:
            raise gpu_run.CannotRunError(
                "NVIDIA's kernel module is not loaded here (--stand-in rehearses without GPUs)"
            )
        if not arguments.machine:
            raise gpu_run.CannotRunError("--machine is needed: make it with tests/gpu/prepare.sh --engine")
        return enter(arguments)
    except gpu_run.CannotRunError as error:
        print(f"tests/gpu/engine.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def enter(arguments: argparse.Namespace) -> int:
    """Run this script again in the prepared machine; what it writes is copied to --out at the end, or FILE.partial."""
    from engine_lend import lend_cuda, lend_python, lend_torch

    torch, cuda = arguments.torch or own_torch(), arguments.cuda or Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if not (cuda / "bin/nvcc").exists():
        raise gpu_run.CannotRunError(f"there is no bin/nvcc in {cuda}")
    root = arguments.root or Path(tempfile.mkdtemp(prefix="rackwell-gpu-", dir="/var/tmp"))
    try:
        gpu_run.unpack(arguments.machine, root)
        gpu_run.say("lending it the checkout, the driver, torch, CUDA and Python")
        ignored = shutil.ignore_patterns(".git", ".venv", ".gpu-*", ".mypy_cache", "__pycache__", ".hypothesis")
        shutil.copytree(REPO, root / gpu_run.CHECKOUT, ignore=ignored, dirs_exist_ok=True, symlinks=True)
        if real.present():
            gpu_run.copy_driver(root)
        lend_torch(torch, root / MACHINE / "torch")
        lend_cuda(cuda, root / MACHINE / "cuda")
        lend_python(arguments.python, arguments.python_version, root / BASE)
        results = root / gpu_run.RESULTS
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir(parents=True)
        passed = ["--name", arguments.name, "--deadline", str(arguments.deadline)]
        passed += ["--stand-in"] * arguments.stand_in + ["--keep"] * arguments.keep
        passed += ["--gpus", str(arguments.gpus)] if arguments.gpus else []
        passed += ["--only", *arguments.only] if arguments.only else []
        command = ["sh", "-ec", gpu_run._START, "sh", gpu_run._ENTER, "sh", str(root)]
        command += [f"/{gpu_run.CHECKOUT}/.venv/bin/python", f"/{gpu_run.CHECKOUT}/tests/gpu/engine.py", *passed]
        command += ["--out", f"/{gpu_run.RESULTS}/results.json"]
        outer = {
            "os": gpu_run.operating_system(),
            "command": command_line(arguments),
            "nccl": gpu_run.nccl_environment(),
            "torch": version_of(torch),
            "cuda": nvcc_version(cuda),
            "python": arguments.python_version,
        }
        done = subprocess.run(command, env={**os.environ, "OUTSIDE": json.dumps(outer)}, check=False)
        for suffix in ("", ".log"):
            written = results / f"results.json{suffix}"
            if written.exists():
                shutil.copyfile(written, f"{arguments.out}{suffix}")
        return done.returncode
    finally:
        for group in [*sorted(gpu_run.GROUP.rglob("*/"), reverse=True), gpu_run.GROUP]:
            if group.is_dir():
                group.rmdir()
        if not arguments.root:
            shutil.rmtree(root)


def own_torch() -> Path:
    """The site-packages that this Python has its torch in."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        raise gpu_run.CannotRunError("this Python has no torch: run it with one that has, or give --torch")
    return Path(found.origin).parents[1]


def version_of(packages: Path) -> str:
    text = gpu_run.read(packages / "torch/version.py") or ""
    found = re.search(r"__version__ = '([^']+)'", text)
    return found[1] if found else "?"


def nvcc_version(home: Path) -> str:
    told = subprocess.run([str(home / "bin/nvcc"), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", told)
    return found[1] if found else "?"


def command_line(arguments: argparse.Namespace) -> str:
    """What measured, without this machine's paths."""
    words = ["tests/gpu/engine.py", "--machine", "FOLDER", "--out", "FILE"]
    words += ["--stand-in"] * arguments.stand_in
    words += ["--gpus", str(arguments.gpus)] if arguments.gpus else []
    words += ["--deadline", str(arguments.deadline)] if arguments.deadline else []
    return " ".join(words + (["--only", *arguments.only] if arguments.only else []))


# ------------------------------------------------------------------------------------------ in the prepared machine


def steps(arguments: argparse.Namespace) -> int:
    from engine_place import FailedError, Run
    from engine_steps import NEEDS, STEPS

    outer = json.loads(os.environ.get(gpu_run.INSIDE) or "{}")
    gpu_run.LAB = arguments.name
    gpus = 0 if arguments.stand_in else arguments.gpus or len(real.nodes_of_gpus())
    machine = Path("/", MACHINE)
    run = Run(arguments.name, gpus, machine / "torch", machine / "cuda")
    run.facts["nccl"] = outer.get("nccl") or {}
    began, document = time.monotonic(), head(outer, gpus)
    found: dict[str, dict[str, Any]] = {}
    shutil.copytree(Path("/", gpu_run.SITE), Instance.of(arguments.name).site, symlinks=True, dirs_exist_ok=True)

    def store() -> None:
        whole = {**document, "seconds": round(time.monotonic() - began), "steps": list(found.values())}
        whole["verdict"] = "pass" if all(one["ok"] for one in found.values()) else "fail"
        partial = arguments.out.with_suffix(".partial")
        partial.write_text(gpu_run.without_uuids(json.dumps(whole, indent=1)) + "\n")
        partial.replace(arguments.out)

    try:
        for name, step in STEPS.items():
            if arguments.only and name not in arguments.only and name != "lab":
                continue
            since = time.monotonic()
            missing = [need for need in NEEDS.get(name, []) if need in found and not found[need]["ok"]]
            one: dict[str, Any] = {"name": name, "ok": False, "why": "", "told": "", "data": {}}
            if missing:
                one["why"] = f"not run: it needs {', '.join(missing)}"
            elif arguments.deadline and since - began > arguments.deadline:
                one["why"] = "not run: no time was left"
            else:
                try:
                    one["told"], one["data"] = step(run)
                    one["ok"] = True
                    run.facts[name] = True
                except FailedError as error:
                    one["why"] = str(error)
                except Exception as error:  # noqa: BLE001 (whatever it is, the next step may still tell something)
                    one["why"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
                if not one["ok"]:
                    one["data"] = run.facts.get(
                        {"roll": "engine-gpu-patched", "returned": "engine-gpu-slow"}.get(name), {}
                    )
            one["seconds"] = round(time.monotonic() - since, 1)
            found[name] = one
            store()
            line = one["told"] if one["ok"] else one["why"].splitlines()[0]
            print(f"[{time.monotonic() - began:5.0f}s] {'ok    ' if one['ok'] else 'FAILED'} {name:8} "
                  f"({one['seconds']:.0f} s): {line[:600]}", flush=True)  # fmt: skip
            logs(arguments, found)
    finally:
        if not arguments.keep:
            gpu_run.laboratory("down", "--name", arguments.name, "--purge", check=False)
    return 0 if found and all(one["ok"] for one in found.values()) else 1


def head(outer: dict[str, Any], gpus: int) -> dict[str, Any]:
    """What of the results holds for the whole run."""
    return {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": outer.get("command"),
        "machine": gpu_run.machine() | {"os": outer.get("os"), "entered": gpu_run.operating_system()},
        "gpus": gpu_names(),
        "engine": {
            "sglang": "0.5.16",
            "flashinfer": "0.6.14",
            "torch": outer.get("torch"),
            "cuda": outer.get("cuda"),
            "python": outer.get("python"),
            "tensor_parallel": gpus or "on a processor",
            "model": "a toy of GLM-5's architecture: 4 layers, 262 million random parameters"
            if gpus
            else "a toy Llama",
        },
        "note": "A toy model: its tokens per second and joules are of no use beside others. Nothing of it is SM120.",
    }


def gpu_names() -> list[str]:
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,power.limit,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()


def logs(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    """The commands' logs, and of the servers' journals the end, beside the results."""
    from engine_place import FIRST, SECOND, FailedError, GpuPlace

    state = Instance.of(arguments.name).state
    told = ""
    for log in sorted(state.glob("site/.rackwell/runs/*/log.txt")):
        told += f"==== {log.relative_to(state)}\n{log.read_text(errors='replace')[-60000:]}\n"
    ran = {name for name, one in found.items() if one["ok"] or not one["why"].startswith("not run")}
    for container in [FIRST] * ("stage" in ran) + [SECOND] * ("second" in ran):
        try:
            place = GpuPlace(arguments.name, container)
            units = " ".join(f"-u rackwell-{name}.service" for name in ("inference", "inference-watch", "gpu-gate"))
            text = place.script(f"journalctl -q --no-pager -n 2500 {units} | cut -c1-600")
            told += f"==== journal of {container}\n{text}\n"
        except (FailedError, KeyError, ValueError) as error:
            told += f"==== {container}: {error}\n"
    Path(f"{arguments.out}.log").write_text(gpu_run.without_uuids(told))


if __name__ == "__main__":
    raise SystemExit(main())
