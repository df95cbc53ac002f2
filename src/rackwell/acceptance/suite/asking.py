# SPDX-License-Identifier: Apache-2.0
"""Questions to a machine, each with a deadline: a GPU that hangs must not hang the suite."""

from __future__ import annotations

import json
from typing import Any

from testinfra.host import Host

SECONDS = 60
#: what coreutils' timeout ends with
_LATE = {124, 137}


class UnansweredError(RuntimeError):
    """The machine did not answer, or not with what can be read: nothing is known of what was asked."""


def run(host: Host, command: str, *arguments: str, seconds: int = SECONDS) -> tuple[int, str]:
    """Exit code and output of a command line; `%s` in it are `arguments`, quoted. What it says on stderr comes last.

    Raises:
        UnansweredError: it took longer than `seconds`.
    """
    done = host.run(f"timeout -k 5 {seconds} sh -c %s", host.backend.quote(command, *arguments))
    if done.rc in _LATE:
        raise UnansweredError(f"`{command}` did not end within {seconds} s")
    return int(done.rc), (done.stdout + (done.stderr if done.rc else "")).strip()


def output(host: Host, command: str, *arguments: str, seconds: int = SECONDS) -> str:
    """What a command line printed.

    Raises:
        UnansweredError: it failed, or took too long.
    """
    code, told = run(host, command, *arguments, seconds=seconds)
    if code:
        raise UnansweredError(f"`{command}` ended with {code}: {told[:300]}")
    return told


def read(host: Host, path: str) -> str:
    """A file's text; empty when there is none that can be read."""
    return run(host, "cat -- %s 2>/dev/null", path)[1]


def python(host: Host, program: str, *arguments: Any, seconds: int = SECONDS) -> Any:
    """What a program of Python's own library printed as JSON; its arguments are JSON too, in ``sys.argv[1]``."""
    told = output(host, "python3 -I -c %s %s", program, json.dumps(arguments), seconds=seconds)
    try:
        return json.loads(told)
    except ValueError:
        raise UnansweredError(f"not JSON: {told[:300]}") from None


def show(host: Host, unit: str, *names: str) -> dict[str, str]:
    """Properties of a unit."""
    told = output(host, "systemctl show %s -p %s", unit, ",".join(names))
    return dict(line.partition("=")[::2] for line in told.splitlines())
