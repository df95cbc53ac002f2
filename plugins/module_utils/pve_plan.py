# SPDX-License-Identifier: Apache-2.0
"""A declared container as Proxmox VE options, and what has to change for an existing one to be it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import (
    Change,
    Conf,
    index_of,
    kind_of,
    meaning,
    order,
    parse_properties,
    print_properties,
)

TAG = "rackwell"
# parts of net0 that are declared; others (hwaddr, firewall, tag, rate, …) are the operator's and stay
NET_OWNED = ("name", "bridge", "ip", "gw")
# keys whose change a running container takes at once; the rest waits for its next start
HOT = ("onboot", "cores", "tags", "memory", "swap", "hostname")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The declared container.

    Attributes:
        simple: key -> text of the options without parts; None: the option must be absent.
        features, net: their parts. devices: parts of each dev entry; mounts: of each mp entry.
        fixed: what can only be chosen at creation: ``unprivileged``, ``ostype``.
    """

    simple: dict[str, Optional[str]]
    features: dict[str, str]
    net: dict[str, str]
    devices: list[dict[str, str]]
    mounts: list[dict[str, str]]
    fixed: dict[str, str]


def flag(value: Any) -> str:
    """0 or 1."""
    return "1" if value in (True, 1, "1") else "0"


def wanted(args: Mapping[str, Any], gpu_nodes: Sequence[str]) -> Wanted:
    """The declaration in the module's options. Devices come first, then the GPUs' nodes in the order given."""
    features = {}
    for name, value in (args["features"] or {}).items():
        if isinstance(value, (list, tuple)):
            features[name] = ";".join(map(str, value))
        else:
            features[name] = flag(value) if isinstance(value, (bool, int)) else str(value)
    net = {"name": "eth0", "bridge": args["bridge"], "ip": args["ip"]}
    if args.get("gateway"):
        net["gw"] = args["gateway"]
    paths = list(dict.fromkeys([*args["devices"], *gpu_nodes]))
    mounts = []
    for mount in args["mounts"]:
        parts = {"volume": mount["source"], "mp": mount["target"]}
        if mount.get("read_only", True):
            parts["ro"] = "1"
        mounts.append(parts)
    return Wanted(
        simple={
            "hostname": args["hostname"],
            "memory": str(args["memory"]),
            "swap": str(args["swap"]),
            "onboot": flag(args["onboot"]),
            "cores": str(args["cores"]) if args.get("cores") else None,
            "nameserver": args.get("nameserver") or None,
        },
        features=features,
        net=net,
        devices=[{"path": path, "mode": args["device_mode"]} for path in paths],
        mounts=mounts,
        fixed={"unprivileged": flag(args["unprivileged"]), "ostype": args["ostype"]},
    )


def as_options(want: Wanted) -> dict[str, str]:
    """The options of a new container, without rootfs and template."""
    options = {key: value for key, value in want.simple.items() if value is not None}
    options.update(want.fixed)
    options["tags"] = TAG
    options["net0"] = print_properties("net", want.net)
    features = meaning("features", want.features)
    if features:
        options["features"] = print_properties("features", features)
    options.update({f"dev{index}": print_properties("dev", device) for index, device in enumerate(want.devices)})
    options.update({f"mp{index}": print_properties("mp", mount) for index, mount in enumerate(want.mounts)})
    return options


def foreign(conf: Conf, hostname: str) -> Optional[str]:
    """Why an existing container is not rackwell's; None when it is."""
    found = conf.effective().get("hostname", "")
    if TAG not in conf.tags():
        return f"container {found or '(no hostname)'} has no tag '{TAG}' (tags: {', '.join(conf.tags()) or 'none'})"
    if found != hostname:
        return f"its hostname is '{found}', declared is '{hostname}'"
    return None


def refused(conf: Conf, want: Wanted, storage: str, disk_size: int) -> list[tuple[str, str, str]]:
    """Declared values that an existing container cannot take: (option, found, declared)."""
    have = conf.effective()
    found = [
        (key, have.get(key, assumed), want.fixed[key])
        for key, assumed in (("unprivileged", "0"), ("ostype", "unmanaged"))
        if have.get(key, assumed) != want.fixed[key]
    ]
    root = parse_properties("rootfs", have.get("rootfs", ""))
    place = root.get("volume", "").partition(":")[0]
    if place and place != storage:
        found.append(("storage", place, storage))
    size = root.get("size", "")
    if size.endswith("G") and size[:-1].isdigit() and int(size[:-1]) != disk_size:
        found.append(("disk_size", size[:-1], str(disk_size)))
    return found


