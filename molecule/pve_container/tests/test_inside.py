# SPDX-License-Identifier: Apache-2.0
"""The container as it is seen from inside."""

from __future__ import annotations

from testinfra.host import Host

MACHINE = "glm5-01"


def test_systemd_runs_inside(host: Host) -> None:
    assert host.check_output("ps -p 1 -o comm=") == "systemd"
    assert host.run("systemctl is-system-running").stdout.strip() in {"running", "degraded"}


def test_it_is_unprivileged_inside(host: Host) -> None:
    inside, outside, _ = host.check_output("cat /proc/self/uid_map").split()[:3]
    assert (inside, outside) == ("0", "100000")


def test_the_models_are_mounted_read_only(host: Host) -> None:
    assert "ro" in host.mount_point("/srv/models/toy").options
    assert host.file("/srv/models/toy/config.json").exists
