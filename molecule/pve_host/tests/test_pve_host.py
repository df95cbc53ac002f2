# SPDX-License-Identifier: Apache-2.0
"""What the role passed is so, and of ours only the unit that makes the device nodes is on the host."""

from __future__ import annotations

import pytest
from testinfra.host import Host

MACHINE = "pve1"
UNIT = "rackwell-gpu-nodes.service"
HELPER = "/usr/local/lib/rackwell/gpu-nodes"


@pytest.mark.parametrize("node", ["nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(8))])
def test_the_device_nodes_are_there(host: Host, node: str) -> None:
    assert host.run("test -c %s", f"/dev/{node}").succeeded


def test_the_loaded_module_is_open(host: Host) -> None:
    """Blackwell has no other; the role passed it."""
    assert "Open Kernel Module" in host.file("/proc/driver/nvidia/version").content_string


def test_the_nodes_are_made_at_each_boot_before_the_guests(host: Host) -> None:
    service = host.service(UNIT)
    assert service.is_enabled
    assert service.is_running
    assert "pve-guests.service" in host.check_output("systemctl show -P Before %s", UNIT).split()
    # other guests must not depend on it
    assert host.check_output("systemctl show -P RequiredBy %s", UNIT) == ""
    assert host.check_output("%s --look", HELPER) == "8 GPUs, all device nodes are there"


def test_a_node_that_is_lost_is_made_again(host: Host) -> None:
    host.check_output("rm /dev/nvidia3")
    assert "/dev/nvidia3 is not there" in host.run("%s --look", HELPER).stdout
    assert host.run("systemctl restart %s", UNIT).succeeded
    assert host.run("test -c /dev/nvidia3").succeeded


def test_nothing_else_is_left_behind(host: Host) -> None:
    assert not host.file("/opt/rackwell").exists
    assert not host.file("/var/lib/rackwell").exists
    assert not host.user("rackwell").exists
    assert host.check_output("find /usr/local/lib/rackwell -type f") == HELPER
