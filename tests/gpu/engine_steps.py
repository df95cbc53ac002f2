# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/gpu/engine.py. Each gives a line and data, or raises FailedError; NEEDS says what it stands on."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import faults  # tests/engine
import job  # tests/engine
import run as gpu_run  # beside this file
import stub  # tests/engine
import yaml
from engine_lend import lend_cuda, lend_torch, link
from engine_place import (
    BUILD,
    CONTAINERS,
    FIRST,
    MODEL,
    PATCHED,
    PATCHES,
    REPO,
    SECOND,
    SITE,
    SLOW,
    FailedError,
    GpuPlace,
    Run,
    require,
    until,
)
from place import HERE as ENGINE
from place import START_S, UNIT

Told = tuple[str, dict[str, Any]]
_TORCH, _CUDA = "/opt/machine-torch", "/opt/machine-cuda"


def lab(run: Run) -> Told:
    """Two hosts, each with all GPUs, a container on each, and the site of this run."""
    nccl = run.torch / "nvidia/nccl/lib/libnccl.so.2"
    given = ["--nccl", str(nccl)] if run.gpus and nccl.exists() else []
    gpu_run.laboratory("up", "--name", run.name, "--suite", "trixie", "--hosts", "2", *given)
    run.first, run.second = (GpuPlace(run.name, container) for container in CONTAINERS)
    site = run.one.site
    shutil.copytree(SITE, site, dirs_exist_ok=True)
    _adapt(site, run.gpus)
    for place in (run.one, run.two):
        place.models.mkdir(parents=True, exist_ok=True)
        lend_torch(run.torch, place.models / "machine-torch")
        lend_cuda(run.cuda, place.models / "machine-cuda")
        model = place.models / Path(MODEL).name
        model.mkdir(exist_ok=True)
        model.chmod(0o755)
        place.declare(_variables(run))
    status = json.loads(run.one.lab("status", "--json"))
    return f"{status['gpus']} GPUs, driver {status['driver_version']}", {"lab": status["gpus"]}


def _variables(run: Run) -> dict[str, Any]:
    environment = gpu_run.nccl_environment() or run.facts.get("nccl", {})
    probe = {"gpu_probe_size": gpu_run.SIZE_MIB, "gpu_probe_environment": environment} if run.gpus else {}
    return {
        **probe,
        # the one whose C library is new enough for the machine's Python
        "pve_container_template": "local:vztmpl/debian-13-lab_amd64.tar.zst",
        "release_build": BUILD,
        "inference_server_profile": "engine-gpu",
        "bench_client_profile": "engine-gpu",
        "model_weights_path": MODEL,
        "pve_container_memory": 65536 if run.gpus else 8192,
        "pve_container_disk_size": 24,
        "pve_container_mounts": [
            {"source": MODEL, "target": MODEL},
            {"source": "/srv/models/machine-torch", "target": _TORCH},
            {"source": "/srv/models/machine-cuda", "target": _CUDA},
        ],
    }


def _adapt(site: Path, gpus: int) -> None:
    """The profile for so many GPUs, or for none."""
    path = site / "profiles/engine-gpu.yml"
    profile = yaml.safe_load(path.read_text())
    if gpus:
        profile["flags"]["tp-size"] = gpus
    else:
        there = yaml.safe_load((ENGINE / "site/profiles/engine-cpu.yml").read_text())
        profile = {**there, "model": profile["model"], "gpu": "h200"}
        sweep = yaml.safe_load((ENGINE / "site/bench/engine.yml").read_text())
        (site / "bench/engine-gpu.yml").write_text(yaml.safe_dump(sweep))
        stub.build(site / "wheels")
        build = yaml.safe_load((site / f"builds/{BUILD}.yml").read_text())
        build["wheels"].append({"path": "../wheels/rackwell_engine_stub-1-py3-none-any.whl"})
        (site / f"builds/{BUILD}.yml").write_text(yaml.safe_dump(build, sort_keys=False))
    path.write_text(yaml.safe_dump(profile, sort_keys=False))


def build(run: Run) -> Told:
    """The release, one with a patch of the catalogue, and one that is slow on purpose; nothing is fetched."""
    site = run.one.site
    spec = yaml.safe_load((site / f"builds/{BUILD}.yml").read_text())
    for name, patches in ((PATCHED, PATCHES), (SLOW, [*PATCHES, "./patches/slow-decode"])):
        (site / f"builds/{name}.yml").write_text(yaml.safe_dump({**spec, "patches": patches}, sort_keys=False))
        shutil.copyfile(site / f"builds/{BUILD}.lock", site / f"builds/{name}.lock")
    done = run.one.rackwell("build", BUILD, PATCHED, SLOW)
    require(done.code == 0, f"rackwell build ended with {done.code}: {done.problems}")
    digests = {name: run.one.digest(name) for name in (BUILD, PATCHED, SLOW)}
    manifest = json.loads((site / f".rackwell/builds/{BUILD}/manifest.json").read_text())
    size = sum(wheel["size"] for wheel in manifest["wheels"])
    data = {"releases": digests, "wheels": len(manifest["wheels"]), "bytes": size, "seconds": round(done.seconds, 1)}
    return f"{', '.join(digest[:12] for digest in digests.values())}; {size / 1e6:.0f} MB of wheels", data


