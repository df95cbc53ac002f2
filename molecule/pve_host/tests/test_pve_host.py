# SPDX-License-Identifier: Apache-2.0
"""The role only looks: what it passed is so, and nothing of ours is left on the host."""

from __future__ import annotations

import pytest
from testinfra.host import Host

MACHINE = "pve1"


@pytest.mark.parametrize("node", ["nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(8))])
def test_the_device_nodes_are_there(host: Host, node: str) -> None:
    assert host.run("test -c %s", f"/dev/{node}").succeeded


def test_the_loaded_module_is_open(host: Host) -> None:
    """Blackwell has no other; the role passed it."""
    assert "Open Kernel Module" in host.file("/proc/driver/nvidia/version").content_string


def test_nothing_is_left_behind(host: Host) -> None:
    assert not host.file("/opt/rackwell").exists
    assert not host.file("/var/lib/rackwell").exists
    assert not host.user("rackwell").exists