def changes(conf: Conf, want: Wanted, hotplug_devices: bool = True) -> list[Change]:
    """What has to change, in PVE's order of keys.

    Args:
        hotplug_devices: whether this Proxmox VE plugs a new dev entry into a running container (9.0 and later).
    """
    have = conf.effective()
    found: list[Change] = []

    def add(key: str, after: Optional[str], restart: bool) -> None:
        found.append(Change(key, have.get(key), after, restart))

    for key, value in want.simple.items():
        if have.get(key) != value and not (key in ("onboot", "swap") and value == "0" and key not in have):
            add(key, value, key not in HOT)
    if TAG not in conf.tags():
        add("tags", ";".join(sorted({*conf.tags(), TAG})), False)
    features = meaning("features", want.features)
    if meaning("features", parse_properties("features", have.get("features", ""))) != features:
        add("features", print_properties("features", features) if features else None, True)
    net = parse_properties("net", have.get("net0", ""))
    if {name: net[name] for name in NET_OWNED if name in net} != want.net:
        kept = {name: value for name, value in net.items() if name not in NET_OWNED}
        add("net0", print_properties("net", {**kept, **want.net}), False)
    found += _entries(conf, "dev", want.devices, lambda parts: parts.get("path", ""), _always, hotplug_devices)
    found += _entries(conf, "mp", want.mounts, lambda parts: parts.get("mp", ""), _is_bind, True)
    return sorted(found, key=lambda change: order(change.key))


def _always(_parts: Mapping[str, str]) -> bool:
    """Every dev entry belongs to the declaration."""
    return True


def _is_bind(parts: Mapping[str, str]) -> bool:
    """A directory of the host; other mount points are volumes with data, which are never touched."""
    return parts.get("volume", "").startswith("/")


def _entries(
    conf: Conf,
    kind: str,
    declared: Iterable[Mapping[str, str]],
    name: Callable[[Mapping[str, str]], str],
    owned: Callable[[Mapping[str, str]], bool],
    hotplug: bool,
) -> list[Change]:
    """Numbered entries, matched by what they are (path, target), not by number: a removed one moves no other."""
    have = {key: value for key, value in conf.effective().items() if kind_of(key) == kind}
    slots: dict[str, str] = {}
    found = []
    for key in sorted(have, key=index_of):
        parts = parse_properties(kind, have[key])
        if not owned(parts):
            continue
        if name(parts) in slots:  # the same thing twice
            found.append(Change(key, have[key], None, True))
        slots.setdefault(name(parts), key)
    # a slot whose removal waits for a restart is not free yet
    numbered = [key for key in {*conf.current, *have} if kind_of(key) == kind]
    taken = {index_of(key) for key in numbered}
    wanted_names = {name(parts) for parts in declared}
    found += [Change(key, have[key], None, True) for named, key in slots.items() if named not in wanted_names]
    for parts in declared:
        text = print_properties(kind, parts)
        known = slots.get(name(parts))
        kept = _being_removed(conf, kind, parts)
        if known is None and kept:
            # it is in the running container still: taking the removal back needs no restart
            found.append(Change(kept, None, conf.current[kept], False))
        elif known is None:
            free = next(index for index in range(256) if index not in taken)
            taken.add(free)
            found.append(Change(f"{kind}{free}", None, text, not hotplug))
        elif meaning(kind, parse_properties(kind, have[known])) != meaning(kind, parts):
            found.append(Change(known, have[known], text, True))
    return found


def _being_removed(conf: Conf, kind: str, parts: Mapping[str, str]) -> Optional[str]:
    """The key of the same entry that waits for its removal."""
    for key in sorted(conf.deleted):
        text: str = conf.current.get(key, "")
        if kind_of(key) == kind and meaning(kind, parse_properties(kind, text)) == meaning(kind, parts):
            return str(key)
    return None


def applied(values: Mapping[str, str], todo: Iterable[Change]) -> dict[str, str]:
    """The configuration after these changes."""
    result = dict(values)
    for change in todo:
        if change.after is None:
            result.pop(change.key, None)
        else:
            result[change.key] = change.after
    return result
