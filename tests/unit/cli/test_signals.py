# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and its like at any moment, and output that nobody reads: what the program as a whole does then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rackwell.cli import output
from rackwell.errors import Problem

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

# the program with another command line in it
PROGRAM = """
import atexit, os, signal, sys, types
import rackwell.cli
from rackwell.cli import main
number = int(sys.argv[1])
def again(*_):
    os.kill(os.getpid(), number)
def call(arguments):
{body}
rackwell.cli.app = sys.modules["rackwell.cli.app"] = types.SimpleNamespace(call=call)
main.run()
"""


def ended(number: int, body: str, **options: object) -> tuple[int, str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body), str(number)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)  # type: ignore[call-overload]
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("    again()", id="once"),
        pytest.param("    try:\n        again()\n    finally:\n        again()", id="again while it cleans up"),
    ],
)
def test_an_interrupt_is_one_line_and_130(number: int, body: str) -> None:
    assert ended(number, body) == (130, "interrupted\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_end_changes_nothing(number: int) -> None:
    assert ended(number, "    atexit.register(again)\n    return 3") == (3, "")


def test_under_nohup_the_end_of_the_terminal_is_nothing() -> None:
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    assert ended(signal.SIGHUP, "    again()\n    return 0", **nohup) == (0, "")


def test_before_anything_is_imported() -> None:
    code = (
        "import os, signal\nfrom rackwell.cli import main\n"
        "main.main = lambda _: os.kill(os.getpid(), signal.SIGINT)\nmain.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_progress_and_problems_for_a_terminal_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        with output.Terminal() as terminal:
            terminal.line("here", "something was done")
        output.print_problems([Problem("code", "what")], None)


def test_a_result_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = (
        "from rackwell.cli.main import run\nfrom rackwell.cli import app, command, output\n"
        "app.app.command('x')(lambda: command.execute('x', True, lambda _: output.Outcome()))\nrun()"
    )
    with os.fdopen(writing, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-c", code, "x"], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_laboratory_gets_the_signals(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "tests/lab/lab.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        "import os, signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    code = (
        "import pathlib\nfrom rackwell import shipped\n"
        f"shipped.checkout = lambda: pathlib.Path({str(tmp_path)!r})\n"
        "from rackwell.cli.main import run\nrun()"
    )
    with subprocess.Popen([sys.executable, "-c", code, "lab", "up"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait() == 42
