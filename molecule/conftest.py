# SPDX-License-Identifier: Apache-2.0
"""What the scenarios' tests share: the machine they look at, by ssh with a checked host key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

LAB = Path(__file__).parents[1] / "tests/lab/lab.py"
# the one that `make test` brings up; RACKWELL_LAB_NAME names another
INSTANCE = os.environ.get("RACKWELL_LAB_NAME", "test")
UNIT = "rackwell-inference.service"


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Host:
    """The machine named by the test module's MACHINE, as root. (testinfra's own reading of the inventory does not
    resolve templates such as {{ inventory_dir }}.)"""
    command = [sys.executable, str(LAB), "status", "--name", INSTANCE, "--json"]
    status = json.loads(subprocess.check_output(command))
    machines = {machine["name"]: machine["address"] for machine in status["hosts"] + status["containers"]}
    site = Path(os.environ["RACKWELL_INVENTORY"]).parent
    found: Host = testinfra.get_host(
        f"ssh://root@{machines[request.module.MACHINE]}",
        ssh_identity_file=str(site / "id_ed25519"),
        ssh_extra_args=f"-o UserKnownHostsFile={site}/known_hosts -o StrictHostKeyChecking=yes",
    )
    return found


@pytest.fixture
def journal_on_failure(request: pytest.FixtureRequest, host: Host) -> Iterator[None]:
    """Print the server's journal when the test fails."""
    failures = request.session.testsfailed
    yield
    if request.session.testsfailed > failures:
        print(host.run("journalctl -u %s -n 40 --no-pager", UNIT).stdout)
