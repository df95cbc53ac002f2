# SPDX-License-Identifier: Apache-2.0
"""Faults of engine and GPUs are named, with their cure, in what provision, verify, status and diagnose print.

Each fault is given to one of the commands, since all of them ask the same rules; that each command knows each fault is
tested without machines in tests/unit/cli/test_diagnose_machine.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import inside, lab, more, rackwell

SERVER = "rackwell-inference.service"
DROP_IN = f"/run/systemd/system/{SERVER}.d/60-diagnose-test.conf"
PROFILE = "profiles/glm5-lab.yml"
Faults = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def _one_start_each(site: Path, container: str, host: str) -> Iterator[None]:
    """A server that is there, and is not started again by itself: a start that fails stays to be looked at."""
    if inside(container, f"systemctl is-active {SERVER} || true") != "active":
        assert rackwell("provision", container, "-i", site, "--no-bench").code == 0
    text = "[Unit]\\nStartLimitIntervalSec=0\\n[Service]\\nRestart=no\\n"
    inside(container, f"mkdir -p {Path(DROP_IN).parent} && printf '{text}' >{DROP_IN} && systemctl daemon-reload")
    yield
    lab("reset", "--host", host)
    inside(container, f"rm -f {DROP_IN}; systemctl daemon-reload; systemctl reset-failed {SERVER}; true")
    restart(container, "active")
    ask = "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health', timeout=5)"
    inside(container, f'for n in $(seq 100); do python3 -c "{ask}" 2>/dev/null && exit 0; sleep 0.2; done; exit 1')


def restart(container: str, state: str) -> None:
    """Start the server anew, and wait until it is in `state`."""
    script = (
        f"systemctl restart {SERVER} || true; "
        f'for n in $(seq 300); do [ "$(systemctl is-active {SERVER})" = {state} ] && exit 0; sleep 0.1; done; exit 1'
    )
    inside(container, script)


def printed(*arguments: str | Path) -> str:
    """What a person reads: stdout and stderr of a command."""
    command = [sys.executable, "-c", "from rackwell.cli.main import run; run()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("death", "rule", "cure"),
    [
        ("nccl-interface", "nccl-ifname-missing", "NCCL_SOCKET_IFNAME"),
        pytest.param("model-missing", "model-path-missing", "path", marks=more),
    ],
)
def test_status_says_why_a_server_failed(
    site: Path, container: str, faults: Faults, death: str, rule: str, cure: str
) -> None:
    faults("engine", f"faults.die_as={death}", "load_seconds=0.3")
    restart(container, "failed")
    told = printed("status", container, "-i", site)
    assert f"[{rule}]" in told
    assert cure in told.partition(f"[{rule}]")[2]


@pytest.mark.parametrize(
    ("death", "rule", "cure"),
    [
        pytest.param("no-architecture", "sglang-allreduce-fusion-arch", "fusion", marks=more),
        ("parser", "sglang-think-token", "parser"),
        pytest.param("page-table", "sglang-page-table-flattened", "bf16", marks=more),
    ],
)
def test_diagnose_reads_this_start_from_the_machine(
    site: Path, container: str, faults: Faults, tmp_path: Path, death: str, rule: str, cure: str
) -> None:
    faults("engine", f"faults.die_as={death}", "load_seconds=0.3")
    restart(container, "failed")
    bundle = tmp_path / "bundle.tar.gz"
    told = rackwell("diagnose", "--container", container, "-i", site, "--bundle", bundle)
    assert told.code == 0, told.json["problems"]
    first = told.result["findings"][0]
    assert (first["id"], first["lines"][0]["source"]) == (rule, f"{container} journal")
    assert cure in first["remedy"]
    if death == "parser":
        assert rackwell("diagnose", bundle).result["findings"][0]["id"] == rule


@more
def test_diagnose_asks_a_container_without_ssh_through_its_host(
    site: Path, container: str, host: str, faults: Faults
) -> None:
    vmid = 200 + int(container.rpartition("-")[2])
    faults("engine", "faults.die_as=rank-killed", "load_seconds=0.3")
    restart(container, "failed")
    inside(container, "systemctl stop ssh")
    try:
        told = rackwell("diagnose", "--container", container, "-i", site)
    finally:
        inside(host, f"pct exec {vmid} -- systemctl start ssh")
    assert told.code == 0, told.json["problems"]
    assert told.result["findings"][0]["id"] == "sglang-child-crashed"
    assert told.codes == ["ssh-refused"]


def test_a_lost_gpu_in_the_hosts_log_is_the_cause_of_what_the_engine_says(
    site: Path, container: str, host: str, faults: Faults
) -> None:
    faults("engine", "faults.die_as=invalid-device", "load_seconds=0.3")
    xid = "NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    faults("kernel", f"dmesg={json.dumps([xid])}")
    restart(container, "failed")
    told = rackwell("diagnose", "--container", container, "-i", site)
    first = told.result["findings"][0]
    assert first["lines"][0]["source"].startswith(f"{host} kernel")
    assert "79" in first["lines"][0]["text"]


@more
def test_another_driver_in_the_kernel(site: Path, container: str, faults: Faults) -> None:
    faults("kernel", "version=570.133.20")
    told = rackwell("diagnose", "--container", container, "-i", site)
    first = told.result["findings"][0]
    assert first["area"] == "driver", first
    assert "nvidia-smi" in first["lines"][0]["source"]


def test_verify_names_the_pair_and_the_cause_of_a_server_that_failed(
    site: Path, container: str, faults: Faults
) -> None:
    faults("engine", "faults.die_as=oom-load", "load_seconds=0.3")
    faults("gpu", "p2p.corrupt_pairs=[[0,1],[1,0]]")
    restart(container, "failed")
    told = rackwell("verify", container, "-i", site, "--quick")
    assert told.code != 0
    problems = {problem["code"]: problem for problem in told.json["problems"]}
    assert "p2p-corrupt" in problems
    assert "[sglang-oom-while-loading]" in problems["not-running"]["why"]


def test_provision_does_not_wait_for_an_engine_that_is_lost_and_says_why(
    edited: Callable[..., Path], container: str
) -> None:
    """It says what is wrong and hangs, as the real one does when a rank waits for another."""
    restart(container, "active")
    behaviour: dict[str, Any] = {"faults": {"die_as": "kv-memory", "never_ready": "closed"}, "load_seconds": 0.3}
    environment = {"HF_HUB_OFFLINE": "1", "RACKWELL_LAB_ENGINE": json.dumps(behaviour)}
    limits = {"ready_timeout": 3000, "stop_timeout": 5}
    copy = edited({PROFILE: {"environment": environment, "limits": limits}})
    ended = rackwell("provision", container, "-i", copy, "--no-bench")
    assert (ended.code, ended.codes[0]) == (3, "engine-died"), ended.json["problems"]
    problem = ended.json["problems"][0]
    assert "[sglang-fraction-too-small]" in problem["why"]
    assert "serves again" in problem["why"]
    assert "--mem-fraction-static" in problem["fix"]
