# SPDX-License-Identifier: Apache-2.0
"""Does CUDA start here, and does each GPU hold data? Nothing less proves it: nvidia-smi answers without CUDA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rackwell.probe import child, surroundings, telemetry
from rackwell.probe.child import Emit, Outcome
from rackwell.probe.data import Buffer, Patterns, compare
from rackwell.probe.driver import Driver, DriverError, load
from rackwell.probe.errors import DATA_MISMATCH_GPU, explain
from rackwell.probe.report import (
    StepFailedError,
    failures,
    gpu_name,
    host,
    problem,
    step,
    steps_of,
    verdict,
)

SCHEMA = "rackwell.cuda/1"
#: bytes that are written to and read back from each GPU
SIZE = 16 << 20
_NVML_DEADLINE = 30.0
_FILL = 0x5A
_NVML_LIB_RM_VERSION_MISMATCH = 18


def check(timeout: float, gpus: int | None, root: Path = Path("/")) -> dict[str, Any]:
    """The report of all GPUs.

    Args:
        timeout: seconds for the whole of CUDA; what has not returned by then hangs.
        gpus: how many GPUs there must be; None = as many as CUDA finds, at least one.
        root: where to look for /dev, /sys and /proc.
    """
    seen = surroundings.look(root)
    nvml = _nvml(min(timeout, _NVML_DEADLINE))
    outcome = child.run("rackwell.probe.cuda_check:work", {"size": SIZE}, timeout)
    start: dict[str, Any] = next((event["start"] for event in outcome.events if "start" in event), {})
    user_space = start.get("user_space_version") or nvml.get("user_space_version")
    findings = set(seen.findings)
    if seen.kernel_module_version and user_space and user_space != seen.kernel_module_version:
        findings.add("versions-differ")
    steps = steps_of(outcome, {"device": None}, findings, DATA_MISMATCH_GPU)
    devices = _devices(outcome, findings)
    problems = failures(steps, host(), "cuda")
    for device in devices:
        problems += failures(device["steps"], gpu_name(device), "cuda", f"GPU {device['index']}")
    problems += _unexplained(outcome, problems)
    problems += _denied(seen)
    problems += _mismatch(nvml, user_space, seen.kernel_module_version)
    if not problems:
        problems += _count(len(devices), gpus, seen)
    return {
        "schema": SCHEMA,
        "verdict": verdict(problems),
        "host": host(),
        "user": os.getuid(),
        "driver_version": seen.kernel_module_version or nvml.get("driver_version"),
        "user_space_version": user_space,
        "cuda_version": start.get("cuda_version"),
        "expected_gpus": gpus,
        "steps": steps,
        "devices": devices,
        "nvml": nvml,
        "surroundings": {**seen.as_dict(), "findings": sorted(findings)},
        "problems": problems,
    }


def work(emit: Emit, arguments: dict[str, Any]) -> None:
    """The child's part: emits steps, one ``start`` and a ``device`` each."""
    try:
        exercise(emit, arguments["size"], load)
    except StepFailedError:
        return


def exercise(emit: Emit, size: int, loader: Any = load) -> None:
    """Start CUDA, then take each GPU through its steps; a GPU that fails does not keep the next from its turn."""
    with step(emit, "load", device=None):
        driver: Driver = loader()
        cuda_version = driver.version()  # loads the library, starts nothing
    library = surroundings.loaded_library("libcuda.so")
    version = surroundings.version_of(library) if library else None
    emit({"start": {"user_space_version": version, "cuda_version": cuda_version}})
    with step(emit, "cuInit", device=None):
        driver.init()
    with step(emit, "cuDeviceGetCount", device=None):
        count = driver.count()
    emit({"count": count})
    for index in range(count):
        try:
            _exercise_gpu(emit, driver, index, size)
        except StepFailedError:
            continue


