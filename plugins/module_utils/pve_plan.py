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
    size_gib,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import problem
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import RawWanted

TAG = "rackwell"
# parts of net0 that are declared; others (hwaddr, firewall, tag, …) are the operator's unless net_options has them
NET_OWNED = ("name", "bridge", "ip", "gw")
# keys whose change a running container takes at once; the rest waits for its next start
HOT = (
    *("onboot", "cores", "tags", "memory", "swap", "hostname"),
    *("description", "startup", "protection", "hookscript", "cpulimit", "cpuunits"),
)
# options of Proxmox VE that have no option of their own here, and may be declared by their name
FURTHER = (
    *("cpulimit", "cpuunits", "startup", "protection", "hookscript", "searchdomain", "timezone", "description"),
    *("console", "tty", "cmode", "debug", "entrypoint", "env"),
)
NET_PARTS = (
    *("name", "firewall", "gw6", "host-managed", "hwaddr", "ip6", "link_down", "mtu", "rate", "tag", "trunks", "type"),
)
DEVICE_PARTS = {"mode": "mode", "uid": "uid", "gid": "gid", "deny_write": "deny-write"}
MOUNT_PARTS = ("acl", "backup", "idmap", "keepattrs", "mountoptions", "quota", "replicate", "shared", "size")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The declared container.

    Attributes:
        simple: key -> text of the options without parts; None: the option must be absent.
        features, net: their parts. devices: parts of each dev entry; mounts: of each mp entry.
        fixed: what can only be chosen at creation: ``unprivileged``, ``ostype``.
        further: options declared by their own name, ``net1`` and the like among them.
        raw: the ``lxc.*`` lines. assumed: what an absent option means to Proxmox VE.
        adopted: it need not have rackwell's tag, and is not given it.
    """

    simple: dict[str, Optional[str]]
    features: dict[str, str]
    net: dict[str, str]
    devices: list[dict[str, str]]
    mounts: list[dict[str, str]]
    fixed: dict[str, str]
    further: dict[str, Optional[str]] = dataclasses.field(default_factory=dict)
    raw: RawWanted = dataclasses.field(default_factory=lambda: RawWanted({}))
    assumed: dict[str, str] = dataclasses.field(default_factory=dict)
    adopted: bool = False


def flag(value: Any) -> str:
    """0 or 1."""
    return "1" if value in (True, 1, "1") else "0"


def _word(value: Any) -> str:
    """A value as Proxmox VE writes it."""
    if isinstance(value, (list, tuple)):
        return ";".join(map(str, value))
    return flag(value) if isinstance(value, bool) else str(value)


def _part(option: str, name: str, value: Any, known: Iterable[str]) -> str:
    """A part of a property string. Raises PveError: one that does not exist, or that would be read as two."""
    text = _word(value)
    if name in known and "," not in text and text.isprintable() and text:
        return text
    raise problem(
        "option-invalid",
        f"'{name}' cannot be declared so",
        f"pve_container_{option}",
        f"found {value!r}" if name in known else f"known here: {', '.join(known)}",
        "values are words, numbers or true and false, without commas and line breaks",
    )


def _device(given: Any, mode: str) -> dict[str, str]:
    """A declared device: its path, or a mapping with what differs."""
    if isinstance(given, str):
        given = {"path": given}
    path = str(given.get("path") or "") if isinstance(given, Mapping) else ""
    if not path.startswith("/dev/"):
        raise problem(
            "option-invalid",
            "a device needs the path of its node",
            "pve_container_devices",
            f"found {given!r}",
            "write /dev/NAME, or a mapping with path, and mode, uid, gid or deny_write",
        )
    parts = {"path": _part("devices", "path", path, ("path",)), "mode": mode}
    for name, value in given.items():
        if name != "path" and value is not None:
            parts[DEVICE_PARTS.get(str(name), str(name))] = _part("devices", str(name), value, DEVICE_PARTS)
    return parts


def _mount(mount: Mapping[str, Any]) -> dict[str, str]:
    parts = {"volume": str(mount["source"]), "mp": str(mount["target"])}
    for name, value in (mount.get("options") or {}).items():
        parts[name] = _part("mounts", name, value, MOUNT_PARTS)
    if mount.get("read_only", True):
        parts["ro"] = "1"
    return parts


def _further(given: Mapping[str, Any]) -> dict[str, Optional[str]]:
    """Options declared by their own name. Raises PveError for those that are declared otherwise, or not at all."""
    found: dict[str, Optional[str]] = {}
    for key, value in given.items():
        if key not in FURTHER and not (kind_of(key) == "net" and key != "net0"):
            raise problem(
                "option-invalid",
                f"'{key}' cannot be declared so",
                "pve_container_options",
                f"known here: {', '.join(FURTHER)}, net1, net2, …",
                "others have a variable of their own, see the role's README; volumes and locks are never declared",
            )
        found[key] = None if value is None else _word(value)
    return found


def wanted(args: Mapping[str, Any], gpu_nodes: Sequence[str], raw: Optional[RawWanted] = None) -> Wanted:
    """The declaration in the module's options. Devices come first, then the GPUs' nodes in the order given.

    Raises:
        PveError: a value that cannot be one.
    """
    features = {}
    for name, value in (args["features"] or {}).items():
        features[name] = flag(value) if isinstance(value, (bool, int)) else _word(value)
    net = {"name": "eth0", "bridge": args["bridge"], "ip": args["ip"]}
    if args.get("gateway"):
        net["gw"] = args["gateway"]
    for name, value in (args.get("net_options") or {}).items():
        net[name] = _part("net_options", name, value, NET_PARTS)
    devices = {parts["path"]: parts for parts in (_device(given, args["device_mode"]) for given in args["devices"])}
    for node in gpu_nodes:
        devices.setdefault(node, {"path": node, "mode": args["device_mode"]})
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
        devices=list(devices.values()),
        mounts=[_mount(mount) for mount in args["mounts"]],
        fixed={"unprivileged": flag(args["unprivileged"]), "ostype": args["ostype"]},
        further=_further(args.get("options") or {}),
        raw=raw or RawWanted({}),
        assumed={"onboot": "0", "swap": "0", "memory": "512", "hostname": default_hostname(args.get("vmid"))},
        adopted=bool(args.get("adopted")),
    )


def default_hostname(vmid: Any) -> str:
    """What a container is called that was given no name."""
    return f"CT{vmid}"


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
    options.update({key: value for key, value in want.further.items() if value is not None})
    return options


def foreign(conf: Conf, hostname: str, vmid: Any = None, adopted: bool = False) -> Optional[str]:
    """Why an existing container is not rackwell's; None when it is.

    Args:
        adopted: the declaration takes it over, made by whomever: its hostname is enough.
    """
    found = conf.effective().get("hostname") or (default_hostname(vmid) if vmid else "")
    if TAG not in conf.tags() and not adopted:
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
    # a root that is a directory or a device of the host lies on no storage
    if place and not place.startswith("/") and place != storage:
        found.append(("storage", place, storage))
    # one of no whole GiB, made by somebody else, cannot be declared, and differs from nothing
    size = size_gib(root.get("size", ""))
    if size is not None and size == int(size) and int(size) != disk_size:
        found.append(("disk_size", str(int(size)), str(disk_size)))
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
        if have.get(key, want.assumed.get(key)) != value and not (
            key in ("onboot", "swap") and value == "0" and key not in have
        ):
            add(key, value, key not in HOT)
    for key, value in want.further.items():
        if not _same_option(key, have.get(key), value):
            add(key, _with_address(key, have.get(key), value), key not in HOT and kind_of(key) != "net")
    if TAG not in conf.tags() and not want.adopted:
        add("tags", ";".join(sorted({*conf.tags(), TAG})), False)
    features = meaning("features", want.features)
    if meaning("features", parse_properties("features", have.get("features", ""))) != features:
        add("features", print_properties("features", features) if features else None, True)
    net = parse_properties("net", have.get("net0", ""))
    owned = {*NET_OWNED, *want.net}
    # a part that was declared and says what is assumed anyway may be absent
    if _net_meaning({name: net[name] for name in owned if name in net}) != _net_meaning(want.net):
        kept = {name: value for name, value in net.items() if name not in owned}
        add("net0", print_properties("net", {**kept, **want.net}), False)
    found += _entries(conf, "dev", want.devices, lambda parts: parts.get("path", ""), _always, hotplug_devices)
    found += _entries(conf, "mp", want.mounts, lambda parts: parts.get("mp", ""), _is_bind, True)
    return sorted((_taken_back(conf, change) for change in found), key=lambda change: order(change.key))


def _taken_back(conf: Conf, change: Change) -> Change:
    """A change that takes back what waits for the next start: the running container has it so, and needs no restart."""
    kind = kind_of(change.key)
    now = conf.current.get(change.key)
    if change.key not in conf.waiting() or now is None or change.after is None:
        return change
    same = meaning(kind, parse_properties(kind, now)) == meaning(kind, parse_properties(kind, change.after))
    # in the very words, by which Proxmox VE knows that nothing waits any more
    return dataclasses.replace(change, after=now, restart=False) if same else change


def _net_meaning(parts: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = meaning("net", parts)
    if "hwaddr" in found:
        found["hwaddr"] = found["hwaddr"].upper()
    return found


def _same_option(key: str, have: Optional[str], want: Optional[str]) -> bool:
    """Whether an option means what is declared."""
    if have is None or want is None:
        return have == want or ((have or want) in ("", "0") and key in ("protection", "debug"))
    if kind_of(key) == "net":
        declared, found = parse_properties("net", want), parse_properties("net", have)
        # Proxmox VE makes an address where none is given, and writes it back
        if "hwaddr" not in declared:
            found.pop("hwaddr", None)
        return bool(_net_meaning(found) == _net_meaning(declared))
    if key == "startup":
        return bool(parse_properties(key, have) == parse_properties(key, want))
    if key in ("cpulimit", "cpuunits"):
        return bool(_number(have) == _number(want))
    return bool(have.rstrip("\n") == want.rstrip("\n"))


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _with_address(key: str, have: Optional[str], want: Optional[str]) -> Optional[str]:
    """The declared text; a network card keeps the address that it has."""
    if kind_of(key) != "net" or want is None:
        return want
    kept = parse_properties("net", have or "").get("hwaddr")
    declared = parse_properties("net", want)
    if kept:
        declared.setdefault("hwaddr", kept)
    return str(print_properties("net", declared))


def _always(_parts: Mapping[str, str]) -> bool:
    """Every dev entry belongs to the declaration."""
    return True


def _is_bind(parts: Mapping[str, str]) -> bool:
    """A directory of the host; other mount points are volumes or disks with data, which are never touched."""
    volume = parts.get("volume", "")
    return volume.startswith("/") and not volume.startswith("/dev/")


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
