# SPDX-License-Identifier: Apache-2.0
"""The server: running, enabled, confined, and answering."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

MACHINE = "glm5-01"
UNIT = "rackwell-inference.service"
pytestmark = pytest.mark.usefixtures("journal_on_failure")


def show(host: Host, name: str) -> str:
    value: str = host.check_output("systemctl show -P %s %s", name, UNIT)
    return value


def test_it_runs_and_comes_back_after_a_boot(host: Host) -> None:
    service = host.service(UNIT)
    assert service.is_running
    assert service.is_enabled


def test_it_listens_where_the_profile_says_and_nowhere_else(host: Host) -> None:
    assert host.socket("tcp://127.0.0.1:30000").is_listening
    assert not host.socket("tcp://0.0.0.0:30000").is_listening


@pytest.mark.parametrize(
    ("name", "value"),
    [("User", "rackwell"), ("NoNewPrivileges", "yes"), ("ProtectSystem", "full"), ("PrivateTmp", "yes"),
     ("KillMode", "mixed"), ("PrivateDevices", "no"), ("LimitMEMLOCK", "infinity")],
)  # fmt: skip
def test_what_systemd_made_of_the_unit(host: Host, name: str, value: str) -> None:
    assert show(host, name) == value


def test_it_serves_the_declared_name(host: Host) -> None:
    program = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:30000/v1/models').read().decode())"
    models = json.loads(host.check_output("python3 -c %s", program))
    assert [model["id"] for model in models["data"]] == ["glm-5"]


def test_the_journal_tells_of_the_switch(host: Host) -> None:
    last = json.loads(host.check_output("tail -n 1 /var/lib/rackwell/journal.jsonl"))
    assert last["release"] in host.file("/opt/rackwell/current").linked_to
