# SPDX-License-Identifier: Apache-2.0
"""The role's look through ansible-playbook: another driver is a failure for who installs, and an answer for a roll."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("told", "failed"), [(True, "failed=0"), (False, "failed=1")])
def test_other_libraries_are_told_to_who_only_asks(tmp_path: Path, told: bool, failed: str) -> None:
    # no machine has this version
    given = {"nvidia_userspace_version": "1.2.3", "__nvidia_userspace_other_is_told": told}
    role = {"name": "rackwell.gpu.nvidia_userspace", "tasks_from": "look"}
    tasks = [{"name": "Look", "ansible.builtin.include_role": role, "vars": given}]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "box,", "-c", "local", tmp_path / "play.yml"],
        env={
            **os.environ,
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed in done.stdout, done.stdout + done.stderr
