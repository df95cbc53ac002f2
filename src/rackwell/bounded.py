# SPDX-License-Identifier: Apache-2.0
"""A command with a deadline, at which all that it started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rackwell.errors import ExitCode, Problem, RackwellError


def run(
    command: Sequence[str],
    seconds: float,
    *,
    late: Problem,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    stdin: Path | None = None,
    stdout: Path | None = None,
    keep: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end, as a process group of its own, which is killed at the deadline and on any exception.

    Args:
        late: raised at the deadline, its `why` completed; see :func:`timed_out`.
        on_line: called with each line as it comes; stdout holds stderr too, then.
        stdin: a file that it reads; None for nothing.
        keep: open files that it gets, too: a lock on one is held for as long as it runs.
        stdout: a file that gets what it writes, byte for byte; the result's stdout is empty, then.

    Raises:
        RackwellError: it did not end in `seconds` (exit 1).
    """
    expired = threading.Event()
    with (
        _hangup(),
        (stdin or Path(os.devnull)).open("rb") as source,
        stdout.open("wb") if stdout else contextlib.nullcontext(subprocess.PIPE) as target,
        subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=source,
            stdout=target,
            stderr=subprocess.STDOUT if on_line else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=keep,
        ) as process,
    ):

        def expire() -> None:
            expired.set()
            _kill(process)

        clock = threading.Timer(seconds, expire)
        clock.daemon = True
        clock.start()
        try:
            out, err = _follow(process, on_line) if on_line else process.communicate()
            process.wait()
        except BaseException:
            _kill(process)
            raise
        finally:
            clock.cancel()
    if expired.is_set():
        raise RackwellError(late, ExitCode.FAILED)
    return subprocess.CompletedProcess(command, process.returncode, out or "", err)


def timed_out(what: str, where: str, seconds: float, why: str, fix: str) -> Problem:
    """The problem of a command that did not end; `why` is the likely cause."""
    return Problem("timed-out", what, where, f"it was ended after {seconds:g} s; {why}", fix)


@contextlib.contextmanager
def _hangup() -> Iterator[None]:
    """A terminal that goes away ends what runs in a group of its own, too."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGHUP, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise KeyboardInterrupt


def _follow(process: subprocess.Popen[str], on_line: Callable[[str], None]) -> tuple[str, str]:
    said = []
    for line in process.stdout or ():
        said.append(line)
        on_line(line)
    return "".join(said), ""


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
