# SPDX-License-Identifier: Apache-2.0
"""What tests do to a laboratory: faults in its stand-ins, and their end."""

from __future__ import annotations

import json
from typing import Any

from rwlab import files, gpus, hosts, kernel
from rwlab.errors import LabError
from rwlab.paths import SOURCE, HostPaths, Instance
from rwlab.proc import run
from rwlab.record import Host, Record
from rwlab.site import ENGINE_FILE, MODEL

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


def change(instance: Instance, record: Record, host: Host, target: str, changes: list[str]) -> None:
    """Apply ``KEY=JSON`` changes to one of a host's stand-ins.

    gpu: the GPU state file. engine: the toy model's rackwell-lab-engine.json. kernel: ``version``, ``hmm``,
    ``loaded.MODULE``. node: ``nvidia3=false`` takes a device node away from the running host, ``=true`` brings it back.

    Raises:
        LabError: unknown target or place; a laboratory with real GPUs has no such stand-ins.
    """
    paths = instance.host(host.name)
    parsed = [parse(text) for text in changes]
    if target == "engine":
        path = paths.models / _model() / ENGINE_FILE
        document = files.read_json(path) or {}
        for key, value, remove in parsed:
            assign(document, key, value, remove=remove)
        files.write_json(path, document)
        return
    _stand_ins_only(record)
    new, state = kernel.settings(paths), files.read_json(kernel.state_file(paths))
    for key, value, remove in parsed:
        if target == "gpu":
            assign(state, key, value, remove=remove)
        elif target == "kernel":
            _kernel(new, state, key, value)
        else:
            _node(new, state, key, present=value is True)
    kernel.change(paths, new, state)
    _show_nodes(instance, paths, host)


def reset(instance: Instance, record: Record, host: Host) -> None:
    """Take back everything that :func:`change` did to a host."""
    paths = instance.host(host.name)
    engine = (SOURCE / "site/model" / ENGINE_FILE).read_bytes()
    files.write(paths.models / _model() / ENGINE_FILE, engine)
    if record.gpus == "stand-in":
        kernel.change(paths, {"kernel": gpus.kernel_settings(), "missing": []}, gpus.healthy(host.name))
        _show_nodes(instance, paths, host)


def _model() -> str:
    return MODEL.rsplit("/", 1)[1]


def _stand_ins_only(record: Record) -> None:
    if record.gpus != "stand-in":
        raise LabError(
            "gpus-are-real", "this laboratory has the machine's own GPUs: their faults cannot be set", exit_code=2
        )


def _kernel(new: dict[str, Any], state: dict[str, Any], key: str, value: Any) -> None:
    if key == "version":
        # the modules and the installer's checks read one and the same
        state["driver_version"] = str(value)
    elif key == "hmm":
        new["kernel"]["hmm"] = value is True
    elif key.removeprefix("loaded.") in new["kernel"]["loaded"]:
        new["kernel"]["loaded"][key.removeprefix("loaded.")] = value is True
    else:
        modules = ", ".join(f"loaded.{name}" for name in gpus.MODULES)
        raise LabError("no-such-place", f"kernel has no {key!r}", why=f"version, hmm, {modules}", exit_code=2)


def _node(new: dict[str, Any], state: dict[str, Any], name: str, *, present: bool) -> None:
    name = name.removeprefix("/dev/")
    if name not in gpus.nodes(state, set()):
        raise LabError(
            "no-such-place", f"no device node {name!r}", why=", ".join(gpus.nodes(state, set())), exit_code=2
        )
    missing = set(new["missing"]) - {name}
    new["missing"] = sorted(missing if present else missing | {name})


def _show_nodes(instance: Instance, paths: HostPaths, host: Host) -> None:
    """Make /dev of a running host, and of its next start, hold the nodes that it should."""
    wanted = kernel.nodes(paths)
    hosts.write_hook(paths.root / "make-nodes", wanted)
    hosts.find(instance, host)
    if not hosts.running(instance, host):
        return
    script = ["umask 0", "cd /dev"]
    script += ['for n in nvidia*; do case " $1 " in *" $n "*) ;; *) [ ! -c "$n" ] || rm -f "$n" ;; esac; done']
    script += [f"[ -c {name} ] || mknod {name} c {major} {minor}" for name, (major, minor) in wanted.items()]
    run(["nsenter", "-t", str(host.pid), "-m", "--", "sh", "-euc", "\n".join(script), "sh", " ".join(wanted)])
