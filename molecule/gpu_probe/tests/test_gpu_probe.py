# SPDX-License-Identifier: Apache-2.0
"""The probe in its own environment, run again here as the service user."""

from __future__ import annotations

import json

from testinfra.host import Host

MACHINE = "glm5-01"
PROBE = "runuser -u rackwell -- /opt/rackwell/probe/env/bin/python -m rackwell.probe"


def test_the_service_user_cannot_log_in(host: Host) -> None:
    user = host.user("rackwell")
    assert user.exists
    assert user.shell.endswith(("nologin", "false"))


def test_cuda_starts_on_every_gpu(host: Host) -> None:
    said = json.loads(host.check_output(f"{PROBE} cuda --json --gpus 8"))
    assert said["verdict"] == "pass"
    assert len({device["uuid"] for device in said["devices"]}) == 8


def test_data_is_verified_on_every_ordered_pair(host: Host) -> None:
    said = json.loads(host.check_output(f"{PROBE} p2p --json --size 1"))
    assert len(said["pairs"]) == 56
    assert all(pair["verified"] and pair["gb_per_s"] > 0 for pair in said["pairs"])


def test_its_environment_is_its_own(host: Host) -> None:
    assert host.run("/usr/bin/python3 -c 'import cuda'").failed
    assert host.file("/opt/rackwell/probe").is_symlink
