# SPDX-License-Identifier: Apache-2.0
"""What exists as a declaration: a run of what was written for a container changes nothing on it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_plan
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Conf
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_declare import Declared, declare
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_drift import Looked, drift
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_file import ConfFile
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import Gpu, choose
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import (
    Wanted,
    changes,
    foreign,
    refused,
    wanted,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import raw_changes, settled, shm_line, wanted_raw
from ansible_collections.rackwell.gpu.plugins.modules import pve_container
from hypothesis import given
from hypothesis import strategies as st
from labpve import config
from pvestandin import MINORS, uuid
from test_pve_file import NASTY

from rackwell.site import variables
from rackwell.site.variables import PveContainer

GPUS = [Gpu(bus_id, uuid(bus_id), minor, "RTX PRO 6000 Blackwell") for bus_id, minor in sorted(MINORS.items())]
NODES = {0: "0-31,64-95", 1: "32-63,96-127"}
DEFAULTS = {name: spec.get("default") for name, spec in pve_container.SPEC.items()}


def conf_of(text: str) -> tuple[Conf, ConfFile]:
    """What PVE's API makes of a file."""
    parsed = config.parse(text)
    conf = Conf(
        dict(parsed.main.keys), dict(parsed.pending), frozenset(parsed.deleted), tuple(parsed.main.lxc), "digest"
    )
    return conf, ConfFile(text)


def declared(text: str) -> tuple[Declared, Conf, ConfFile]:
    conf, file = conf_of(text)
    return declare(conf, file, GPUS, 201, NODES), conf, file


def want_of(found: dict[str, Any]) -> Wanted:
    """The declaration as the module reads it."""
    args = {**DEFAULTS, "bridge": "vmbr0", "ip": "10.0.0.5/24", **found}
    nodes = [gpu.node for gpu in choose(args["gpus"], GPUS)] if args["gpus"] else []
    return wanted(args, nodes, wanted_raw(args, NODES))


def todo(found: dict[str, Any], conf: Conf) -> list[Any]:
    want = want_of(found)
    hostname = found["hostname"]
    args = {**DEFAULTS, **found}
    assert foreign(conf, hostname, 201, args["adopted"]) is None
    return [
        *changes(conf, want),
        *raw_changes(conf.raw, settled(conf.raw, want.raw)),
        *refused(conf, want, args["storage"], args["disk_size"]),
    ]


PLAIN = """\
arch: amd64
cores: 64
cpulimit: 48
dev0: /dev/nvidiactl,mode=0666
dev1: /dev/nvidia-uvm,mode=0666
dev2: /dev/nvidia3,mode=0666
dev3: /dev/nvidia2,mode=0666
features: keyctl=1,mount=nfs;cifs,nesting=1
hostname: glm5-01
memory: 65536
mp0: /srv/models,mp=/srv/models,ro=1
mp1: /srv/scratch,mp=/scratch,backup=0,mountoptions=noatime;discard
nameserver: 10.0.0.1 10.0.0.2
net0: name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,hwaddr=BC:24:11:00:00:01,ip=10.0.0.5/24,mtu=9000,type=veth
net1: name=eth1,bridge=vmbr1,hwaddr=BC:24:11:00:00:02,ip=dhcp,tag=7,type=veth
onboot: 1
ostype: debian
rootfs: local-zfs:subvol-201-disk-0,size=96G
startup: order=3,up=30
swap: 0
tags: gpu
timezone: host
unprivileged: 1
lxc.cgroup2.cpuset.cpus: 0-31,64-95
lxc.cgroup2.cpuset.mems: 0
lxc.prlimit.memlock: unlimited
lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,mode=1777,size=64G 0 0
lxc.cap.drop: sys_time
"""


