# SPDX-License-Identifier: Apache-2.0
"""What a container has that its declaration does not say, and the other way round: each with its line and its remedy.

Severities: ``error``, it is not what is declared, and a run would change it or refuse to; ``warning``, it is as
declared but not for long, or not yet; ``note``, the declaration does not speak of it, and no run touches it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import (
    Change,
    Conf,
    kind_of,
    meaning,
    parse_properties,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_file import PENDING, ConfFile, Entry
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import NET_OWNED, TAG, Wanted
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import name_of, text_of

ERROR, WARNING, NOTE = "error", "warning", "note"
BOTH, MACHINE, DECLARATION = "both", "machine", "declaration"
GPU_NODE = re.compile(r"/dev/nvidia\d+")
# keys that say what the container is; not a setting that a declaration could have
_ITS_OWN = (
    "arch",
    "rootfs",
    "ostype",
    "unprivileged",
    "tags",
    "description",
    "lock",
    "snapstate",
    "parent",
    "snaptime",
)
# option of the file -> variable of the role, without its prefix
VARIABLES = {
    "hostname": "hostname",
    "memory": "memory",
    "swap": "swap",
    "cores": "cores",
    "onboot": "onboot",
    "nameserver": "nameserver",
    "features": "features",
    "dev": "devices",
    "mp": "mounts",
    "lxc": "raw",
}


@dataclasses.dataclass(frozen=True)
class Drift:
    """One difference.

    Attributes:
        side: who has more: ``machine``, ``declaration``, or ``both`` where they say different things.
        line, number: of the container's file; empty and 0 for what stands nowhere in it.
        found, declared: texts; empty for what is absent.
    """

    code: str
    severity: str
    side: str
    key: str
    what: str
    found: str = ""
    declared: str = ""
    line: str = ""
    number: int = 0
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The parts by name."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Looked:
    """What is known of the container beside its configuration.

    Attributes:
        todo: what a run would change, raw lines among it. refused: what only a new container can have.
        waiting: keys with a change that waits for the next start. shared: other containers with the same GPUs.
        gpus: the host's device nodes of GPUs as they are numbered now -> bus id.
    """

    conf: Conf
    file: Optional[ConfFile]
    want: Wanted
    todo: Sequence[Change]
    refused: Sequence[tuple[str, str, str]]
    waiting: Sequence[str]
    running: bool
    shared: Mapping[int, tuple[bool, list[str]]] = dataclasses.field(default_factory=dict)
    gpus: Mapping[str, str] = dataclasses.field(default_factory=dict)


def drift(looked: Looked) -> list[Drift]:
    """Every difference, the gravest first, then in the order of the file."""
    found = [
        *_refused(looked),
        *_changes(looked),
        *_state(looked),
        *_shared(looked),
        *_waiting(looked),
        *(oddities(looked.file) if looked.file else []),
        *_foreign(looked),
    ]
    grave = {ERROR: 0, WARNING: 1, NOTE: 2}
    return sorted(found, key=lambda one: (grave[one.severity], one.number or 10**6))


def _variable(key: str) -> str:
    if key == "net0":
        return "pve_container_ip, _bridge, _gateway or _net_options"
    kind = "lxc" if key.startswith("lxc.") else kind_of(key)
    name = VARIABLES.get(key) or VARIABLES.get(kind)
    return f"pve_container_{name}" if name else f"pve_container_options: {{{key}: …}}"


def _place(entry: Optional[Entry]) -> dict[str, Any]:
    return {"line": entry.text.strip(), "number": entry.number} if entry else {}


def _line_of(looked: Looked, key: str, value: Optional[str] = None) -> Optional[Entry]:
    """The line that an option has, or will have: what is pending stands in a section of its own."""
    if looked.file is None:
        return None
    section = next((name for name in looked.file.sections() if name.lower() == PENDING), "")
    if section and key in looked.conf.pending:
        return looked.file.find(key, section=section)
    if section and key in looked.conf.deleted:
        return looked.file.find("delete", section=section)
    return looked.file.find(key, value)


def _changes(looked: Looked) -> Iterable[Drift]:
    for change in looked.todo:
        entry = _line_of(looked, change.key, change.before) if change.before is not None else None
        side = DECLARATION if change.before is None else MACHINE if change.after is None else BOTH
        code = {DECLARATION: "not-there", MACHINE: "not-declared", BOTH: "differs"}[side]
        what = {
            DECLARATION: f"{change.key} is declared, and the container does not have it",
            MACHINE: f"the container has {change.key}, which is not declared",
            BOTH: f"{change.key} is not what is declared",
        }[side]
        what += _gpu(looked, change)
        astray = None
        if looked.file and side == DECLARATION and change.key.startswith("lxc.") and change.after is not None:
            astray = looked.file.elsewhere((change.key, change.after))
        if astray is not None:
            what += f": the line stands in [{astray.section}], where it has no effect"
            entry = astray
        restart = " (it needs a restart of the container: --allow-restart)" if change.restart and looked.running else ""
        keep = f"; or, to keep what is there, change {_variable(change.key)}"
        yield Drift(
            code,
            ERROR,
            side,
            change.key,
            what,
            change.before or "",
            change.after or "",
            fix=f"rackwell provision makes it so{restart}{keep}",
            **_place(entry),
        )


def _gpu(looked: Looked, change: Change) -> str:
    """Which GPU a dev entry is: the kernel numbers their nodes anew at each boot, and an entry goes by the number."""
    if kind_of(change.key) != "dev" or (change.before and change.after):
        return ""
    path = parse_properties("dev", change.after or change.before or "").get("path", "")
    if path in looked.gpus:
        return f": {path} is GPU {looked.gpus[path]} now"
    return f": the host has no GPU with the node {path} now" if GPU_NODE.fullmatch(path) else ""


def _refused(looked: Looked) -> Iterable[Drift]:
    keys = {"storage": "rootfs", "disk_size": "rootfs"}
    for option, old, new in looked.refused:
        key = keys.get(option, option)
        grows = option == "disk_size" and new.isdigit() and old.isdigit() and int(new) > int(old)
        yield Drift(
            "read-only",
            ERROR,
            BOTH,
            key,
            f"pve_container_{option} is not what the container was made with, and it cannot be changed",
            old,
            new,
            fix=f"pct resize VMID rootfs {new}G on the host" if grows else f"declare pve_container_{option}: {old}",
            **_place(looked.file.find(key) if looked.file else None),
        )


def _state(looked: Looked) -> Iterable[Drift]:
    lock = looked.conf.current.get("lock")
    if lock:
        yield Drift(
            "locked",
            WARNING,
            MACHINE,
            "lock",
            f"the container is locked ({lock}): nothing can be changed until that has ended",
            lock,
            fix="wait for the task; a lock that is left over: pct unlock VMID on the host",
            **_place(looked.file.find("lock") if looked.file else None),
        )
    if not looked.running:
        yield Drift(
            "stopped", ERROR, BOTH, "", "it does not run", "stopped", "running", fix="rackwell provision starts it"
        )


def _shared(looked: Looked) -> Iterable[Drift]:
    for vmid, (running, nodes) in looked.shared.items():
        yield Drift(
            "gpu-shared",
            WARNING if running else NOTE,
            MACHINE,
            "dev",
            f"container {vmid} of the same host {'runs and ' if running else ''}has {', '.join(nodes)} too",
            ", ".join(nodes),
            fix="give each GPU to one container: pve_container_gpus",
        )


def _waiting(looked: Looked) -> Iterable[Drift]:
    for key in looked.waiting:
        now, new = looked.conf.current.get(key, ""), looked.conf.pending.get(key, "")
        fix = "a restart applies it: rackwell provision --allow-restart, or pct reboot VMID"
        if key.startswith("lxc."):
            what = f"{key} stands in the file, and the container was started without it"
        else:
            gone = "its removal" if key in looked.conf.deleted else f"a change of it to '{new}'"
            what = f"{key}: {gone} waits for the next start"
            fix += f"; pct set VMID --revert {key} takes it back"
        yield Drift("pending", WARNING, MACHINE, key, what, now, fix=fix, **_place(_line_of(looked, key)))


def oddities(file: ConfFile) -> list[Drift]:
    """What a hand has left in the file."""
    return [
        Drift(
            odd.code, odd.severity, MACHINE, odd.entry.key, odd.what, odd.entry.value, fix=odd.fix, **_place(odd.entry)
        )
        for odd in file.oddities()
    ]


def _foreign(looked: Looked) -> Iterable[Drift]:
    """What no run touches, because the declaration does not speak of it."""
    have = looked.conf.effective()
    spoken = {*looked.want.simple, *looked.want.further, *_ITS_OWN, "net0", "features"}
    for key, value in have.items():
        kind = kind_of(key)
        volume = kind == "mp" and not _bind(value)
        if key in spoken or kind == "dev" or (kind == "mp" and not volume):
            continue
        what = "a volume, which no run touches" if volume or key.startswith("unused") else "it is left as it is"
        remedy = "nothing need be done" if volume or key.startswith("unused") else f"declare it: {_variable(key)}"
        yield Drift(
            "not-spoken-of",
            NOTE,
            MACHINE,
            key,
            f"the declaration does not speak of {key}: {what}",
            value,
            fix=remedy,
            **_place(looked.file.find(key) if looked.file else None),
        )
    yield from _foreign_net(looked, have.get("net0", ""))
    if looked.want.raw.lines is None:
        for line in looked.conf.raw:
            if name_of(line) not in looked.want.raw.typed:
                yield Drift(
                    "not-spoken-of",
                    NOTE,
                    MACHINE,
                    line[0],
                    "the declaration does not speak of this raw line: it is left as it is",
                    text_of(line),
                    fix="declare all raw lines: pve_container_raw",
                    **_place(looked.file.find(line[0], line[1]) if looked.file else None),
                )
    more = [tag for tag in looked.conf.tags() if tag != TAG]
    if looked.want.adopted and TAG not in looked.conf.tags():
        yield Drift(
            "no-tag",
            NOTE,
            BOTH,
            "tags",
            "it was adopted, and does not have rackwell's tag: another site could take it for its own",
            ";".join(more),
            TAG,
            fix=f"pct set VMID --tags '{';'.join([*more, TAG])}' on the host, then pve_container_adopted: false",
            **_place(looked.file.find("tags") if looked.file else None),
        )


def _foreign_net(looked: Looked, text: str) -> Iterable[Drift]:
    parts = meaning("net", parse_properties("net", text), ("hwaddr",))
    rest = {name: value for name, value in parts.items() if name not in (*NET_OWNED, *looked.want.net)}
    if rest:
        yield Drift(
            "not-spoken-of",
            NOTE,
            MACHINE,
            "net0",
            f"the declaration does not speak of these parts of net0: {', '.join(sorted(rest))}",
            ",".join(f"{name}={rest[name]}" for name in sorted(rest)),
            fix="declare them: pve_container_net_options",
            **_place(looked.file.find("net0") if looked.file else None),
        )


def _bind(value: str) -> bool:
    volume = parse_properties("mp", value).get("volume", "")
    return volume.startswith("/") and not volume.startswith("/dev/")
