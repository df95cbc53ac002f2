# SPDX-License-Identifier: Apache-2.0
"""The action through ansible-playbook: several machines record their keys in one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.action import host_keys

KEYS = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdGm0hWBOlCKHp6cxKkvpqUEKuI0LeVGQMWGRxY5Gqj",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
]


def start(base: Path, *tasks: dict[str, Any]) -> subprocess.Popen[str]:
    """A play of these tasks: the action's arguments, or with ``check``."""
    steps = []
    for number, task in enumerate(tasks):
        check = task.pop("check", False)
        body = {"path": str(base.parent / "known_hosts"), **task}
        step = {"name": f"Step {number}", "rackwell.gpu.host_keys": body, "check_mode": check, "register": f"s{number}"}
        steps.append({**step, "delegate_to": "localhost", "ignore_errors": True})
    told = "{{ [" + ", ".join(f"s{number}" for number in range(len(steps))) + "] | to_json }}"
    steps.append(
        {"name": "Tell", "ansible.builtin.copy": {"content": told, "dest": f"{base}/out"}, "delegate_to": "localhost"}
    )
    base.mkdir()
    (base / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": steps}]))
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(base / "none"),
        "ANSIBLE_LOCAL_TEMP": str(base / "local"),
        "ANSIBLE_REMOTE_TEMP": str(base / "remote"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    return subprocess.Popen(
        [program, "-i", "box,", base / "play.yml"],
        env=environment,
        cwd=base,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results(base: Path, play: subprocess.Popen[str]) -> list[dict[str, Any]]:
    said, _ = play.communicate()
    assert (base / "out").is_file(), said
    found: list[dict[str, Any]] = json.loads((base / "out").read_text())
    return found


def waited_for(lock: Path) -> bool:
    """Whether somebody waits for it; the kernel tells ``1: -> FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF``."""
    inode = f":{lock.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_keys_are_recorded_once_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "shared"
    file.write_text(f"192.0.2.10 {KEYS[0]}\n")
    # two sites may have one file
    (tmp_path / "known_hosts").symlink_to(file)
    wanted = {"name": "192.0.2.21", "keys": KEYS[:1]}
    play = start(tmp_path / "one", {**wanted, "check": True}, wanted, wanted, {"name": "192.0.2.21", "keys": KEYS[1:]})
    check, first, again, exchanged = results(tmp_path / "one", play)
    assert [step["changed"] for step in (check, first, again, exchanged)] == [True, True, False, True]
    assert sorted(file.read_text().splitlines()) == [f"192.0.2.10 {KEYS[0]}", f"192.0.2.21 {KEYS[1]}"]
    assert (tmp_path / "known_hosts").is_symlink()


def test_a_run_waits_for_another_that_writes(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    with host_keys.locked(str(tmp_path / ".rackwell" / "locks")):
        play = start(tmp_path / "one", {"name": "192.0.2.21", "keys": KEYS[:1]})
        lock = tmp_path / ".rackwell" / "locks" / "known_hosts.lock"
        while play.poll() is None and not waited_for(lock):
            time.sleep(0.05)
        assert waited_for(lock)
        assert not file.exists()
        # the other run's update, between whose reading and writing this one's must not fall
        file.write_text(f"192.0.2.22 {KEYS[1]}\n")
    results(tmp_path / "one", play)
    assert sorted(file.read_text().splitlines()) == [f"192.0.2.21 {KEYS[0]}", f"192.0.2.22 {KEYS[1]}"]


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    (tmp_path / ".rackwell").write_text("a file")
    (step,) = results(tmp_path / "one", start(tmp_path / "one", {"name": "192.0.2.21", "keys": KEYS[:1]}))
    assert step["failed"]
    assert step["rackwell_error"]["code"] == "lock-unwritable"


@pytest.mark.parametrize("wrong", [{"name": "a"}, {"name": "a", "keys": [], "kyes": []}])
def test_wrong_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (step,) = results(tmp_path / "one", start(tmp_path / "one", wrong))
    assert step["failed"]
    assert not (tmp_path / "known_hosts").exists()
