# SPDX-License-Identifier: Apache-2.0
"""A container that a hand made is looked at, and the module that reads what was told finds nothing to change."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError
from ansible_collections.rackwell.gpu.plugins.modules import pve_container_look
from pverig import KEY, Module, converge

BY_HAND = """\
#F%C3%BCr die Abteilung
arch: amd64
cores: 2
dev0: /dev/null,mode=0666
dev3: /dev/zero,gid=44
features: nesting=1,keyctl=1
hostname: alt-01
memory: 2048
mp0: /tmp,mp=/srv/models,mountoptions=noatime
net0: name=eth0,bridge=lo,firewall=1,hwaddr=BC:24:11:00:00:09,ip=10.0.0.9/24,type=veth
net1: name=eth1,bridge=lo,hwaddr=BC:24:11:00:00:0A,ip=dhcp,type=veth
ostype: debian
rootfs: local:201/vm-201-disk-0.raw,size=4G
startup: order=2
tags: abteilung
unprivileged: 1
lxc.prlimit.memlock = unlimited
lxc.cgroup2.cpuset.cpus: 0-1
lxc.cap.drop: sys_time

[vor-dem-update]
arch: amd64
hostname: alt-01
memory: 1024
snaptime: 1760000000
"""


def look(host: Module, **given: Any) -> dict[str, Any]:
    host.params = {"vmid": 201, "ssh_public_key": "", **given}
    return pve_container_look.look(host)  # type: ignore[arg-type]


def test_a_run_of_what_was_told_changes_nothing(host: Module) -> None:
    standard = dict(host.params)
    host.standin.put(201, BY_HAND, running=True)
    host.authorized = KEY + "\n"
    seen = look(host, ssh_public_key=KEY)
    assert (seen["untold"], seen["oddities"], seen["missing_keys"]) == ([], [], 0)
    assert seen["templates"] == ["local:vztmpl/debian-12-lab_amd64.tar.zst"]
    assert seen["host_keys"][0].startswith("ecdsa")
    assert host.changing() == []
    host.params = standard
    out = converge(host, check_mode=True, **seen["declaration"])
    assert (out.changed, out.result["changed_keys"], out.warnings) == (False, [], [])
    assert [one["code"] for one in out.result["drift"]] == ["no-tag"]
    assert not converge(host).changed
    assert host.standin.conf(201) == BY_HAND
    # also when it was stopped and rewritten in between
    host.standin.pct("set", "201", "--description", "neu")
    assert not converge(host).changed


def test_a_stopped_container_is_told_without_its_inside(host: Module) -> None:
    host.standin.put(201, BY_HAND)
    seen = look(host, ssh_public_key=KEY)
    assert (seen["running"], seen["host_keys"], seen["missing_keys"]) == (False, [], -1)


def test_a_number_that_the_host_does_not_have_is_told_with_those_that_it_has(host: Module) -> None:
    host.standin.put(300, "hostname: web\nmemory: 512\n")
    with pytest.raises(PveError) as caught:
        look(host)
    assert (caught.value.finding.code, caught.value.finding.why) == ("no-container", "it has: 300 (web)")


def test_its_documentation_is_yaml_and_tells_every_option() -> None:
    documented = yaml.safe_load(pve_container_look.DOCUMENTATION)["options"]
    assert set(documented) == set(pve_container_look.SPEC)
    assert yaml.safe_load(pve_container_look.EXAMPLES)
    assert yaml.safe_load(pve_container_look.RETURN)
