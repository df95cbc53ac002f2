# SPDX-License-Identifier: Apache-2.0
"""A container's file as hands and Proxmox VE leave it: what is read of it, what is told, and an edit of raw lines."""

from __future__ import annotations

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Conf
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_file import ConfFile
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import (
    RawWanted,
    parse_line,
    raw_changes,
    settled,
    shm_line,
)
from hypothesis import given
from hypothesis import strategies as st
from labpve import config

# written by PVE, then edited by hands in every wrong way
NASTY = """\
#Gro%C3%9Fer Container f%C3%BCr GLM-5
#zweite Zeile 50%25
arch: amd64
dev0: /dev/nvidiactl,mode=0666
dev1: /dev/nvidia0,gid=44,mode=0660
dev2: /dev/fuse,deny-write=1
features: keyctl=1,nesting=1
hookscript: local:snippets/gpu.sh
hostname: glm5-01
lock: backup
memory: 65536
memory: 131072
mp0: /srv/models,mp=/srv/models,backup=0,ro=1
mp1: local:201/vm-201-disk-1.raw,mp=/data,quota=1,size=8G
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=10.0.0.5/24,type=veth
net1: name=eth1,bridge=vmbr1,hwaddr=BC:24:11:00:00:02,ip=dhcp,tag=7,type=veth
ostype: debian
rootfs: local:201/vm-201-disk-0.raw,size=32G
tags: gpu;rackwell
unprivileged: 1
unused0: local:201/vm-201-disk-2.raw
lxc.idmap: u 0 100000 65536
lxc.idmap: g 0 100000 65536
 swap: 4096
# BEGIN ANSIBLE MANAGED BLOCK
lxc.prlimit.memlock = unlimited
# END ANSIBLE MANAGED BLOCK
lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind,optional,create=file

[pve:pending]
delete: dev2
memory: 262144
lxc.cap.drop: sys_time

[before-upgrade]
arch: amd64
hostname: glm5-01
memory: 65536
snaptime: 1760000000

[vzdump]
arch: amd64
hostname: glm5-01
snaptime: 1760000001

dev7: /dev/nvidia7,mode=0666
lxc.cgroup2.cpuset.cpus: 0-31
"""


def odd(text: str) -> list[tuple[str, int]]:
    return [(one.code, one.entry.number) for one in ConfFile(text).oddities()]


def test_every_section_is_read_for_itself() -> None:
    file = ConfFile(NASTY)
    assert file.sections() == ["pve:pending", "before-upgrade", "vzdump"]
    assert file.values()["memory"] == "131072"
    assert "swap" not in file.values()
    assert file.values("pve:pending") == {"delete": "dev2", "memory": "262144"}
    assert file.values("vzdump")["dev7"] == "/dev/nvidia7,mode=0666"
    assert [key for key, _ in file.raw()] == ["lxc.idmap", "lxc.idmap", "lxc.prlimit.memlock", "lxc.mount.entry"]
    assert file.entries[0].value == "Großer Container für GLM-5"


def test_what_hands_have_left_is_told_with_its_line() -> None:
    lines = {text: number for number, text in enumerate(NASTY.splitlines(), 1)}
    assert odd(NASTY) == [
        ("conf-duplicate-key", 11),
        ("conf-unread-line", lines[" swap: 4096"]),
        ("conf-marker-line", lines["# BEGIN ANSIBLE MANAGED BLOCK"]),
        ("conf-marker-line", lines["# END ANSIBLE MANAGED BLOCK"]),
        ("conf-raw-device", lines["lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind,optional,create=file"]),
        ("conf-misplaced-line", lines["lxc.cap.drop: sys_time"]),
        ("conf-misplaced-line", lines["dev7: /dev/nvidia7,mode=0666"]),
        ("conf-misplaced-line", lines["lxc.cgroup2.cpuset.cpus: 0-31"]),
    ]


def clean() -> str:
    """NASTY without what is in the wrong place."""
    return NASTY.partition("\n[pve:pending]")[0]


def test_a_rewritten_file_has_only_what_no_rewriting_mends() -> None:
    text = config.parse(clean()).write() + "\n[before]\narch: amd64\nsnaptime: 1\nlxc.cap.drop: sys_time\n"
    assert {code for code, _ in odd(text)} == {"conf-raw-device", "conf-marker-line"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("memory: 512\n[before]\nmemory: 256\narch: amd64\n", "conf-misplaced-line"),
        ("memory: 512\n[before]\nmemory: 256\nlxc.cap.drop = sys_time\n", "conf-misplaced-line"),
        ("memory: 512\n[before]\nmemory: 256\nmemory: 512\n", "conf-misplaced-line"),
        ("memory: 512\n[before]\nlxc.cap.drop: sys_time\nmemory: 256\n", "conf-misplaced-line"),
        ("memory: 512\n[before]\nmemory: 256\n# by hand\n\nswap: 0\n", "conf-misplaced-line"),
        ("memory: 512\nMemory: 256\n", "conf-unread-line"),
        ("memory: 512\nlxc.cgroup.devices.allow: c 195:* rwm\n", "conf-deprecated-line"),
        ("memory: 512\n# mine\nswap: 0\n", "conf-comment-line"),
        ("memory: 512\n[not a header]\n", "conf-unread-line"),
    ],
)
def test_each_mistake_has_its_code(text: str, code: str) -> None:
    assert [found for found, _ in odd(text)] == [code]


