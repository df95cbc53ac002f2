# SPDX-License-Identifier: Apache-2.0
"""What tests do to a laboratory: faults in its stand-ins, and their end."""

from __future__ import annotations

import copy
import json
import re
import shlex
from typing import Any

from rwlab import access, files, gpus, hosts, kernel, nodes
from rwlab.errors import LabError
from rwlab.paths import SOURCE, HostPaths, Instance
from rwlab.proc import run
from rwlab.record import Host, Record
from rwlab.site import ENGINE_FILE, MODEL, declared

TARGETS = ("gpu", "engine", "kernel", "node")


def assign(document: Any, pointer: str, value: Any, *, remove: bool = False) -> None:
    """Set or remove one place of a JSON document, in place.

    Args:
        document: object or array.
        pointer: keys and indices with dots between: ``gpus.3.errors.cuInit``. Objects on the way are made.

    Raises:
        LabError: the place cannot be (an index outside an array, a key of something that is no object).
    """
    *way, last = pointer.split(".")
    at = document
    for depth, part in enumerate(way):
        if isinstance(at, dict) and (part not in at or at[part] is None):
            at[part] = {}
        at = _item(at, part, ".".join(way[: depth + 1]))
    if isinstance(at, list):
        _item(at, last, pointer)
        if remove:
            del at[int(last)]
        else:
            at[int(last)] = value
    elif isinstance(at, dict):
        if remove:
            at.pop(last, None)
        else:
            at[last] = value
    else:
        raise LabError("no-such-place", f"{pointer}: {'.'.join(way)} holds no members", exit_code=2)


def _item(at: Any, part: str, pointer: str) -> Any:
    try:
        return at[int(part)] if isinstance(at, list) else at[part]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise LabError("no-such-place", f"{pointer}: there is no {part!r}", exit_code=2) from error


