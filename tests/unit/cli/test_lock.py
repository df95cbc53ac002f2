# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rackwell.errors import ExitCode, RackwellError
from rackwell.provision.lock import container_lock

HOLDER = """
import sys
from pathlib import Path
from rackwell.provision.lock import container_lock
with container_lock(Path(sys.argv[1]), "c1", "provision"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of c1 until its stdin ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.kill()


def test_busy_says_who(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(RackwellError) as caught, container_lock(tmp_path, "c1", "verify"):
        pass
    assert caught.value.exit_code == ExitCode.LOCKED
    problem = caught.value.problems[0]
    assert problem.code == "locked"
    assert f"process {holder.pid}" in problem.why
    assert "rackwell provision" in problem.why


def test_another_container_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with container_lock(tmp_path, "c2", "verify"):
        assert (tmp_path / "locks" / "c2.json").exists()
    assert not (tmp_path / "locks" / "c2.json").exists()


def test_a_killed_owner_leaves_no_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with container_lock(tmp_path, "c1", "verify"):
        assert str(os.getpid()) in (tmp_path / "locks" / "c1.json").read_text()


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), container_lock(tmp_path, "c1", "verify"):
        raise ValueError("inside")
    with container_lock(tmp_path, "c1", "verify"):
        pass


def test_a_disk_without_room_for_the_owner_s_name_keeps_nobody_from_working(tmp_path: Path) -> None:
    (tmp_path / "locks" / "c1.json").mkdir(parents=True)  # what cannot be written
    with container_lock(tmp_path, "c1", "verify"), pytest.raises(RackwellError), container_lock(tmp_path, "c1", "x"):
        pass