def test_a_line_that_ends_as_in_windows_is_read() -> None:
    file = ConfFile("arch: amd64\r\nmemory: 512\r\nlxc.cap.drop: sys_time\r\n\r\n[before]\r\nmemory: 256\r\n")
    assert file.values() == {"arch": "amd64", "memory": "512"}
    assert file.raw() == [("lxc.cap.drop", "sys_time")]
    assert file.oddities() == []
    wanted = RawWanted({}, [("lxc.prlimit.memlock", "unlimited")])
    assert file.with_raw(settled(file.raw(), wanted)) == (
        "arch: amd64\r\nmemory: 512\r\nlxc.prlimit.memlock: unlimited\r\n\r\n[before]\r\nmemory: 256\r\n"
    )


def test_an_edit_touches_the_raw_lines_of_the_main_part_and_nothing_else() -> None:
    file = ConfFile(NASTY)
    wanted = RawWanted({"lxc.prlimit.memlock": ("lxc.prlimit.memlock", "8589934592"), "lxc.mount.entry dev/shm": SHM})
    edited = file.with_raw(settled(file.raw(), wanted))
    assert edited == NASTY.replace("lxc.prlimit.memlock = unlimited", "lxc.prlimit.memlock: 8589934592").replace(
        "create=file\n", f"create=file\nlxc.mount.entry: {SHM[1]}\n"
    )


SHM = shm_line("64G")


def test_raw_lines_that_are_not_listed_stay_and_with_a_list_they_go() -> None:
    have = [("lxc.cap.drop", "sys_time"), ("lxc.prlimit.memlock", "1"), ("lxc.cap.drop", "mac_admin")]
    stay = settled(have, RawWanted({}))
    assert raw_changes(have, stay) == []
    listed = settled(have, RawWanted({}, [("lxc.cap.drop", "mac_admin")]))
    assert [(c.key, c.before, c.after) for c in raw_changes(have, listed)] == [
        ("lxc.cap.drop", "sys_time", "mac_admin"),
        ("lxc.prlimit.memlock", "1", None),
        ("lxc.cap.drop", "mac_admin", None),
    ]


@pytest.mark.parametrize(
    ("have", "declared"),
    [
        ("lxc.cgroup2.cpuset.cpus: 0,1,2,3", "lxc.cgroup2.cpuset.cpus: 0-3"),
        ("lxc.mount.entry: tmpfs  dev/shm\ttmpfs rw 0 0", "lxc.mount.entry: tmpfs dev/shm tmpfs rw 0 0"),
        ("lxc.limit.memlock = unlimited", "lxc.prlimit.memlock: unlimited"),
    ],
)
def test_what_means_the_same_is_no_change(have: str, declared: str) -> None:
    lines = ConfFile(have + "\n").raw()
    assert raw_changes(lines, settled(lines, RawWanted({}, [parse_line(declared)]))) == []


KEYS = st.sampled_from(
    ["lxc.cap.drop", "lxc.mount.entry", "lxc.idmap", "lxc.prlimit.memlock", "lxc.cgroup2.cpuset.cpus", "lxc.cap.keep"]
)
LINES = st.lists(st.tuples(KEYS, st.text("abc /:,=0123456789", max_size=12).map(str.strip)), max_size=8)


@given(have=LINES, declared=LINES)
def test_a_settled_file_is_settled(have: list[tuple[str, str]], declared: list[tuple[str, str]]) -> None:
    """Written, read again, rewritten by PVE: the same lines, and no further change."""
    head = "arch: amd64\nmemory: 512\n"
    tail = "\n[before]\nmemory: 256\nlxc.cap.drop: sys_time\n"
    file = ConfFile(head + "".join(f"{key}: {value}\n" for key, value in have) + tail)
    for want in (RawWanted({}, declared), RawWanted({SHM[0] + " dev/shm": SHM})):
        text = file.with_raw(settled(file.raw(), want))
        after = ConfFile(text)
        assert text.startswith(head)
        assert text.endswith(tail)
        assert raw_changes(after.raw(), settled(after.raw(), want)) == []
        rewritten = ConfFile(config.parse(text).write())
        assert raw_changes(rewritten.raw(), settled(rewritten.raw(), want)) == []
        assert rewritten.values("before") == {"memory": "256"}
        if want.lines is not None:
            assert sorted(after.raw()) == sorted(declared)


@given(
    st.lists(
        st.sampled_from([*NASTY.splitlines(), "", "x", "[a1]", "= =", "lxc.", "a:", "#", "\x0c", "ä: 1", "delete: x"]),
        max_size=30,
    )
)
def test_any_order_of_any_lines_is_read_as_the_stand_in_reads_it(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    file, other = ConfFile(text), config.parse(text)
    assert file.values() == other.main.keys
    assert file.raw() == other.main.lxc
    assert file.with_raw(settled(file.raw(), RawWanted({}))) == text
    file.oddities()


def test_the_conf_of_the_api_has_raw_lines_and_digest() -> None:
    conf = Conf.from_api([{"key": "memory", "value": "512"}], {"lxc": [["lxc.cap.drop", ""]], "digest": "abc"})
    assert (conf.raw, conf.digest) == ((("lxc.cap.drop", ""),), "abc")
