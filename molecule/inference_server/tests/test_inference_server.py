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
    [("User", "rackwell"), ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"), ("PrivateTmp", "yes"),
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


def test_it_asks_the_boot_gate_before_each_start(host: Host) -> None:
    assert "rackwell.probe" in show(host, "ExecCondition")
    assert "rackwell-gpu-gate.service" in show(host, "Wants").split()
    assert "rackwell-gpu-gate.service" in show(host, "After").split()


def test_a_held_gate_keeps_it_down_and_systemctl_status_says_why(host: Host) -> None:
    """A verdict of its own making, taken back at the end; the gate itself stays as it is."""
    verdict = "/run/rackwell/gate.json"
    line = "p2p-corrupt: GPU 0000:06:00.0 to 0000:07:00.0 loses data. Fix: iommu off"
    change = f"d.update(held=True, verdict='fail', line={line!r})"
    program = f"import json; p = {verdict!r}; d = json.load(open(p)); {change}; json.dump(d, open(p, 'w'))"
    host.check_output("cp -p %s %s.kept", verdict, verdict)
    try:
        host.check_output("systemctl stop %s", UNIT)
        host.check_output("python3 -c %s", program)
        # for systemd a condition that does not hold is no failure
        assert host.run("systemctl start %s", UNIT).succeeded
        assert show(host, "ActiveState") == "inactive"
        assert show(host, "Result") == "exec-condition"
        assert show(host, "NRestarts") == "0"
        told = [text for text in host.run("systemctl status %s", UNIT).stdout.splitlines() if "boot gate:" in text]
        assert len(told) == 1
        assert line in told[0]
        assert "rackwell verify glm5-01 --release-gate" in told[0]
    finally:
        host.check_output("mv %s.kept %s", verdict, verdict)
        host.check_output("systemctl start %s", UNIT)
    assert show(host, "ActiveState") == "active"