def parse(text: str) -> tuple[str, Any, bool]:
    """``KEY=JSON`` as (key, value, remove). ``KEY=`` removes; a value that is no JSON is taken as a string."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise LabError("usage", f"{text!r} is not KEY=JSON", fix="lab.py set gpu gpus.3.errors.cuInit=100", exit_code=2)
    if not value:
        return key, None, True
    try:
        return key, json.loads(value), False
    except json.JSONDecodeError:
        return key, value, False


def change(
    instance: Instance, record: Record, host: Host, target: str, changes: list[str], container: str | None = None
) -> None:
    """Apply ``KEY=JSON`` changes to one of a host's stand-ins.

    gpu: the GPU state file. engine: the toy model's rackwell-lab-engine.json. kernel: :func:`_kernel`.
    node: ``nvidia3=false`` takes a device node away from the running host, ``=true`` brings it back; what else it can
    be says nodes.fault. ``at_boot=false``: the laboratory makes none at the host's start.

    Args:
        container: with target node: change the node inside this running container, not the host's.

    Raises:
        LabError: unknown target or place; a laboratory with real GPUs has no such stand-ins.
    """
    paths = instance.host(host.name)
    parsed = [parse(text) for text in changes]
    if container and target != "node":
        raise LabError("usage", "--container is for nodes", fix="lab.py set node --container NAME …", exit_code=2)
    if target == "engine":
        path = paths.models / _model() / ENGINE_FILE
        document = files.read_json(path) or {}
        for key, value, remove in parsed:
            assign(document, key, value, remove=remove)
        files.write_json(path, document)
        return
    _stand_ins_only(record)
    new, state = kernel.settings(paths), files.read_json(kernel.state_file(paths))
    before, named = copy.deepcopy(state), set[str]()
    for key, value, remove in parsed:
        if target == "gpu":
            assign(state, key, value, remove=remove)
        elif target == "kernel":
            _kernel(new, state, host.name, key, value)
        elif key == "at_boot":
            new["at_boot"] = value is not False
        else:
            named.add(_node(new, state, key, value, container and _vmid(record, host, container)))
    if [gpu.get("minor") for gpu in state["gpus"]] != [gpu.get("minor") for gpu in before["gpus"]]:
        gpus.swap_minors(state, before)
        new.pop("minors", None)
    kernel.change(paths, new, state)
    if container:
        _into_container(instance, record, host, _vmid(record, host, container), new, named)
    else:
        _show_nodes(instance, paths, host, named)


def reset(instance: Instance, record: Record, host: Host) -> None:
    """Take back everything that :func:`change` did to a host, and to containers that still run."""
    paths = instance.host(host.name)
    engine = (SOURCE / "site/model" / ENGINE_FILE).read_bytes()
    files.write(paths.models / _model() / ENGINE_FILE, engine)
    if record.gpus != "stand-in":
        return
    was, new = kernel.settings(paths), kernel.defaults()
    state = gpus.healthy(host.name)
    kernel.change(paths, new, state)
    _show_nodes(instance, paths, host, set(kernel.healthy_nodes(new, state)))
    for vmid, changed in was["containers"].items():
        _into_container(instance, record, host, int(vmid), new, set(changed))


def _model() -> str:
    return MODEL.rsplit("/", 1)[1]


def _stand_ins_only(record: Record) -> None:
    if record.gpus != "stand-in":
        raise LabError(
            "gpus-are-real", "this laboratory has the machine's own GPUs: their faults cannot be set", exit_code=2
        )


def _kernel(new: dict[str, Any], state: dict[str, Any], host: str, key: str, value: Any) -> None:
    """One change of target kernel; a value of None takes it back.

    version (of the driver), hmm, loaded.MODULE, params.NAME (/proc/driver/nvidia/params), release (of the kernel),
    iommu (off, pt, translated), cmdline (further boot options), cpus (how many processors), dmi.NAME, dmesg (lines),
    machine (a name: the GPUs of another machine, with other UUIDs).
    """
    kept, (part, _, name) = new["kernel"], key.partition(".")
    healthy = kernel.defaults()["kernel"]
    if key == "version":
        # the modules and the installer's checks read one and the same
        state["driver_version"] = str(value or gpus.DRIVER_VERSION)
    elif key == "machine":
        known = gpus.healthy(host)["gpus"]
        for gpu, own in zip(state["gpus"], known, strict=False):
            gpu["uuid"] = gpus.uuid(str(value), gpu["bus_id"]) if value else own["uuid"]
    elif key == "iommu":
        assign(state, "iommu", value, remove=value is None)
    elif key == "cpus":
        kept["cpus"] = int(value or 0)
    elif key == "hmm":
        kept["hmm"] = value is True
    elif key in ("release", "cmdline"):
        kept[key] = str(value if value is not None else healthy[key])
    elif key == "dmesg":
        kept[key] = value if isinstance(value, list) else [] if value is None else [str(value)]
    elif part == "loaded" and name in kept[part]:
        kept[part][name] = value is True
    elif part == "dmi" and name in healthy[part]:
        kept[part][name] = str(value if value is not None else healthy[part][name])
    elif part == "params" and re.fullmatch(r"\w+", name):
        assign(kept, key, value, remove=value is None)
    else:
        known_keys = ["version", "hmm", "release", "iommu", "cmdline", "cpus", "dmesg", "machine", "params.NAME"]
        known_keys += [f"{part}.{name}" for part in ("loaded", "dmi") for name in healthy[part]]
        raise LabError("no-such-place", f"kernel has no {key!r}", why=", ".join(known_keys), exit_code=2)


def _node(new: dict[str, Any], state: dict[str, Any], name: str, value: Any, vmid: int | None) -> str:
    name = name.removeprefix("/dev/")
    known = kernel.healthy_nodes(new, state)
    if name not in known:
        raise LabError("no-such-place", f"no device node {name!r}", why=", ".join(known), exit_code=2)
    kept = new["containers"].setdefault(str(vmid), {}) if vmid else new["nodes"]
    broken = nodes.fault(name, value)
    if broken is None and not vmid:
        kept.pop(name, None)
    else:
        kept[name] = broken
    return name


def _vmid(record: Record, host: Host, container: str) -> int:
    known = {each.name: each.vmid for each in declared(record) if each.host == host.name}
    if container not in known:
        raise LabError(
            "container-unknown",
            f"no container {container!r} on {host.name}",
            why=f"there are {', '.join(known)}",
            exit_code=2,
        )
    return known[container]


def _show_nodes(instance: Instance, paths: HostPaths, host: Host, named: set[str]) -> None:
    """Make /dev of a running host, and of its next start, hold the nodes that it should."""
    hosts.write_hook(paths.root / "make-nodes", kernel.nodes_at_boot(paths))
    hosts.find(instance, host)
    if not hosts.running(instance, host):
        return
    wanted = kernel.wanted_nodes(paths)
    script = nodes.mending(wanted, only_existing=not kernel.settings(paths)["at_boot"], named=named)
    run(["nsenter", "-t", str(host.pid), "-m", "--", "sh", "-euc", script, "sh", " ".join(wanted)])


def _into_container(
    instance: Instance, record: Record, host: Host, vmid: int, new: dict[str, Any], named: set[str]
) -> None:
    """Exchange nodes inside a running container; one that is stopped gets its nodes anew when it starts."""
    hosts.find(instance, host)
    if not hosts.running(instance, host):
        return
    faults = {name: new["containers"].get(str(vmid), {}).get(name) for name in sorted(named)}
    ssh = access.ssh(instance, record.address(host.octet))
    program = "PYTHONPATH=/usr/share/rackwell-lab/pve python3 -B -m labpve.node"
    run([*ssh, f"{program} {vmid} {shlex.quote(json.dumps(faults))}"])