def stage(run: Run) -> Told:
    """Host, container, driver, boot gate and release; without a model it ends there, and tells that. Then the model."""
    place = run.one
    done = place.rackwell("provision", FIRST, "--no-bench")
    require(done.code == 1, f"without a model it ended with {done.code}: {done.problems}")
    codes = [one["code"] for one in done.json["problems"]]
    require("model" in done.problems, f"it does not tell of the model: {done.problems}")
    release = place.digest(BUILD)
    sources = [ENGINE / "model.py", *([REPO / "tests/gpu/toy_glm.py"] if run.gpus else [])]
    for source in sources:
        place.script(f"cat >/var/tmp/{source.name}", source.read_bytes())
    python = f"/opt/rackwell/releases/{release}/env/bin/python"
    made = place.script(f"cd /var/tmp && HOME=/var/tmp {python} {sources[-1].name} /var/tmp/toy 2>&1 | tail -n 1")
    lab_py = [sys.executable, str(REPO / "tests/lab/lab.py"), "shell", "--name", run.name, FIRST]
    target = place.models / Path(MODEL).name
    with subprocess.Popen([*lab_py, "tar", "-C", "/var/tmp/toy", "-cf", "-", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-C", str(target), "--no-same-owner", "-xf", "-"], stdin=packed.stdout, check=True)
    place.script("rm -rf /var/tmp/toy")
    for path in target.iterdir():
        path.chmod(0o644)
        (run.two.models / target.name / path.name).unlink(missing_ok=True)
        link(path, run.two.models / target.name / path.name)
    require((target / "config.json").exists(), f"no model was made: {made}")
    data = {"without_model": codes, "seconds": round(done.seconds, 1), "staging": (done.result or {}).get("staging")}
    return f"without a model: {', '.join(codes)} after {done.seconds:.0f} s; {made}", data


def check(run: Run) -> Told:
    """CUDA, P2P and, with NCCL, all-reduce in the container, as its service user."""
    expect = {"environment": run.facts.get("nccl", {})}
    if not run.gpus:
        gpu_run.CHECK = (*gpu_run.CHECK[:-1], "16")  # the stand-in's buffers are this machine's memory
    report = gpu_run.check_inside(expect)
    gpus = report.get("gpus") or []
    data = {key: value for key, value in report.items() if key not in ("environment", "log")}
    named = ", ".join(sorted({gpu.get("name", "?") for gpu in gpus}))
    codes = [one.get("code") for one in report.get("findings") or []]
    require(report.get("verdict") in ("pass", "degraded"), f"{report.get('verdict')}: {codes} {report.get('why', '')}")
    return f"{report['verdict']}: {len(gpus)}x {named}; {', '.join(map(str, codes)) or 'no findings'}", data


#: what a start's log says at its stations
_STATIONS = {
    "arguments": "server_args=",
    "distributed": "Init torch distributed begin",
    "weights": "Load weight begin",
    "weights_end": "Load weight end",
    "kv_cache": "KV Cache is allocated",
    "capture": "Capture target decode CUDA graph begin",
    "capture_end": "Capture target decode CUDA graph end",
    "fired_up": "The server is fired up",
}
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


def stations(place: GpuPlace) -> dict[str, float]:
    """Seconds from the unit's start to each station of this start's log, where the log tells it."""
    began = place.script(f'date -d "$(systemctl show -P ExecMainStartTimestamp {UNIT})" +%s; date +%z').split()
    found: dict[str, float] = {}
    for line in place.log().splitlines():
        for name, mark in _STATIONS.items():
            if name not in found and mark in line and (match := _TIME.search(line)):
                at = datetime.strptime(f"{match[1]} {began[1]}", "%Y-%m-%d %H:%M:%S %z").timestamp()
                found[name] = at - float(began[0])
    return found


def cold(run: Run) -> Told:
    """The first start: every kernel is compiled, and a greedy and a sampled request are answered."""
    place = run.one
    with place.told():
        done = place.rackwell("provision", FIRST, "--no-bench")
        require(done.code == 0, f"rackwell provision ended with {done.code}: {done.problems}")
    ready = place.ready_seconds()
    run.facts["cold"] = ready
    where = stations(place)
    parts = sorted(place.parts())
    row = place.status()
    require((row["unit"], row["why"]) == ("active", ""), f"rackwell status: {row}")
    data = {"ready_seconds": ready, "stations": where, "processes": parts, "seconds": round(done.seconds, 1)}
    return f"ready after {ready} s; capture at {where.get('capture')} to {where.get('capture_end')}", data


def caches(run: Run) -> Told:
    """What was compiled lies in the release's own directory; it is captured for other containers."""
    place = run.one
    folder = f"/var/cache/rackwell/{place.current()}"
    lines = place.script(f"cd {folder} && find . -type f -printf '%s %P\\n'").splitlines()
    kinds: dict[str, list[int]] = {}
    for line in lines:
        size, _, name = line.partition(" ")
        kind = "/".join(name.split("/")[:3]) if name.startswith((".cache", "xdg")) else name.split("/")[0]
        kinds.setdefault(kind, []).append(int(size))
    sizes = {kind: {"files": len(found), "bytes": sum(found)} for kind, found in sorted(kinds.items())}
    stray = place.script(
        "find /root $(getent passwd rackwell | cut -d: -f6) /tmp -xdev \\( -name .cache -o -name .triton -o -name "
        ".tvm-ffi -o -name deep_gemm -o -name 'torchinductor*' \\) -user rackwell -print 2>/dev/null || true"
    )
    done = place.rackwell("cache", "capture", FIRST)
    require(done.code == 0, f"rackwell cache capture ended with {done.code}: {done.problems}")
    listed = place.rackwell("cache", "list").result
    data = {"sizes": sizes, "stray": stray.split(), "capture_seconds": round(done.seconds, 1), "captured": listed}
    require(not stray, f"caches outside the release's directory: {stray}")
    total = sum(one["bytes"] for one in sizes.values())
    return f"{total / 1e6:.0f} MB in {len(lines)} files; captured in {done.seconds:.0f} s", data


def stop(run: Run) -> Told:
    """A stop lets the requests in flight finish, and is no failure."""
    if run.gpus:
        # at some 250 tokens a second they are still on their way when it stops
        job._CLIENT = job._CLIENT.replace('"max_tokens": 120', '"max_tokens": 4000')
    with run.one.told():
        return job.drain(run.one), {}


def warm(run: Run) -> Told:
    """The next start, with all that was compiled."""
    place = run.one
    if run.facts.get("second"):
        run.two.stopped()
    began = time.monotonic()
    with place.told():
        place.started()
    taken, where = round(time.monotonic() - began, 1), stations(place)
    cold_s = run.facts.get("cold")
    data = {"serves_seconds": taken, "stations": where, "cold_ready_seconds": cold_s}
    return f"serves after {taken} s (cold: {cold_s} s)", data


def killed(run: Run) -> Told:
    """One rank is killed: the cause is told and not what the others say of it, and it serves again."""
    place = run.one
    name = f"scheduler_TP{run.gpus - 1}" if run.gpus > 1 else "scheduler"
    with place.told():
        line = faults._dies(place, lambda: place.script(f"kill -9 {place.parts()[name]}"), "sglang-child-crashed")
    where = stations(place)
    return f"{name}: {line}; the start after it: {where.get('fired_up')} s", {"stations": where}


def second(run: Run) -> Told:
    """What the first container compiled goes to another, and its first start is no cold one."""
    place = run.two
    run.one.stopped()
    with place.told():
        done = place.rackwell("provision", SECOND, "--no-bench")
        require(done.code == 0, f"rackwell provision ended with {done.code}: {done.problems}")
    ready, cache = place.ready_seconds(), done.result.get("cache")
    where = stations(place)
    data = {
        "ready_seconds": ready,
        "cold_ready_seconds": run.facts.get("cold"),
        "cache": cache,
        "stations": where,
        "seconds": round(done.seconds, 1),
    }
    require(cache and "restored" in json.dumps(cache), f"no cache was brought: {cache}; {data}")
    return f"ready after {ready} s (cold: {run.facts.get('cold')} s); the whole command {done.seconds:.0f} s", data


def points(place: GpuPlace, stored: Path | None = None) -> list[dict[str, Any]]:
    """The newest run's points, in the figures that tell of the GPUs, too."""
    newest = stored or max((place.site / ".rackwell/results" / place.container).glob("*/bench.json"))
    kept = []
    for point in json.loads(newest.read_text())["points"]:
        telemetry, tokens = point.get("telemetry") or {}, point.get("tokens") or {}
        latency = point.get("latency") or {}
        gpus = telemetry.get("gpus") or []
        energy = telemetry.get("energy_j")
        received = tokens.get("output_received")
        kept.append(
            {
                "concurrency": point.get("concurrency"),
                "valid": point.get("valid"),
                "reasons": point.get("reasons"),
                "remarks": point.get("remarks"),
                "requests": point.get("requests"),
                "window": telemetry.get("window"),
                "throughput": point.get("throughput"),
                "ttft_ms": latency.get("ttft_ms"),
                "itl_ms": latency.get("itl_ms"),
                "watts_per_gpu": [(gpu.get("power_w") or {}).get("mean") for gpu in gpus],
                "utilization_pct": [(gpu.get("utilization_pct") or {}).get("mean") for gpu in gpus],
                "energy_j": energy,
                "energy_source": [gpu.get("energy_source") for gpu in gpus],
                "joules_per_output_token": round(energy / received, 4) if energy and received else None,
            }
        )
    return kept


def _figures(found: list[dict[str, Any]]) -> str:
    told = []
    for point in found:
        rate = (point["throughput"] or {}).get("output_tok_per_s") or 0
        watts = "+".join(f"{watts:.0f}" for watts in point["watts_per_gpu"] if watts is not None)
        told.append(
            f"{point['concurrency']}: {rate:.0f} tok/s, {watts or '?'} W, {point['joules_per_output_token']} J/token"
        )
    return "; ".join(told)


def bench(run: Run) -> Told:
    """By the release's own bench_serving, with the GPUs' power and energy meanwhile."""
    place = run.two
    with place.told():
        done = place.rackwell("bench", SECOND)
        found = points(place)
        require(done.code == 0, f"rackwell bench ended with {done.code}: {done.problems} {found}")
    return _figures(found), {"points": found, "seconds": round(done.seconds, 1)}


def _rolled(run: Run, build: str, code: int, result: str) -> Told:
    place = run.two
    before = place.current()
    with place.told():
        done = place.rackwell("roll", build, "--limit", SECOND, "--min-effect", "0.25", "--confirm-within", "300")
    hosts = (done.json.get("result") or {}).get("hosts") or []
    journal = Path((done.json.get("result") or {}).get("journal") or "/nonexistent")
    verdicts = []
    if journal.is_file():
        verdicts = [json.loads(line) for line in journal.read_text().splitlines() if '"ratio"' in line]
    after = place.current()
    data = {
        "exit_code": done.code,
        "hosts": hosts,
        "verdicts": verdicts,
        "before": before,
        "after": after,
        "points": points(place),
        "ready_seconds": place.ready_seconds(),
        "seconds": round(done.seconds, 1),
    }
    run.facts[build] = data
    told = "; ".join(f"{host['name']}: {host['result']}, {host['why']}" for host in hosts)
    line = f"exit {done.code}; {told}; {_figures(data['points'])}; {done.seconds:.0f} s"
    wanted = place.digest(build) if result == "promoted" else before
    right = done.code == code and [host["result"] for host in hosts] == [result] and after == wanted
    require(right, f"{line}; {before[:12]} -> {after[:12]}; {done.problems}")
    with place.told():
        until(place.serves, START_S, "it serves")
    return f"{before[:12]} -> {after[:12]}; {line}", data


def roll(run: Run) -> Told:
    """To a release with a patch of the catalogue, which costs nothing: promoted."""
    return _rolled(run, PATCHED, 0, "promoted")


def returned(run: Run) -> Told:
    """To one that is slow on purpose: the benchmark tells, and what ran before serves again."""
    return _rolled(run, SLOW, 3, "returned")


def gate(run: Run) -> Told:
    """The container reboots: its boot gate looks at the GPUs, and lets the server up."""
    place = run.two if run.facts.get("second") else run.one
    began = time.monotonic()
    place.on_host("pct", "reboot", place.vmid)
    # systemd tells when the boot is over: the gate is one of its jobs
    with contextlib.suppress(FailedError):
        place.script("systemctl is-system-running --wait || true")
    found = gpu_run.parsed(place.script("cat /run/rackwell/gate.json || true"))
    report = found.pop("report", None) or {}
    with place.told():
        until(place.serves, START_S, "the server is up behind the gate")
    taken = round(time.monotonic() - began, 1)
    data = {"gate": found, "gate_seconds": report.get("seconds"), "serves_seconds": taken}
    require(found.get("verdict") in ("pass", "degraded"), f"the gate: {found}")
    return f"{found.get('verdict')} in {report.get('seconds')} s, serves {taken} s after the reboot was asked for", data


STEPS: dict[str, Callable[[Run], Told]] = {
    one.__name__: one
    for one in (
        lab, build, stage, check, cold, caches, killed, stop, second, bench, returned, roll, gate, warm,
    )
}  # fmt: skip
NEEDS = {
    "build": ["lab"],
    "stage": ["build"],
    "check": ["lab"],
    "cold": ["stage"],
    "caches": ["cold"],
    "stop": ["cold"],
    "warm": ["cold"],
    "killed": ["cold"],
    "second": ["cold"],
    "bench": ["second"],
    "roll": ["bench"],
    "returned": ["bench"],
    "gate": ["cold"],
}