def test_a_container_that_others_made_is_declared_by_its_options() -> None:
    found, conf, _ = declared(PLAIN)
    assert found.untold == []
    assert found.variables == {
        "vmid": 201,
        "hostname": "glm5-01",
        "adopted": True,
        "ostype": "debian",
        "storage": "local-zfs",
        "disk_size": 96,
        "unprivileged": True,
        "cores": 64,
        "memory": 65536,
        "swap": 0,
        "onboot": True,
        "features": {"keyctl": True, "mount": "cifs;nfs", "nesting": True},
        "gpus": ["0000:06:00.0", "0000:07:00.0"],
        "devices": ["/dev/nvidiactl", "/dev/nvidia-uvm"],
        "device_mode": "0666",
        "mounts": [
            {"source": "/srv/models", "target": "/srv/models", "read_only": True},
            {
                "source": "/srv/scratch",
                "target": "/scratch",
                "read_only": False,
                "options": {"mountoptions": "discard;noatime"},
            },
        ],
        "bridge": "vmbr0",
        "gateway": "10.0.0.1",
        "ip": "10.0.0.5/24",
        "net_options": {"firewall": True, "mtu": "9000"},
        "nameserver": "10.0.0.1 10.0.0.2",
        "numa_nodes": [0],
        "memlock": "unlimited",
        "shm_size": "64G",
        "raw": ["lxc.cap.drop: sys_time"],
        "options": {
            "cpulimit": "48",
            "net1": "name=eth1,bridge=vmbr1,ip=dhcp,tag=7",
            "startup": "order=3,up=30",
            "timezone": "host",
        },
    }
    assert todo(found.variables, conf) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dev0: /dev/nvidiactl,mode=0666", "dev0: path=/dev/nvidiactl,gid=44,mode=0640,uid=3,deny-write=1"),
        ("dev2: /dev/nvidia3,mode=0666", "dev2: /dev/nvidia3"),
        ("dev2: /dev/nvidia3,mode=0666", "dev200: /dev/nvidia3,gid=7,mode=0666"),
        ("dev2: /dev/nvidia3,mode=0666", "dev2: /dev/nvidia77,mode=0666"),
        ("hostname: glm5-01\n", ""),
        ("memory: 65536\n", ""),
        ("onboot: 1\n", ""),
        ("swap: 0\n", ""),
        ("unprivileged: 1\n", ""),
        ("features: keyctl=1,mount=nfs;cifs,nesting=1\n", ""),
        ("tags: gpu", "tags: gpu;rackwell"),
        ("size=96G", "size=1T"),
        ("size=96G", "size=500M"),
        ("rootfs: local-zfs:subvol-201-disk-0,size=96G", "rootfs: /srv/roots/201"),
        ("mp0: /srv/models,mp=/srv/models,ro=1", "mp0: local-zfs:subvol-201-disk-1,mp=/data,quota=1,size=8G"),
        ("mp0: /srv/models,mp=/srv/models,ro=1", "mp0: /dev/sdb1,mp=/data"),
        ("mp0: /srv/models,mp=/srv/models,ro=1", "mp0: /srv/models,mp=/srv/models,acl=1,backup=1,quota=1,shared=1"),
        ("lxc.cgroup2.cpuset.cpus: 0-31,64-95", "lxc.cgroup2.cpuset.cpus: 0-7, 64"),
        ("lxc.cgroup2.cpuset.cpus: 0-31,64-95\n", ""),
        ("lxc.cgroup2.cpuset.mems: 0", "lxc.cgroup2.cpuset.mems: 0-1"),
        ("lxc.cgroup2.cpuset.mems: 0", "lxc.cgroup2.cpuset.mems: 9"),
        ("lxc.prlimit.memlock: unlimited", "lxc.limit.memlock = 1024:2048"),
        ("lxc.prlimit.memlock: unlimited", "lxc.prlimit.memlock: 1\nlxc.prlimit.memlock: 2"),
        ("mode=1777,size=64G", "size=64G"),
        ("mode=1777,size=64G", "mode=1777,size=half"),
        ("lxc.cap.drop: sys_time", "lxc.idmap: u 0 100000 65536\nlxc.idmap: g 0 100000 65536\nlxc.cap.drop ="),
        ("lxc.cap.drop: sys_time", "lxc.mount.entry: /srv/a\tb none\tbind,create=dir 0 0"),
        ("startup: order=3,up=30", "startup: 3\nhookscript: local:snippets/gpu.sh\nprotection: 1"),
        ("arch: amd64", "#Gro%C3%9Fer%0A Beh%C3%A4lter\narch: amd64\nunused0: local-zfs:subvol-201-disk-9"),
        ("ip=10.0.0.5/24", "ip=10.0.0.5/24,ip6=auto,link_down=1,rate=12.5,trunks=1;2"),
        ("name=eth0", "name=lan0"),
    ],
)
def test_a_run_of_what_was_declared_changes_nothing(old: str, new: str) -> None:
    assert old in PLAIN
    text = PLAIN.replace(old, new)
    for written in (text, text.replace("\n", "\r\n"), config.parse(text).write()):
        found, conf, _ = declared(written)
        assert not [one for one in found.untold if one.blocks]
        assert todo(found.variables, conf) == []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("ip=10.0.0.5/24", "ip=dhcp", "net0"),
        ("bridge=vmbr0,", "", "net0"),
        ("dev1: /dev/nvidia-uvm,mode=0666", "dev1: /dev/nvidiactl,mode=0666", "dev1"),
        ("mp1: /srv/scratch,mp=/scratch", "mp1: /srv/scratch,mp=/srv/models", "mp1"),
        ("arch: amd64", "arch: amd64\ntemplate: 1", "template"),
        ("arch: amd64", "arch: amd64\nlock: backup", "lock"),
        ("drop: sys_time\n", "drop: sys_time\n\n[pve:pending]\nmemory: 1024\n", "memory"),
    ],
)
def test_what_no_declaration_can_say_is_told_with_its_line(old: str, new: str, key: str) -> None:
    text = PLAIN.replace(old, new)
    found, _, file = declared(text)
    (told,) = [one for one in found.untold if one.blocks]
    assert told.key == key
    assert told.fix
    assert file.entries[told.number - 1].text == told.line
    assert told.line.startswith(key)


