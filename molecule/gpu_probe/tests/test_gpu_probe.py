# SPDX-License-Identifier: Apache-2.0
"""The probe in its own environment, run again here as the service user; its boot gate, and the baseline beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

MACHINE = "glm5-01"
PROBE = "/opt/rackwell/probe/env/bin/python -m rackwell.probe"
GATE = "rackwell-gpu-gate.service"
REQUIRE = f"{PROBE} require --gate /run/rackwell/gate.json --container glm5-01"


def gate(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file("/run/rackwell/gate.json").content_string)
    return found


def test_the_service_user_cannot_log_in(host: Host) -> None:
    user = host.user("rackwell")
    assert user.exists
    assert user.shell.endswith(("nologin", "false"))


def test_the_quick_check_passes_as_the_service_user(host: Host) -> None:
    said = json.loads(host.check_output(f"runuser -u rackwell -- {PROBE} check --mode quick --json --gpus 8"))
    assert said["verdict"] == "pass", said["findings"]
    assert len({gpu["uuid"] for gpu in said["gpus"]}) == 8


def test_its_environment_is_its_own(host: Host) -> None:
    assert host.run("/usr/bin/python3 -c 'import cuda'").failed
    assert host.file("/opt/rackwell/probe").is_symlink


def test_the_gate_runs_at_each_boot_before_the_server(host: Host) -> None:
    service = host.service(GATE)
    assert service.is_enabled
    assert service.is_running
    assert "rackwell-inference.service" in host.check_output("systemctl show -P Before %s", GATE).split()


@pytest.mark.parametrize(
    ("name", "value"),
    [("User", "rackwell"), ("Type", "oneshot"), ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"),
     ("RuntimeDirectoryPreserve", "yes"), ("TimeoutStartUSec", "13min")],
)  # fmt: skip
def test_what_systemd_made_of_the_gate(host: Host, name: str, value: str) -> None:
    assert host.check_output("systemctl show -P %s %s", name, GATE) == value


def test_its_verdict_is_in_run_and_in_the_journal(host: Host) -> None:
    verdict = gate(host)
    assert (verdict["verdict"], verdict["held"]) == ("pass", False)
    assert verdict["boot_id"] == host.check_output("cat /proc/sys/kernel/random/boot_id")
    assert host.file("/run/rackwell/gate.json").mode == 0o644
    assert f"gate passed: {verdict['line']}" in host.check_output("journalctl -o cat -u %s", GATE)
    assert host.run(REQUIRE).succeeded


def test_the_controllers_baseline_decides(host: Host) -> None:
    """The container has the same, or none."""
    kept = Path(os.environ["RACKWELL_INVENTORY"]).parent / ".rackwell/baselines" / f"{MACHINE}.json"
    brought = host.file("/var/lib/rackwell/baseline/gpu.json")
    assert host.file("/var/lib/rackwell/baseline").is_directory
    assert (brought.content_string if brought.exists else None) == (kept.read_text() if kept.exists() else None)


def test_a_gate_that_is_killed_leaves_no_verdict_and_the_next_run_passes(host: Host) -> None:
    host.check_output("systemctl stop %s", GATE)
    host.check_output("systemctl start --no-block %s", GATE)
    waiting = "until [ -e /run/rackwell/gate.partial ]; do sleep 0.05; done; systemctl kill -s KILL %s"
    host.check_output("timeout 60 sh -c %s", waiting % GATE)
    host.check_output("timeout 60 sh -c %s", f"while systemctl is-active -q {GATE}; do sleep 0.05; done; "
                      f"until systemctl is-failed -q {GATE}; do sleep 0.05; done")  # fmt: skip
    held = host.run(REQUIRE)
    assert held.rc == 1
    assert "was ended before it had a verdict" in held.stderr
    assert "rackwell verify glm5-01 --release-gate" in held.stderr
    assert held.stderr.strip().count("\n") == 0
    host.check_output("systemctl start %s", GATE)
    assert host.run(REQUIRE).succeeded
