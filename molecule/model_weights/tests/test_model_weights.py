# SPDX-License-Identifier: Apache-2.0
"""The snapshot is whole on the host, and the service user of the container reads it and cannot change it."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

MACHINE = "glm5-01"
SNAPSHOT = "/srv/models/toy/toy--model/0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_molecule0123456789"


def test_the_service_user_reads_the_model(host: Host) -> None:
    assert host.run(f"runuser -u rackwell -- cat {SNAPSHOT}/config.json").succeeded
    assert host.run("runuser -u rackwell -- cat /srv/models/toy/config.json").succeeded


def test_the_service_user_cannot_change_it(host: Host) -> None:
    assert host.run(f"runuser -u rackwell -- touch {SNAPSHOT}/config.json").failed


def test_nobody_in_the_container_can(host: Host) -> None:
    assert host.run(f"touch {SNAPSHOT}/config.json").failed


def test_every_file_is_what_the_manifest_says(host: Host) -> None:
    manifest = json.loads(host.file(f"{SNAPSHOT}/.rackwell-weights.json").content_string)
    assert (manifest["repository"], manifest["revision"]) == ("toy/model", SNAPSHOT.rsplit("/", 1)[1])
    large = [one for one in manifest["files"] if one["sha256"]]
    assert len(large) == 2
    for one in large:
        found = host.run(f"sha256sum {SNAPSHOT}/{one['path']}").stdout.split()[0]
        assert found == one["sha256"]
    assert [one["path"] for one in manifest["left_out"]] == ["original/consolidated.bin"]
    assert host.run(f"ls -A {SNAPSHOT}/original").failed


@pytest.mark.parametrize("place", ["/srv/models", "/var/lib", "/run", "/etc", "/var/log", "/root"])
def test_the_token_is_in_no_file_of_the_container(host: Host, place: str) -> None:
    assert host.run(f"grep -rqsF -D skip {TOKEN} {place}").rc != 0