def test_the_nastiest_file_is_declared_and_told() -> None:
    found, conf, file = declared(NASTY)
    assert {one.key for one in found.untold if one.blocks} == {"lock", "memory", "dev2"}
    assert {one.key for one in found.untold if not one.blocks} == {"mp1", "unused0"}
    assert found.variables["memory"] == 262144
    assert found.variables["devices"] == ["/dev/nvidiactl", {"path": "/dev/nvidia0", "mode": "0660", "gid": 44}]
    assert todo(found.variables, conf) == []
    want = want_of(found.variables)
    told = drift(Looked(conf, file, want, [], [], conf.waiting(), running=True))
    assert not [one for one in told if one.severity == "error"]
    assert {one.code for one in told if one.severity == "warning"} == {
        "locked",
        "pending",
        "conf-duplicate-key",
        "conf-unread-line",
        "conf-marker-line",
        "conf-raw-device",
        "conf-misplaced-line",
    }
    assert {one.key for one in told if one.severity == "note"} == {"mp1", "unused0"}
    for one in told:
        assert one.fix
        assert one.number == 0 or file.entries[one.number - 1].text.strip() == one.line


def test_every_declaration_holds_for_the_command_line() -> None:
    found, _, _ = declared(PLAIN)
    written = {f"pve_container_{name}": value for name, value in found.variables.items()}
    rest = {"host": "pve1", "template": "local:vztmpl/debian-12.tar.zst", "ssh_public_key_file": "/k.pub"}
    PveContainer.model_validate({**written, **{f"pve_container_{name}": value for name, value in rest.items()}})


def test_the_command_line_and_the_module_know_the_same_parts() -> None:
    assert variables.CONTAINER_OPTIONS == pve_plan.FURTHER
    assert variables.NET_OPTIONS == pve_plan.NET_PARTS
    assert variables.MOUNT_OPTIONS == pve_plan.MOUNT_PARTS


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": {"memory": 5}},
        {"options": {"net0": "name=eth0"}},
        {"options": {"net32": "name=eth0"}},
        {"net_options": {"bridge": "vmbr1"}},
        {"net_options": {"mtu": "9000,ip=1.2.3.4/8"}},
        {"mounts": [{"source": "/a", "target": "/a", "options": {"ro": True}}]},
        {"devices": [{"path": "/etc/passwd"}]},
        {"devices": [{"path": "/dev/null", "mode": "666"}]},
        {"cpuset": "a"},
        {"memlock": "lots"},
        {"shm_size": "1G,exec"},
        {"raw": ["rootfs: /"]},
        {"raw": "all"},
        {"numa_nodes": [-1]},
    ],
)
def test_what_the_module_refuses_does_not_hold(wrong: dict[str, Any]) -> None:
    good = {**declared(PLAIN)[0].variables, "host": "pve1"}
    good |= {"template": "local:vztmpl/d.tar.zst", "ssh_public_key_file": "/k.pub"}
    PveContainer.model_validate({f"pve_container_{name}": value for name, value in good.items()})
    with pytest.raises(ValueError, match=f"pve_container_{next(iter(wrong))}"):
        PveContainer.model_validate({f"pve_container_{name}": value for name, value in {**good, **wrong}.items()})


