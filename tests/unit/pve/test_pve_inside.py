# SPDX-License-Identifier: Apache-2.0
"""What holds inside of a running container, against what is declared."""

from __future__ import annotations

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_inside
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import wanted_raw
from pverig import Module, converge

READ = """\
Max locked memory         {soft}              {hard}              bytes
Cpus_allowed_list:	{cpus}
Mems_allowed_list:	{mems}
space / 4096 {blocks} {free}
space /dev/shm 4096 {shm} {shm}
"""
FINE: dict[str, object] = {
    "soft": "4194304",
    "hard": "unlimited",
    "cpus": "0-7",
    "mems": "0",
    "blocks": 8 << 18,
    "free": 4 << 18,
    "shm": 64 << 18,
}
DECLARED: dict[str, object] = {"memlock": "unlimited", "shm_size": "64G", "numa_nodes": [0], "cpuset": "0-7"}


def told(declared: dict[str, object], **read: object) -> list[tuple[str, str, str]]:
    have = pve_inside.parse(READ.format(**{**FINE, **read}))
    want = wanted_raw({"raw": "keep", **declared}, {0: "0-7", 1: "8-15"}).typed
    return [(one.code, one.key, one.found) for one in pve_inside.drift(want, have)]


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ({}, []),
        ({"cpus": "0-3"}, []),  # the others are offline
        ({"cpus": "0-15"}, [("not-in-effect", "lxc.cgroup2.cpuset.cpus", "0-15")]),
        ({"mems": "0-1"}, [("not-in-effect", "lxc.cgroup2.cpuset.mems", "0-1")]),
        ({"hard": "8388608"}, [("not-in-effect", "lxc.prlimit.memlock", "8 MiB")]),
        ({"shm": 16384}, [("not-in-effect", "lxc.mount.entry", "64 MiB")]),
        ({"free": 1000}, [("disk-nearly-full", "rootfs", "3.906 MiB")]),
    ],
)
def test_a_limit_that_does_not_hold_is_told(read: dict[str, object], found: list[tuple[str, str, str]]) -> None:
    assert told(DECLARED, **read) == found


def test_a_limit_above_the_declared_one_is_no_loss() -> None:
    assert told({"memlock": "1024:2048", "shm_size": "50%"}, hard="8388608") == []


def test_little_shared_memory_is_told_when_nobody_declared_it_so() -> None:
    assert told({}, shm=16384) == [("shm-small", "lxc.mount.entry", "64 MiB")]
    assert told({"shm_size": "64M"}, shm=16384) == []


def test_a_container_that_tells_nothing_is_no_difference() -> None:
    assert pve_inside.drift(wanted_raw(DECLARED, {0: "0-7"}).typed, pve_inside.parse("")) == []


def test_the_role_tells_it_after_what_differs(host: Module) -> None:
    converge(host, memlock="unlimited", shm_size="64G")
    host.limits = READ.format(**{**FINE, "hard": "8388608"})
    out = converge(host, check_mode=True, memory=4096)
    assert [one["code"] for one in out.result["drift"]] == ["differs", "not-in-effect"]
    # what a restart is needed for anyhow is told once
    out = converge(host, check_mode=True, memlock="4096")
    assert [one["code"] for one in out.result["drift"]] == ["differs", "differs"]
