# SPDX-License-Identifier: Apache-2.0
"""The boot gate: checks the GPUs once after each boot and leaves a verdict, without which the server does not start.

``gate`` makes the quick check, and the full one when that is not clean or when it is asked for. ``require`` is the
server's ExecCondition. A gate that is ended half-way leaves no verdict; one that fails by itself leaves a held one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rackwell.probe import gate_judge, gate_verdict
from rackwell.probe.gate_verdict import Moment, one_line

#: a look at the lock by `require` takes it for an instant
_LOCK_PATIENCE = 2.0


class EndedError(BaseException):
    """A signal asked for the end. No Exception: nothing on the way may take it for a fault of the machine."""


def register(commands: Any) -> None:
    """Add ``gate`` and ``require`` to the probe's commands (what ``add_subparsers`` gave)."""
    gate = commands.add_parser("gate", help="the boot gate: check the GPUs and leave a verdict")
    gate.add_argument("--config", type=Path, required=True, metavar="FILE", help="rackwell.gate_config/1")
    gate.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the verdict goes")
    gate.set_defaults(run=lambda arguments: run(arguments.config, arguments.out))
    require = commands.add_parser("require", help="exit 0 only when the boot gate of this boot has passed")
    require.add_argument("--gate", type=Path, required=True, metavar="FILE", help="the verdict")
    require.add_argument(
        "--container", default="NAME", metavar="NAME", help="its name in the inventory, for the advice"
    )
    require.add_argument("--json", action="store_true", help="print the verdict's state as one JSON object")
    require.set_defaults(run=_require)


def _require(arguments: argparse.Namespace) -> int:
    found = gate_verdict.standing(arguments.gate, gate_verdict.moment())
    advice = f"rackwell verify {arguments.container} --release-gate"
    if arguments.json:
        told = {"state": found.state, "code": found.code, "line": found.line, "fix": "" if found.passed else advice}
        sys.stdout.write(json.dumps(told) + "\n")
    elif not found.passed:
        sys.stderr.write(one_line(f"held by the boot gate: {found.line.rstrip('.')}. Then: {advice}") + "\n")
    return 0 if found.passed else 1


def run(
    config: Path, out: Path, check: gate_judge.Check | None = None, moment: Callable[[], Moment] = gate_verdict.moment
) -> int:
    """Check, and leave the verdict in ``out``. Exit status 0 passed, 1 held.

    Args:
        check: as :func:`rackwell.probe.check.check`, options as keywords; moment: for tests.
    """
    with _only_one(out) as mine:
        if not mine:
            sys.stderr.write("another boot gate is at work here\n")
            return 1
        try:
            with _ended_by_signals():
                whole = _leave_verdict(config, out, check, moment)
        except EndedError as signalled:
            sys.stdout.write(f"gate interrupted: {signalled}; there is no verdict\n")
            return 1
    sys.stdout.write(f"gate {'held' if whole['held'] else 'passed'}: {whole['line']}\n")
    return 1 if whole["held"] else 0


def _leave_verdict(
    config: Path, out: Path, check: gate_judge.Check | None, moment: Callable[[], Moment]
) -> dict[str, Any]:
    began = moment()
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _unlink(out)
    _write(gate_verdict.partial(out), {"started": started, "pid": os.getpid(), "boot_id": began.boot_id})
    verdict = gate_judge.judge(config, gate_verdict.request(out).exists(), check, moment)
    now = moment()
    stamp = {"boot_id": now.boot_id, "init": now.init, "uptime": now.uptime, "started": started}
    whole = {"schema": gate_verdict.SCHEMA, **verdict, **stamp, "seconds": round(now.uptime - began.uptime, 3)}
    _write(out, whole)
    _unlink(gate_verdict.partial(out))
    _unlink(gate_verdict.request(out))
    return whole


@contextlib.contextmanager
def _only_one(out: Path) -> Iterator[bool]:
    handle = os.open(gate_verdict.lock(out), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    yield False
                    return
                time.sleep(0.05)
            else:
                break
        yield True
    finally:
        os.close(handle)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(number: int, _frame: FrameType | None) -> None:
        raise EndedError(f"{signal.Signals(number).name} while it was at work")

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file that everybody may read."""
    new = path.with_name(path.name + ".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        os.fchmod(handle, 0o644)
        json.dump(content, stream)
        stream.write("\n")
        stream.flush()
        os.fsync(handle)
    new.replace(path)


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
