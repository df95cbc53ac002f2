# SPDX-License-Identifier: Apache-2.0
"""The boot gate: what is broken when the container starts keeps the server down, and says why until it is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import inside, lab, rackwell

VMID = "202"
SERVER = "rackwell-inference.service"


def restart(container: str, host: str) -> None:
    """Restart the container, and wait until all that starts with it has."""
    inside(host, "pct", "reboot", VMID)
    inside(container, "systemctl is-system-running --wait || true")


def server_state(container: str) -> str:
    return inside(container, f"systemctl is-active {SERVER} || true")


@pytest.fixture
def corrupt_at_boot(container: str, host: str, faults: Callable[..., str]) -> Iterator[None]:
    faults("gpu", "p2p.corrupt_pairs=[[0,1],[1,0]]")
    restart(container, host)
    yield
    if server_state(container) != "active":
        lab("reset", "--host", host)
        restart(container, host)


@pytest.mark.usefixtures("corrupt_at_boot")
def test_a_broken_pair_keeps_the_server_down_until_it_is_mended(site: Path, container: str, host: str) -> None:
    assert server_state(container) == "inactive"
    told = [
        line
        for line in inside(container, f"systemctl status {SERVER} --no-pager -l || true").splitlines()
        if "p2p-corrupt" in line
    ]
    assert told, "systemctl status of the server does not say why"
    assert f"rackwell verify {container} --release-gate" in told[-1]

    row = rackwell("status", "-i", site)
    assert row.code == 4
    assert "gate-held" in row.codes
    started = rackwell("provision", container, "-i", site, "--no-bench")
    assert (started.code, started.codes[0]) == (4, "p2p-corrupt")

    still = rackwell("verify", container, "-i", site, "--release-gate")
    assert (still.code, server_state(container)) == (4, "inactive")
    assert "p2p-corrupt" in still.json["problems"][0]["why"]

    lab("reset", "--host", host)
    mended = rackwell("verify", container, "-i", site, "--release-gate")
    assert (mended.code, server_state(container)) == (0, "active"), mended.json["problems"]


def test_starting_it_by_hand_does_not_get_past_the_gate(container: str, host: str, faults: Callable[..., str]) -> None:
    faults("gpu", "cu_init_error=802")
    restart(container, host)
    try:
        inside(container, f"systemctl start {SERVER} || true")
        assert server_state(container) == "inactive"
        assert inside(container, f"systemctl show -P Result {SERVER}") == "exec-condition"
    finally:
        lab("reset", "--host", host)
        restart(container, host)
    assert server_state(container) in {"active", "activating"}


def test_a_container_whose_node_is_missing_does_not_start_and_the_host_says_why(
    container: str, host: str, faults: Callable[..., str]
) -> None:
    faults("node", "at_boot=false")
    faults("node", "nvidia3=false")
    try:
        lab("reboot", host)
        assert "stopped" in inside(host, "pct", "status", VMID)
        journal = inside(host, "journalctl -b -u rackwell-gpu-nodes.service --no-pager || true")
        assert "/dev/nvidia3" in journal
    finally:
        lab("reset", "--host", host)
        lab("reboot", host)
    inside(container, "systemctl is-system-running --wait || true")
    assert server_state(container) in {"active", "activating"}
