# SPDX-License-Identifier: Apache-2.0
"""Nodes, modules, versions, CUDA's start, the number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.probe.errors import HANG, choose, explain
from rackwell.probe.findings import DECLARED, RULE, Finding, listed, make
from rackwell.probe.judge.context import Context
from rackwell.probe.surroundings import CTL, UVM, Node

#: CUDA's code -> ours; 3 is HMM's where HMM is on
_OF_CUDA = {
    3: "cuda-not-initialized",
    100: "cuda-no-device",
    304: "cuda-os-refused",
    802: "cuda-fabric-not-ready",
    803: "driver-mismatch",
    804: "cuda-compat-libraries",
    999: "cuda-unknown",
}
_NOT_RETURNED = ("HANG", "HANG_IN_KERNEL")
_NVML_MISMATCH = 18


def nodes(context: Context) -> Iterator[Finding]:
    """Each sort of fault once, with all nodes that have it."""
    seen = context.surroundings
    needed = (seen.node(CTL), seen.node(UVM), *seen.gpu_nodes)
    if not seen.node(UVM).present:
        yield make("uvm-node-missing", f"{UVM} is missing", UVM)
    if not seen.node(CTL).present:
        yield make("ctl-node-missing", f"{CTL} is missing", CTL)
    plain = [node for node in needed if node.present and not node.device]
    if plain:
        what = f"{listed([node.path for node in plain])}: no device node, but a plain file"
        yield make("node-not-device", what, _paths(plain), fill={"node": plain[0].path})
    yield from _majors(context, [node for node in needed if node.device and not node.major_ok])
    denied = [node for node in needed if node.device and not node.usable]
    if denied:
        what = f"{listed([f'{node.path} (mode {node.mode})' for node in denied])} may not be opened by this user"
        yield make("node-denied", what, _paths(denied), fill={"node": denied[0].path})
    yield from _missing_gpu_nodes(context)


def _majors(context: Context, wrong: list[Node]) -> Iterator[Finding]:
    for node in wrong:
        if node.path == UVM:
            expected = context.surroundings.uvm_major
            what = f"{UVM} has major {node.major}, the kernel serves nvidia-uvm with {expected}"
            numbers: dict[str, Any] = {"measured": float(node.major), "expected": float(expected or 0), "basis": RULE}
            yield make("uvm-node-stale", what, UVM, **numbers)
    others = [node for node in wrong if node.path != UVM]
    if others:
        what = f"{listed([f'{node.path} (major {node.major})' for node in others])}: the node of another driver"
        why = "the node was made by hand with a major number that is not NVIDIA's (195)"
        yield make("node-not-device", what, _paths(others), fill={"node": others[0].path}, why=why)


def _missing_gpu_nodes(context: Context) -> Iterator[Finding]:
    """GPUs that the module has and that lack their node, as far as fewer are found than there must be."""
    seen = context.surroundings
    here = [node for node in seen.gpu_nodes if node.present]
    wanted = expected_gpus(context) or 1
    without = seen.without_node()
    if len(here) >= wanted or not (without or not here):
        return
    if not without:
        if seen.gpus or seen.kernel_module_version is None:
            return  # no module, no GPU: other findings say so
        yield make("gpu-node-missing", "no /dev/nvidiaN is here", "/dev", fill={"node": "/dev/nvidia0"})
        return
    names = [f"{gpu.uuid or 'GPU'} at {gpu.bus_id} (/dev/nvidia{gpu.minor})" for gpu in without]
    minor = str(without[0].minor)
    yield make(
        "gpu-node-missing",
        f"{len(here)} of {wanted} GPU nodes are here",
        listed(names),
        fill={"node": f"/dev/nvidia{minor}"},
        why="the kernel module has the GPU, this container has no node of it: " + listed(names),
        measured=float(len(here)),
        expected=float(wanted),
        unit="nodes",
        basis=DECLARED,
    )


def driver(context: Context) -> Iterator[Finding]:
    """Module and versions."""
    seen = context.surroundings
    kernel, user = seen.kernel_module_version, context.user_space
    if kernel is None and not seen.gpus and not context.cuda.get("devices"):
        yield make("module-missing", "the NVIDIA kernel module is not loaded", context.host)
    elif seen.uvm_loaded is False:
        why = "the host has loaded nvidia, and not nvidia_uvm, without which CUDA cannot start"
        fix = "`modprobe nvidia_uvm && nvidia-modprobe -u -c 0` on the Proxmox host, then `pct reboot VMID`"
        yield make("module-missing", "the kernel module nvidia_uvm is not loaded", context.host, why=why, fix=fix)
    differ = bool(kernel and user and kernel != user)
    if differ or context.nvml.get("code") == _NVML_MISMATCH:
        what = f"kernel module {kernel or 'unknown'}, user space {user or 'unknown'}"
        yield make("driver-mismatch", what, context.host)


def cuda(context: Context) -> Iterator[Finding]:
    """What CUDA said when it was started and used, each code once."""
    failed: dict[str, list[tuple[int | None, Mapping[str, Any]]]] = {}
    steps = [(None, step) for step in context.cuda.get("steps") or ()]
    steps += [(device["index"], s) for device in context.cuda.get("devices") or () for s in device.get("steps") or ()]
    for index, step in steps:
        if step.get("error"):
            failed.setdefault(_code_of(step["error"], context), []).append((index, step))
    wrong = [d["index"] for d in context.cuda.get("devices") or () if d.get("kernel_verified") is False]
    if wrong and "cuda-wrong-data" not in failed:
        what = f"GPU {', '.join(map(str, wrong))}: the kernel's result is wrong"
        yield make("cuda-wrong-data", what, context.names(wrong), gpus=wrong)
    for code, entries in failed.items():
        yield _failed(context, code, entries)
    if context.cuda and context.cuda.get("state", "done") == "done" and not failed and not context.cuda.get("devices"):
        yield make("cuda-no-device", "CUDA starts and finds no GPU", context.host)
    if context.cuda.get("state", "done") != "done" and not failed:
        code = "cuda-crash" if context.cuda["state"] == "crashed" else "cuda-hang"
        yield make(code, f"the check of CUDA {context.cuda.get('describe') or 'did not end well'}", context.host)


def _failed(context: Context, code: str, entries: list[tuple[int | None, Mapping[str, Any]]]) -> Finding:
    step, error = entries[0][1]["step"], entries[0][1]["error"]
    number = error.get("code")
    name = error["name"] if number is None or number < 0 else f"{error['name']} ({number})"
    gpus = [index for index, _ in entries if index is not None]
    of = f"GPU {', '.join(map(str, gpus))}: " if gpus else ""
    what = f"{of}{step}: {error.get('detail') or name}" if number is None else f"{of}{step}: {name}"
    where = context.names(gpus) if gpus else context.host
    facts: dict[str, Any] = {"gpus": gpus}
    conditions = context.surroundings.findings
    if code == "cuda-hang":
        advice = choose(HANG, conditions)
        facts |= {"why": advice.cause, "fix": advice.fix}
    elif code == "cuda-failed" and number is not None:
        advice = explain(number, conditions)
        facts |= {"why": advice.cause, "fix": advice.fix}
    elif code == "cuda-compat-libraries" and context.surroundings.compat:
        facts["why"] = f"CUDA's compat libraries are found first, in {listed(list(context.surroundings.compat))}"
    elif code == "cuda-no-device" and context.surroundings.visible_devices is not None:
        value = context.surroundings.visible_devices
        facts |= {
            "why": f"CUDA_VISIBLE_DEVICES is set to '{value}' and hides the GPUs",
            "fix": "`unset CUDA_VISIBLE_DEVICES`, or set it to indices or UUIDs of `nvidia-smi -L`",
        }
    return make(code, what, where, **facts)


def _code_of(error: Mapping[str, Any], context: Context) -> str:
    if error["name"] in _NOT_RETURNED:
        return "cuda-hang"
    special = {"CRASH": "cuda-crash", "WRONG_DATA": "cuda-wrong-data"}.get(error["name"])
    if special:
        return special
    number = error.get("code")
    if number == 3 and context.hmm:
        return "hmm-on"
    return _OF_CUDA.get(number, "cuda-failed") if number is not None else "cuda-failed"


def expected_gpus(context: Context) -> int | None:
    """How many GPUs there must be: as declared, else as the baseline has them; None = nobody said."""
    return context.declared or len(context.baseline.gpus) or None


def gpus(context: Context) -> Iterator[Finding]:
    """Fewer or more than there must be; which one, where anything knows."""
    found = context.cuda.get("count")
    wanted = expected_gpus(context)
    if found is None or wanted is None or found == wanted or not _started(context):
        return
    numbers: dict[str, Any] = {"measured": float(found), "expected": float(wanted), "unit": "GPUs"}
    basis = DECLARED if context.declared else "baseline"
    what = f"{found} of {wanted} GPUs are here"
    if found > wanted:
        yield make("gpu-extra", f"{found} GPUs, {wanted} declared", context.host, **numbers, basis=basis)
        return
    missing = missing_gpus(context, wanted - found)
    facts: dict[str, Any] = {}
    if context.surroundings.visible_devices is not None:
        value = context.surroundings.visible_devices
        facts["why"] = f"CUDA_VISIBLE_DEVICES is set to '{value}' and hides GPUs, or a GPU does not answer"
        facts["fix"] = "`unset CUDA_VISIBLE_DEVICES`; when that is not it, `dmesg | grep -E 'NVRM|Xid'` on the host"
    elif missing:
        facts["why"] = _why_missing(context, [bus_id for bus_id, _ in missing])
    names = [" at ".join(filter(None, (uuid, bus_id))) for bus_id, uuid in missing]
    what += f": {listed(names)} is missing" if len(names) == 1 else f": {listed(names)} are missing" if names else ""
    yield make("gpu-missing", what, listed(names) or context.host, **numbers, basis=basis, **facts)


def missing_gpus(context: Context, count: int) -> list[tuple[str, str | None]]:
    """(bus id, UUID) of the GPUs that are not here, from the first source that knows as many as are missing."""
    here = {gpu.bus_id for gpu in context.topology.gpus} | {gpu.uuid for gpu in context.topology.gpus}
    facts = (context.host_facts or {}).get("gpus") or ()
    sources: tuple[list[tuple[str, str | None]], ...] = (
        [(gpu["bus_id"], gpu.get("uuid")) for gpu in context.baseline.gpus],
        [(gpu["bus_id"], gpu.get("uuid")) for gpu in facts],
        [(gpu.bus_id, gpu.uuid) for gpu in context.surroundings.gpus],
        [(gpu.bus_id, None) for gpu in context.tree.gpus],
    )
    for source in sources:
        missing = [(bus_id, uuid) for bus_id, uuid in source if bus_id not in here and (not uuid or uuid not in here)]
        if len(missing) == count:
            return missing
    return []


def _why_missing(context: Context, bus_ids: list[str]) -> str:
    on_bus = {gpu.bus_id for gpu in context.tree.gpus}
    known = {gpu.bus_id for gpu in context.surroundings.gpus}
    if on_bus and all(bus_id not in on_bus for bus_id in bus_ids):
        return "it is not on the PCI bus any more: it has fallen off, lost power, or its slot did not train"
    if known and all(bus_id not in known for bus_id in bus_ids):
        return "it is on the PCI bus, and the kernel module did not take it: it failed to start"
    return (
        "the kernel module has it, and CUDA in this container does not see it: it does not answer, or is not passed in"
    )


def _started(context: Context) -> bool:
    return not any(step.get("error") for step in context.cuda.get("steps") or ())


def _paths(found: list[Node]) -> str:
    return listed([node.path for node in found])
