# SPDX-License-Identifier: Apache-2.0
"""What the role asserts is so for the service user."""

from __future__ import annotations

from testinfra.host import Host

MACHINE = "glm5-01"


def test_the_service_user_reads_the_model(host: Host) -> None:
    assert host.run("runuser -u rackwell -- cat /srv/models/toy/config.json").succeeded


def test_the_service_user_cannot_change_it(host: Host) -> None:
    assert host.run("runuser -u rackwell -- touch /srv/models/toy/config.json").failed