PATHS = st.sampled_from(["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia9", "/dev/nvidiactl", "/dev/fuse", "/dev/kvm"])
DEVICES = st.dictionaries(
    PATHS,
    st.fixed_dictionaries(
        {},
        optional={
            "mode": st.sampled_from(["0660", "0666", "0400"]),
            "gid": st.sampled_from(["0", "44", "1000"]),
            "uid": st.sampled_from(["0", "33"]),
            "deny-write": st.sampled_from(["0", "1"]),
        },
    ),
)
MOUNTS = st.dictionaries(
    st.sampled_from(["/a", "/b", "/srv/m ö", "/c"]),
    st.tuples(
        st.sampled_from(["/srv/x", "/dev/sdb1", "local:201/vm-201-disk-1.raw"]),
        st.fixed_dictionaries(
            {},
            optional={
                name: st.sampled_from(["0", "1"]) for name in ("ro", "acl", "backup", "quota", "replicate", "shared")
            }
            | {"mountoptions": st.sampled_from(["noatime", "nosuid;nodev", "nodev;nosuid"])},
        ),
    ),
)
NETS = st.fixed_dictionaries(
    {"bridge": st.just("vmbr0"), "ip": st.just("10.0.0.5/24"), "name": st.sampled_from(["eth0", "lan"])},
    optional={
        "hwaddr": st.sampled_from(["BC:24:11:00:00:01", "bc:24:11:00:00:01"]),
        "firewall": st.sampled_from(["0", "1"]),
        "gw": st.just("10.0.0.1"),
        "mtu": st.just("9000"),
        "tag": st.just("5"),
        "type": st.just("veth"),
        "link_down": st.sampled_from(["0", "1"]),
    },
)
FEATURES = st.dictionaries(st.sampled_from(["nesting", "keyctl", "fuse", "mknod"]), st.sampled_from(["0", "1"]))
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "cores": st.sampled_from(["1", "64"]),
        "swap": st.sampled_from(["0", "512"]),
        "onboot": st.sampled_from(["0", "1"]),
        "nameserver": st.just("10.0.0.1"),
        "hostname": st.just("glm5-01"),
        "memory": st.sampled_from(["16", "65536"]),
        "unprivileged": st.sampled_from(["0", "1"]),
        "protection": st.sampled_from(["0", "1"]),
        "cpuunits": st.sampled_from(["100", "50"]),
        "cpulimit": st.sampled_from(["0", "1.5"]),
        "startup": st.sampled_from(["order=1", "up=2", "order=1,down=3"]),
        "rootfs": st.sampled_from(["local:201/x.raw,size=4G", "tank:x,size=2T", "/srv/r", "local:x,size=1500M"]),
        "tags": st.sampled_from(["a;b", "rackwell", "a,rackwell"]),
    },
)
RAW = st.lists(
    st.sampled_from(
        [
            "lxc.cap.drop: sys_time",
            "lxc.cap.drop =",
            "lxc.cgroup2.cpuset.cpus: 0-31,64-95",
            "lxc.cgroup2.cpuset.cpus = 1,2,3",
            "lxc.cgroup2.cpuset.cpus: nonsense",
            "lxc.cgroup2.cpuset.mems: 0",
            "lxc.cgroup2.cpuset.mems: 0,1",
            "lxc.prlimit.memlock: unlimited",
            "lxc.prlimit.memlock: 7 8",
            f"lxc.mount.entry: {shm_line('4G')[1]}",
            "lxc.mount.entry: tmpfs /dev/shm tmpfs rw 0 0",
            "lxc.mount.entry: /dev/nvidia5 dev/nvidia5 none bind,optional,create=file",
            "lxc.idmap: u 0 100000 65536",
        ]
    ),
    max_size=7,
)


def joined(default: str, parts: dict[str, str]) -> str:
    return ",".join([*filter(None, [default]), *(f"{name}={value}" for name, value in parts.items())])


@given(DEVICES, MOUNTS, NETS, FEATURES, OTHERS, RAW)
def test_any_container_is_declared_without_a_change(
    devices: dict[str, dict[str, str]],
    mounts: dict[str, tuple[str, dict[str, str]]],
    net: dict[str, str],
    features: dict[str, str],
    others: dict[str, str],
    raw: list[str],
) -> None:
    keys = {f"dev{number}": joined(path, parts) for number, (path, parts) in enumerate(devices.items())}
    keys |= {
        f"mp{number}": joined(volume, {"mp": target, **parts})
        for number, (target, (volume, parts)) in enumerate(mounts.items())
    }
    keys |= {"net0": joined("", net), "ostype": "debian", "arch": "amd64", **others}
    if features:
        keys["features"] = joined("", features)
    text = "".join(f"{key}: {value}\n" for key, value in keys.items()) + "".join(line + "\n" for line in raw)
    found, conf, _ = declared(text)
    assert not [one for one in found.untold if one.blocks]
    assert todo(found.variables, conf) == []
    again, _, _ = declared(config.parse(text).write())
    assert again.variables == found.variables
    written = {f"pve_container_{name}": value for name, value in found.variables.items()}
    rest = {"host": "pve1", "template": "local:vztmpl/d.tar.zst", "ssh_public_key_file": "/k.pub"}
    PveContainer.model_validate({**written, **{f"pve_container_{name}": value for name, value in rest.items()}})
