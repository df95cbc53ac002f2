# SPDX-License-Identifier: Apache-2.0
"""A command with a deadline, at which all that it started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any, List, NoReturn

#: Seconds in which killed processes have to be gone; one that is stuck in the kernel is left.
GRACE_S = 10
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class DeadlineError(Exception):
    """The deadline passed. ``output``: what the command had printed."""

    def __init__(self, command: List[str], seconds: float, output: str) -> None:
        super().__init__("%s did not end in %g s" % (command[0], seconds))
        self.seconds = seconds
        self.output = output

    def parts(self, what: str, where: str, fix: str) -> dict[str, str]:
        """The error's parts, with the code ``timed-out`` and a reason made of deadline and last line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        said = "its last words: " + lines[-1][:400] if lines else "it had printed nothing"
        why = "it was ended after %g s; %s" % (self.seconds, said)
        return {"code": "timed-out", "what": what, "where": where, "why": why, "fix": fix}


def run(command: List[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its stdout holds stderr too.

    It is a process group of its own, which is killed at the deadline, and when this process is told to end.

    Args:
        options: ``cwd`` and ``env`` of the command.

    Raises:
        DeadlineError: it did not end in time.
    """
    taken = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    early: List[int] = []
    # while the command starts nobody knows yet what to kill: such a signal waits until that is known
    before = {number: signal.signal(number, lambda told, _frame: early.append(told)) for number in taken}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            errors="replace",
            start_new_session=True,
            **options,
        )
        try:
            for number in taken:
                signal.signal(number, _leave)
            if early:
                _leave(early[0], None)
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise DeadlineError(command, seconds, _kill(process)) from None
        except BaseException:
            _kill(process)
            raise
        return subprocess.CompletedProcess(command, process.returncode, output)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _kill(process: subprocess.Popen[str]) -> str:
    """End the group. Returns what it had printed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=GRACE_S)[0]
    except subprocess.TimeoutExpired:
        return ""
