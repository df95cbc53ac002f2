# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import child


def test_events_and_arguments_travel(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []
    outcome = child.run("probe_targets:echo", {"a": [1, 2]}, 60, on_event=seen.append)
    assert outcome.state == "done"
    assert outcome.events == ({"got": {"a": [1, 2]}},)
    assert seen[0] == outcome.events[0]
    assert capfd.readouterr().out == ""  # what a library prints never reaches the report
    assert "a library that prints" in outcome.stderr


def test_a_child_that_hangs_is_killed_and_what_it_did_is_known() -> None:
    outcome = child.run("probe_targets:hang_after_event", {}, 1)
    assert outcome.state == "hung"
    assert outcome.events == ({"begin": "the call that hangs"},)
    assert outcome.returncode == -signal.SIGKILL
    assert "did not return before the deadline" in outcome.describe()
    assert "state S" in outcome.where


def test_a_child_that_crashes() -> None:
    outcome = child.run("probe_targets:segfault", {}, 60)
    assert (outcome.state, outcome.returncode) == ("crashed", -signal.SIGSEGV)
    assert "signal 11" in outcome.describe()


def test_a_child_that_raises() -> None:
    outcome = child.run("probe_targets:raise_error", {}, 60)
    assert outcome.state == "crashed"
    assert outcome.describe() == "ended with status 1: RuntimeError: a fault of ours"


def test_a_child_that_leaves_early_with_status_0_is_not_done() -> None:
    assert child.run("probe_targets:leave", {}, 60).state == "crashed"


@pytest.fixture
def abandoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """No process can be put into state D on order; this is how such a one answers: SIGKILL does not end it."""
    left: list[subprocess.Popen[bytes]] = []

    def kill(process: subprocess.Popen[bytes]) -> bool:
        left.append(process)
        return False

    monkeypatch.setattr(child, "kill", kill)
    yield left
    for process in left:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_child_stuck_in_the_kernel_is_left_and_told(abandoned: list[subprocess.Popen[bytes]]) -> None:
    outcome = child.run("probe_targets:hang_after_event", {}, 1)
    assert len(abandoned) == 1
    assert (outcome.state, outcome.returncode) == ("stuck", None)
    assert "state D" in outcome.describe()


def test_an_interrupt_kills_the_child() -> None:
    pids: list[int] = []

    def interrupt(event: dict[str, Any]) -> None:
        pids.extend(int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p.name) == os.getpid())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run("probe_targets:hang_after_event", {}, 60, on_event=interrupt)
    assert pids
    assert not any(_parent(str(pid)) == os.getpid() for pid in pids)


def _parent(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None
