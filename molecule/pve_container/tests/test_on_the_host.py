# SPDX-License-Identifier: Apache-2.0
"""The container as Proxmox has it."""

from __future__ import annotations

import re

from testinfra.host import Host

MACHINE = "pve1"


def config(host: Host) -> dict[str, str]:
    lines = host.check_output("pct config 201").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_it_is_declared_as_asked(host: Host) -> None:
    found = config(host)
    assert found["unprivileged"] == "1"
    assert found["features"] == "nesting=1"
    assert found["hostname"] == "glm5-01"
    assert "rackwell" in found["tags"].split(";")


def test_every_gpu_and_control_node_is_passed_readable_for_the_service_user(host: Host) -> None:
    devices = [value for key, value in config(host).items() if re.fullmatch(r"dev\d+", key)]
    nodes = {value.split(",")[0] for value in devices}
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{minor}" for minor in range(8))} <= nodes
    assert all("mode=0666" in value for value in devices)
