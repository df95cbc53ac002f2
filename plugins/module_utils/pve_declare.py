# SPDX-License-Identifier: Apache-2.0
"""An existing container as a declaration: the inverse of pve_plan, and a list of what no declaration can say."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import (
    Conf,
    kind_of,
    meaning,
    order,
    parse_properties,
    size_gib,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_file import ConfFile
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import Gpu
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import (
    DEVICE_PARTS,
    FURTHER,
    MOUNT_PARTS,
    NET_PARTS,
    TAG,
    default_hostname,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import (
    CPUS,
    MEMLOCK,
    MEMLOCK_VALUE,
    MEMS,
    SHM,
    SIZE_VALUE,
    Line,
    cpu_set,
    name_of,
    same,
    shm_line,
    text_of,
)

_DEVICE_NAMES = {part: name for name, part in DEVICE_PARTS.items()}
_FLAGS = ("acl", "backup", "keepattrs", "quota", "replicate", "shared")


@dataclasses.dataclass(frozen=True)
class Untold:
    """Something that the declaration cannot say.

    Attributes:
        blocks: a run would change it, or refuse to run; else it is only left as it is.
        line, number: of the container's file.
    """

    key: str
    what: str
    fix: str
    blocks: bool
    line: str = ""
    number: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The parts by name."""
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Declared:
    """Variables of role pve_container without their prefix, and what they cannot say."""

    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    untold: list[Untold] = dataclasses.field(default_factory=list)


def declare(conf: Conf, file: Optional[ConfFile], gpus: Sequence[Gpu], vmid: int, nodes: Mapping[int, str]) -> Declared:
    """The declaration of a container, such that a run of the role on it changes nothing.

    Args:
        nodes: NUMA node of the host -> its processors.
    """
    return _Inverse(conf, file, gpus, vmid, nodes).run()


