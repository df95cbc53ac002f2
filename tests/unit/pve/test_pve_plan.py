# SPDX-License-Identifier: Apache-2.0
"""A declaration against an existing container: what changes, what needs a restart, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Change, Conf
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import (
    Wanted,
    applied,
    as_options,
    changes,
    foreign,
    refused,
    wanted,
)

ARGS: dict[str, Any] = {
    "hostname": "glm5-01",
    "memory": 2048,
    "swap": 0,
    "onboot": True,
    "cores": None,
    "nameserver": None,
    "features": {"nesting": True},
    "bridge": "vmbr0",
    "ip": "10.0.0.5/24",
    "gateway": "10.0.0.1",
    "devices": ["/dev/nvidiactl", "/dev/nvidia-uvm"],
    "device_mode": "0666",
    "mounts": [{"source": "/srv/models", "target": "/srv/models", "read_only": True}],
    "unprivileged": True,
    "ostype": "debian",
}
GPUS = ["/dev/nvidia2", "/dev/nvidia0"]


def want(**changed: Any) -> Wanted:
    return wanted({**ARGS, **changed}, changed.pop("gpus", GPUS))


def existing(**changed: str | None) -> dict[str, str]:
    """The configuration that PVE writes for ARGS, with changes; None removes a key."""
    conf = as_options(want())
    conf |= {
        "net0": "name=eth0,bridge=vmbr0,gw=10.0.0.1,hwaddr=BC:24:11:00:00:01,ip=10.0.0.5/24,type=veth",
        "arch": "amd64",
        "rootfs": "local:201/vm-201-disk-0.raw,size=4G",
    }
    conf |= {key: value for key, value in changed.items() if value is not None}
    return {key: value for key, value in conf.items() if not (key in changed and changed[key] is None)}


def test_devices_stand_before_gpus_in_the_order_given() -> None:
    options = as_options(want())
    assert [options[f"dev{index}"].split(",")[0] for index in range(4)] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia2",
        "/dev/nvidia0",
    ]
    assert options["dev0"] == "/dev/nvidiactl,mode=0666"
    assert options["mp0"] == "/srv/models,mp=/srv/models,ro=1"
    assert options["tags"] == "rackwell"
    assert options["unprivileged"] == "1"
    assert "cores" not in options
    assert "rootfs" not in options


def test_a_device_named_twice_is_passed_once() -> None:
    options = as_options(want(devices=["/dev/nvidia0", "/dev/nvidiactl"]))
    assert [key for key in options if key.startswith("dev")] == ["dev0", "dev1", "dev2"]


def test_what_pve_wrote_for_the_declaration_is_no_change() -> None:
    assert changes(Conf(existing()), want()) == []


@pytest.mark.parametrize(
    "have",
    [
        existing(dev0="path=/dev/nvidiactl,gid=0,mode=0666"),
        existing(features="keyctl=0,nesting=1"),
        existing(net0="name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,hwaddr=AA:BB:CC:00:00:01,ip=10.0.0.5/24,tag=7"),
        existing(tags="gpu;rackwell"),
        existing(swap=None),
        existing(mp3="local:201/vm-201-disk-1.raw,mp=/data,size=8G"),
        existing(description="words", startup="order=3", timezone="host"),
    ],
    ids=["defaults spelled", "flag off", "operator's net parts", "more tags", "swap absent", "volume", "foreign keys"],
)
def test_what_means_the_same_or_is_the_operators_is_no_change(have: dict[str, str]) -> None:
    assert changes(Conf(have), want()) == []


@pytest.mark.parametrize(
    ("have", "change"),
    [
        (existing(memory="1024"), Change("memory", "1024", "2048", False)),
        (existing(onboot=None), Change("onboot", None, "1", False)),
        (existing(cores="4"), Change("cores", "4", None, False)),
        (existing(nameserver="10.0.0.9"), Change("nameserver", "10.0.0.9", None, True)),
        (existing(tags="gpu"), Change("tags", "gpu", "gpu;rackwell", False)),
        (existing(features="keyctl=1,nesting=1"), Change("features", "keyctl=1,nesting=1", "nesting=1", True)),
        (existing(features=None), Change("features", None, "nesting=1", True)),
        (
            existing(dev0="/dev/nvidiactl,gid=44,mode=0666"),
            Change("dev0", "/dev/nvidiactl,gid=44,mode=0666", "/dev/nvidiactl,mode=0666", True),
        ),
        (existing(dev9="/dev/fuse"), Change("dev9", "/dev/fuse", None, True)),
        (existing(dev1=None), Change("dev1", None, "/dev/nvidia-uvm,mode=0666", False)),
        (existing(mp0=None), Change("mp0", None, "/srv/models,mp=/srv/models,ro=1", False)),
        (
            existing(mp0="/srv/models,mp=/srv/models"),
            Change("mp0", "/srv/models,mp=/srv/models", "/srv/models,mp=/srv/models,ro=1", True),
        ),
        (existing(mp7="/srv/old,mp=/srv/old"), Change("mp7", "/srv/old,mp=/srv/old", None, True)),
    ],
)
def test_one_difference_is_one_change(have: dict[str, str], change: Change) -> None:
    assert changes(Conf(have), want()) == [change]


def test_a_removed_gateway_is_seen_and_the_operators_parts_stay() -> None:
    have = existing(
        net0="name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,hwaddr=BC:24:11:00:00:01,ip=10.0.0.5/24,type=veth"
    )
    (change,) = changes(Conf(have), want(gateway=None))
    assert change.key == "net0"
    assert change.after == "name=eth0,bridge=vmbr0,firewall=1,hwaddr=BC:24:11:00:00:01,ip=10.0.0.5/24,type=veth"


def test_a_removed_device_moves_no_other() -> None:
    (change,) = changes(Conf(existing()), want(devices=["/dev/nvidia-uvm"]))
    assert change == Change("dev0", "/dev/nvidiactl,mode=0666", None, True)


def test_a_new_device_takes_the_first_free_number() -> None:
    conf = Conf(existing(dev1=None, dev4="/dev/nvidia-uvm,mode=0666"))
    (change,) = changes(conf, want(devices=["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"]))
    assert change == Change("dev1", None, "/dev/nvidia-modeset,mode=0666", False)


def test_a_new_device_needs_a_restart_before_proxmox_ve_9() -> None:
    (change,) = changes(Conf(existing(dev1=None)), want(), hotplug_devices=False)
    assert change.restart


def test_the_same_device_twice_in_the_file_is_removed_once() -> None:
    (change,) = changes(Conf(existing(dev8="/dev/nvidiactl,mode=0666")), want())
    assert (change.key, change.after) == ("dev8", None)


def test_the_number_of_an_entry_that_waits_for_its_removal_is_not_free() -> None:
    conf = Conf(existing(dev0="/dev/fuse", dev9="/dev/nvidiactl,mode=0666"), {}, frozenset({"dev0"}))
    (change,) = changes(conf, want(devices=["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"]))
    assert change.key == "dev4"


def test_declaring_again_what_waits_for_its_removal_takes_the_removal_back() -> None:
    conf = Conf(existing(), {}, frozenset({"dev1"}))
    (change,) = changes(conf, want())
    assert change == Change("dev1", None, "/dev/nvidia-uvm,mode=0666", False)


def test_a_change_that_is_pending_already_is_no_change_again() -> None:
    conf = Conf(existing(features="keyctl=1,nesting=1"), {"features": "nesting=1"})
    assert changes(conf, want()) == []
    assert conf.waiting() == ["features"]


def test_applied_gives_the_configuration_after_the_changes() -> None:
    have = existing(memory="1024", dev9="/dev/fuse")
    assert applied(have, changes(Conf(have), want())) == existing()


@pytest.mark.parametrize(
    ("have", "words"),
    [
        (existing(tags=None), "no tag 'rackwell'"),
        (existing(tags="gpu"), "tags: gpu"),
        (existing(hostname="web"), "its hostname is 'web'"),
    ],
)
def test_a_container_of_somebody_else_is_told(have: dict[str, str], words: str) -> None:
    assert words in (foreign(Conf(have), "glm5-01") or "")


def test_our_container_is_ours() -> None:
    assert foreign(Conf(existing()), "glm5-01") is None


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"unprivileged": False}, ("unprivileged", "1", "0")),
        ({"ostype": "ubuntu"}, ("ostype", "debian", "ubuntu")),
    ],
)
def test_what_only_a_new_container_can_have_is_refused(changed: dict[str, Any], found: tuple[str, str, str]) -> None:
    assert refused(Conf(existing()), want(**changed), "local", 4) == [found]


def test_another_storage_or_size_is_refused() -> None:
    assert refused(Conf(existing()), want(), "local", 4) == []
    assert refused(Conf(existing()), want(), "tank", 8) == [("storage", "local", "tank"), ("disk_size", "4", "8")]
