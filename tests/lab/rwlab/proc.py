# SPDX-License-Identifier: Apache-2.0
"""Running other programs: quietly with their output kept, or long ones with a sign of life."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rwlab.console import say
from rwlab.errors import LabError

_TAIL = 12
_SIGN_OF_LIFE_S = 10.0


def run(
    command: Sequence[str], *, check: bool = True, stdin: str | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short command and keep what it printed.

    Raises:
        LabError: with ``check``, when it cannot be run or ends non-zero.
    """
    # without stdin of their own, commands must not eat the terminal's (ssh and lxc-attach do)
    source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=timeout, **source)
    except FileNotFoundError as error:
        raise LabError(
            "tool-missing", f"{command[0]} is not installed", why=str(error), fix="run scripts/setup"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LabError(
            "command-hangs", f"{command[0]} did not end in {timeout:.0f} s", why=" ".join(command)
        ) from error
    if check and done.returncode:
        raise LabError(
            "command-failed",
            f"{command[0]} ended with {done.returncode}",
            where=" ".join(command)[:300],
            why=last_lines(done.stderr or done.stdout),
        )
    return done


def run_long(
    command: Sequence[str], log: Path, where: str, what: str, *, env: Mapping[str, str] | None = None
) -> float:
    """Run a long command with its output in ``log``, and say its last line every ten seconds.

    Returns:
        Seconds that it took.

    Raises:
        LabError: when it ends non-zero; the end of its log is in ``why``.
    """
    say(where, what)
    began = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        ) as child,
    ):
        assert child.stdout is not None
        last, told = b"", began
        try:
            while True:
                if select.select([child.stdout], [], [], 1.0)[0]:
                    chunk = os.read(child.stdout.fileno(), 65536)
                    if not chunk:
                        break
                    out.write(chunk)
                    last = (last + chunk)[-400:]
                if time.monotonic() - told >= _SIGN_OF_LIFE_S:
                    told = time.monotonic()
                    lines = last.decode(errors="replace").strip().splitlines() or [""]
                    say(where, f"{what} ({told - began:.0f} s) … {lines[-1][:90]}")
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise LabError(
            "command-failed",
            f"{what}: {command[0]} ended with {child.returncode}",
            where=str(log),
            why=last_lines(log.read_text(errors="replace")),
        )
    return time.monotonic() - began


def last_lines(text: str) -> str:
    """The end of a program's output, on one line for an error's ``why``."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-_TAIL:])[-1200:]


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (tells a process from a later one of the same pid); None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the command's name, in parentheses, may hold spaces; a zombie has ended
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
