# SPDX-License-Identifier: Apache-2.0
"""A command's deadline, on the controller and in a module: nothing that it started is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import bounded as target

from rackwell import bounded as controller
from rackwell.errors import RackwellError

LATE = controller.timed_out("it did not end", "here", 0.5, "it sleeps", "wake it")


def on_the_controller(command: list[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    return controller.run(command, seconds, late=LATE, **options)


def streaming(command: list[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    return controller.run(command, seconds, late=LATE, on_line=lambda _line: None, **options)


RUNS = pytest.mark.parametrize("run", [target.run, on_the_controller, streaming])


@RUNS
def test_a_command_that_ends_is_told(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run(["sh", "-c", "pwd; echo $X; exit 3"], 600, cwd=str(tmp_path), env={**os.environ, "X": "a"})
    assert (done.returncode, done.stdout) == (3, f"{tmp_path}\na\n")


@RUNS
def test_at_the_deadline_the_whole_group_is_ended(run: Callable[..., Any], tmp_path: Path) -> None:
    # the other end of the pipe is at its end only when the child, which holds it, is gone
    for seconds in (0.3, 3, 30):  # a slow machine may not have started the child by then
        pipe = tmp_path / str(seconds)
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises((target.DeadlineError, RackwellError)):
            run(["sh", "-c", f"(echo started >&3; exec sleep 600) 3>{pipe} & wait"], seconds)
        os.set_blocking(reader, True)
        with os.fdopen(reader) as stream:
            said = stream.read()
        if said:
            break
    assert said == "started\n"


def test_a_module_that_is_told_to_end_ends_its_command(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = f"(echo started >&3; exec sleep 600) 3>{pipe} & wait"
    code = (
        "from ansible_collections.rackwell.gpu.plugins.module_utils import bounded\n"
        f"bounded.run(['sh', '-c', {command!r}], 600)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as module, pipe.open() as stream:
        assert stream.readline() == "started\n"
        module.send_signal(signal.SIGTERM)
        assert module.wait() == 128 + signal.SIGTERM
        assert stream.read() == ""


def test_what_the_error_says() -> None:
    parts = target.DeadlineError(["sh"], 900, "a\n last \n").parts("what", "where", "fix")
    assert parts["code"] == LATE.code == "timed-out"
    assert "900 s" in parts["why"]
    assert "last" in parts["why"]
    assert "0.5 s" in LATE.why


def test_a_signal_while_the_command_starts_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    begun: list[subprocess.Popen[str]] = []

    def starting(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        begun.append(start(*arguments, **options))
        os.kill(os.getpid(), signal.SIGTERM)  # nobody has been told of the process yet
        return begun[0]

    monkeypatch.setattr(target.subprocess, "Popen", starting)
    with pytest.raises(SystemExit) as caught:
        target.run(["sleep", "600"], 600)
    assert caught.value.code == 128 + signal.SIGTERM
    assert begun[0].returncode == -signal.SIGKILL