def _exercise_gpu(emit: Emit, driver: Driver, index: int, size: int) -> None:
    with step(emit, "identify", device=index):
        device = driver.device(index)
        emit({"device": index, "identity": identity(driver, device, index)})
    with step(emit, "context", device=index):
        driver.retain(device)
    try:
        with step(emit, "allocate", device=index):
            address = driver.allocate(size)
        data, buffer = Patterns(size).fresh(), Buffer(size)
        with step(emit, "copy to the GPU", device=index):
            driver.write(address, data)
        with step(emit, "copy back and compare", device=index):
            driver.read(address, buffer.cleared())
            compare(data, buffer.data)
        with step(emit, "fill and compare", device=index):
            driver.fill(address, _FILL, size)
            driver.read(address, buffer.cleared())
            compare(bytes([_FILL]) * size, buffer.data)
        with step(emit, "free", device=index):
            driver.free(address)
    finally:
        try:
            driver.release(device)
        except DriverError as error:  # the step that failed before it says why
            emit({"note": str(error)})


def identity(driver: Driver, device: Any, index: int) -> dict[str, Any]:
    """What names a GPU; memory in bytes."""
    return {
        "index": index,
        "uuid": driver.uuid(device),
        "bus_id": driver.bus_id(device),
        "name": driver.name(device),
        "compute_capability": driver.compute_capability(device),
        "memory_total": driver.memory_total(device),
    }


def nvml_work(emit: Emit, _arguments: dict[str, Any]) -> None:
    """The child's part for NVML: emits its driver version and how many GPUs it sees."""
    emit({"nvml": telemetry.overview()})


def _nvml(deadline: float) -> dict[str, Any]:
    outcome = child.run("rackwell.probe.cuda_check:nvml_work", {}, deadline)
    if outcome.events:
        found: dict[str, Any] = outcome.events[-1]["nvml"]
        return found
    return {"available": False, "why": "NVML " + outcome.describe()}


def _devices(outcome: Outcome, findings: set[str]) -> list[dict[str, Any]]:
    count = next((event["count"] for event in outcome.events if "count" in event), 0)
    identities = {event["device"]: event["identity"] for event in outcome.events if "identity" in event}
    devices = []
    for index in range(count):
        steps = steps_of(outcome, {"device": index}, findings, DATA_MISMATCH_GPU)
        devices.append({"index": index, **identities.get(index, {}), "steps": steps})
    return devices


def _unexplained(outcome: Outcome, problems: list[dict[str, str]]) -> list[dict[str, str]]:
    """A child that ended between two steps: rare, and never to be taken for a pass."""
    if outcome.state == "done" or problems:
        return []
    advice = explain(0)
    return [problem("cuda-crash", f"the check {outcome.describe()}", host(), outcome.stderr.strip()[-300:], advice.fix)]


def _denied(seen: surroundings.Surroundings) -> list[dict[str, str]]:
    found = []
    for node in seen.nodes:
        if node.present and not node.usable and not node.path.endswith("-tools"):
            fix = f"on the Proxmox host `pct set VMID --devN {node.path},mode=0666`, then restart the container"
            why = f"its mode is {node.mode} and this process runs as uid {os.getuid()}"
            found.append(problem("device-node-denied", f"{node.path} may not be opened", node.path, why, fix))
    return found


def _mismatch(nvml: dict[str, Any], user_space: str | None, kernel: str | None) -> list[dict[str, str]]:
    if nvml.get("code") != _NVML_LIB_RM_VERSION_MISMATCH:
        return []
    why = f"user space {user_space or 'unknown'}, kernel module {kernel or 'unknown'}"
    return [problem("driver-mismatch", "NVML refuses the kernel module", host(), why, explain(803).fix)]


def _count(found: int, expected: int | None, seen: surroundings.Surroundings) -> list[dict[str, str]]:
    wanted = 1 if expected is None else expected
    if found == wanted or (expected is None and found > wanted):
        return []
    nodes = [node.path for node in seen.nodes if node.path[-1].isdigit()]
    why = f"device nodes here: {', '.join(nodes) or 'none'}"
    fix = "pass each GPU's node as a devN entry (rackwell: pve_container_gpus); on the host compare `nvidia-smi -L`"
    if len(nodes) >= wanted:
        fix = "on the Proxmox host look at `dmesg | grep -E 'NVRM|Xid'`: a node without its GPU is a GPU that failed"
    return [problem("gpu-count", f"CUDA finds {found} GPUs, {wanted} are expected", host(), why, fix)]