class _Inverse:
    def __init__(
        self, conf: Conf, file: Optional[ConfFile], gpus: Sequence[Gpu], vmid: int, nodes: Mapping[int, str]
    ) -> None:
        self.have = conf.effective()
        self.conf, self.file, self.gpus, self.vmid, self.nodes = conf, file, gpus, vmid, nodes
        self.out = Declared()

    def untold(self, key: str, what: str, fix: str, blocks: bool = True, value: Optional[str] = None) -> None:
        entry = self.file.find(key, value) if self.file else None
        line, number = (entry.text.strip(), entry.number) if entry else (f"{key}: {value or self.have.get(key, '')}", 0)
        self.out.untold.append(Untold(key, what, fix, blocks, line, number))

    def run(self) -> Declared:
        have, found = self.have, self.out.variables
        found["vmid"] = self.vmid
        found["hostname"] = have.get("hostname") or default_hostname(self.vmid)
        if TAG not in self.conf.tags():
            found["adopted"] = True
        found["ostype"] = have.get("ostype", "unmanaged")
        self._root()
        found["unprivileged"] = have.get("unprivileged", "0") == "1"
        if have.get("cores"):
            found["cores"] = int(have["cores"])
        found["memory"] = int(have.get("memory", "512"))
        found["swap"] = int(have.get("swap", "0"))
        found["onboot"] = have.get("onboot", "0") == "1"
        found["features"] = {
            name: True if value == "1" else value
            for name, value in meaning("features", parse_properties("features", have.get("features", ""))).items()
        }
        self._devices()
        self._mounts()
        self._net()
        if have.get("nameserver"):
            found["nameserver"] = have["nameserver"]
        self._raw()
        self._further()
        self._state()
        return self.out

    def _root(self) -> None:
        root = parse_properties("rootfs", self.have.get("rootfs", ""))
        volume = root.get("volume", "")
        if volume.startswith("/"):
            self.untold(
                "rootfs",
                "its root is a directory or a device of the host, on no storage",
                "nothing need be done: it is left as it is; a new container would lie on pve_container_storage",
                blocks=False,
            )
        elif volume:
            self.out.variables["storage"] = volume.partition(":")[0]
        size = size_gib(root.get("size", ""))
        if size is not None and size >= 1:
            self.out.variables["disk_size"] = int(-(-size // 1))
        if size is not None and size != int(size):
            self.untold(
                "rootfs",
                f"its size of {size:g} GiB is no whole number of GiB",
                "nothing need be done: it is left as it is; pct resize brings it to a whole number",
                blocks=False,
            )

    def _devices(self) -> None:
        entries: dict[str, dict[str, str]] = {}
        for key in sorted((key for key in self.have if kind_of(key) == "dev"), key=order):
            parts = parse_properties("dev", self.have[key])
            path = parts.pop("path", "")
            if path in entries:
                self.untold(
                    key, f"{path} is passed twice: a run would remove this entry", f"pct set {self.vmid} --delete {key}"
                )
                continue
            entries[path] = meaning("dev", parts)
        known = {gpu.node: gpu for gpu in self.gpus}
        mine = [known[path] for path in entries if path in known]
        modes = [parts.get("mode", "0660") for parts in entries.values()]
        # the widest of those that are as frequent
        common = max(sorted(set(modes), reverse=True), key=modes.count) if modes else "0666"
        found = self.out.variables
        found["gpus"] = [gpu.bus_id for gpu in sorted(mine, key=lambda gpu: gpu.bus_id)]
        found["devices"] = []
        for path, parts in entries.items():
            plain = {**parts, "mode": parts.get("mode", "0660")} == {"mode": common}
            if plain and path in known:
                continue
            if plain:
                found["devices"].append(path)
                continue
            shown: dict[str, Any] = {"path": path, "mode": parts.get("mode", "0660")}
            for part in ("uid", "gid"):
                if part in parts:
                    shown[part] = int(parts[part])
            if parts.get("deny-write") == "1":
                shown["deny_write"] = True
            found["devices"].append(shown)
        found["device_mode"] = common

    def _mounts(self) -> None:
        found: list[dict[str, Any]] = []
        seen: set[str] = set()
        for key in sorted((key for key in self.have if kind_of(key) == "mp"), key=order):
            parts = meaning("mp", parse_properties("mp", self.have[key]))
            source, target = parts.pop("volume", ""), parts.pop("mp", "")
            if not source.startswith("/") or source.startswith("/dev/"):
                self.untold(
                    key,
                    f"a volume or a disk at {target}: a declaration has directories of the host only",
                    "nothing need be done: no run touches it",
                    blocks=False,
                )
                continue
            if target in seen:
                self.untold(
                    key,
                    f"{target} is mounted twice: a run would remove this entry",
                    f"pct set {self.vmid} --delete {key}",
                )
                continue
            seen.add(target)
            mount: dict[str, Any] = {"source": source, "target": target, "read_only": parts.pop("ro", "0") == "1"}
            options = {
                name: (value == "1") if name in _FLAGS else value
                for name, value in parts.items()
                if name in MOUNT_PARTS
            }
            if options:
                mount["options"] = options
            unknown = sorted(set(parts) - set(MOUNT_PARTS))
            if unknown:
                self.untold(
                    key, f"{', '.join(unknown)} of this mount cannot be declared", "a run would take it away: see to it"
                )
            found.append(mount)
        self.out.variables["mounts"] = found

    def _net(self) -> None:
        text = self.have.get("net0")
        if text is None:
            self.untold("net0", "it has no net0: a run would add one", "give it one: pct set --net0 …")
            return
        parts = parse_properties("net", text)
        found = self.out.variables
        for part, name in (("bridge", "bridge"), ("gw", "gateway")):
            if part in parts:
                found[name] = parts.pop(part)
        ip = parts.pop("ip", "")
        try:
            if "/" not in ip:
                raise ValueError(ip)
            ipaddress.ip_interface(ip)
            found["ip"] = ip
        except ValueError:
            self.untold(
                "net0",
                f"its address is {ip or 'not set'}: a declaration needs a fixed one with the length of its network",
                "give it the address that it has now as a fixed one, in pve_container_ip and in net0",
            )
        if "bridge" not in found:
            self.untold("net0", "its first network card is on no bridge", "put it on one")
        more = meaning("net", parts, ("hwaddr",))
        if more.get("name") == "eth0":
            del more["name"]
        flags = ("firewall", "link_down", "host-managed")
        options = {k: (v == "1") if k in flags else v for k, v in more.items() if k in NET_PARTS}
        if options:
            found["net_options"] = options

    def _raw(self) -> None:
        found = self.out.variables
        lines = [(key, " ".join(value.split())) for key, value in self.conf.raw]
        names = [name_of(line) for line in lines]
        rest: list[Line] = []
        for line, name in zip(lines, names):
            option = self._option(line, name, lines) if name and names.count(name) == 1 else {}
            found.update(option)
            if not option:
                rest.append(line)
        if "numa_nodes" in found and "cpuset" in found:
            every = ",".join(self.nodes[node] for node in found["numa_nodes"])
            if cpu_set(every) == cpu_set(found["cpuset"]):
                del found["cpuset"]
        found["raw"] = []
        for line in rest:
            if text_of(line).isprintable():
                found["raw"].append(text_of(line).rstrip())
            else:
                self.untold(line[0], "this line holds a control character", "remove it from the file")

    def _option(self, line: Line, name: str, lines: Sequence[Line]) -> dict[str, Any]:
        """The line as an option of its own; empty when none says exactly that."""
        if name == CPUS and cpu_set(line[1]):
            return {"cpuset": line[1].replace(" ", "")}
        if name == MEMS:
            nodes = self._numa(lines)
            return {"numa_nodes": nodes} if nodes else {}
        if name == MEMLOCK and MEMLOCK_VALUE.fullmatch(line[1]):
            return {"memlock": line[1]}
        if name == SHM:
            size = self._shm_size(line)
            return {"shm_size": size} if SIZE_VALUE.fullmatch(size) else {}
        return {}

    def _numa(self, lines: Iterable[Line]) -> Optional[list[int]]:
        """The nodes of a cpuset.mems line, when an option can say them: then there is a line of processors as well."""
        given = {line[0]: line[1] for line in lines}
        if [line[0] for line in lines].count(CPUS) != 1:
            return None
        nodes = cpu_set(given.get(MEMS, ""))
        if not nodes or not cpu_set(given[CPUS]) or not all(node in self.nodes for node in nodes):
            return None
        return sorted(nodes)

    def _shm_size(self, line: Line) -> str:
        """The size of a /dev/shm line that is the one rackwell writes; empty for another."""
        options = line[1].split()[3].split(",") if len(line[1].split()) > 3 else []
        size = next((option[5:] for option in options if option.startswith("size=")), "")
        return size if size and same(line, shm_line(size)) else ""

    def _further(self) -> None:
        options = {}
        for key in sorted(self.have, key=order):
            value = self.have[key]
            if key == "description":
                continue
            if key in FURTHER or (kind_of(key) == "net" and key != "net0"):
                if kind_of(key) == "net":
                    parts = meaning("net", parse_properties("net", value), ("hwaddr",))
                    value = ",".join([*(f"{k}={parts[k]}" for k in sorted(parts, key=lambda k: (k != "name", k)))])
                if not value.isprintable():
                    self.untold(key, "its value holds control characters", "nothing need be done", blocks=False)
                    continue
                options[key] = value
            elif key.startswith("unused"):
                self.untold(key, "a volume that no mount uses", "nothing need be done: no run touches it", blocks=False)
        if options:
            self.out.variables["options"] = options

    def _state(self) -> None:
        if self.have.get("template") == "1":
            self.untold("template", "it is a template: it can never be started", "clone it, and adopt the clone")
        if "lock" in self.conf.current:
            self.untold(
                "lock", "it is locked: another task of Proxmox VE works on it", "wait for the task, or pct unlock", True
            )
        for key in self.conf.waiting():
            self.untold(
                key,
                "a change of this key waits for the next start; the declaration has what holds then",
                f"pct reboot {self.vmid} applies it; pct set {self.vmid} --revert {key} takes it back",
            )
