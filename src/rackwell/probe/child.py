# SPDX-License-Identifier: Apache-2.0
"""Runs a function in a subprocess that can be killed, since a call of the driver may never return.

The function is named ``module:function`` and called as ``function(emit, arguments)`` in a fresh interpreter (never a
fork: CUDA does not survive one). What it emits, JSON objects, reaches the parent at once, so that after a hang the
parent knows what was done and what was being done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from rackwell.probe import launch

Emit = Callable[[dict[str, Any]], None]

#: how long a child's interpreter may take to come up, seconds; its function's deadline counts from then
START_DEADLINE = 60.0
#: how long a killed child may take to go before it is called stuck in the kernel, seconds
GRACE = 5.0
_STDERR_TAIL = 2000
_STARTED: dict[str, Any] = {"started": True}
_FINISHED: dict[str, Any] = {"finished": True}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a child ended.

    Attributes:
        events: what it emitted, in order.
        state: ``done``; ``hung`` = it passed its deadline and was killed; ``stuck`` = not even SIGKILL ended it (state
            D in the kernel); ``crashed`` = it ended by itself before its function returned.
        returncode: the exit status, negative for a signal, None when stuck.
        where: the kernel function that a hung child was in, when /proc told.
        stderr: the end of what it wrote to stderr.
    """

    events: tuple[dict[str, Any], ...]
    state: str
    returncode: int | None = None
    where: str = ""
    stderr: str = ""

    def describe(self) -> str:
        """One clause for people."""
        if self.state == "stuck":
            return "did not end even when killed: it is stuck in the kernel (state D)" + _in(self.where)
        if self.state == "hung":
            return "did not return before the deadline" + _in(self.where)
        if self.state == "crashed":
            last = self.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
            code = self.returncode or 0
            how = f"signal {-code}" if code < 0 else f"status {code}"
            return f"ended with {how}: {last[0]}"
        return "returned"


def command(target: str, arguments: Mapping[str, Any], channel: int) -> list[str]:
    """The command line of a child that emits on the inherited file descriptor ``channel``."""
    return [sys.executable, "-m", "rackwell.probe.child", str(channel), target, json.dumps(dict(arguments))]


def environment() -> dict[str, str]:
    """A child's environment: GPUs are numbered as nvidia-smi numbers them."""
    return {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def run(target: str, arguments: Mapping[str, Any], deadline: float, on_event: Emit | None = None) -> Outcome:
    """Run ``target`` and wait for it no longer than ``deadline`` seconds; ``on_event`` sees each event as it comes."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as stderr, os.fdopen(reader, "rb", buffering=0) as channel:
        try:
            process = subprocess.Popen(
                command(target, arguments, writer),
                stdin=subprocess.DEVNULL,
                stdout=stderr,  # a library that prints must not reach the report
                stderr=stderr,
                pass_fds=(writer,),
                start_new_session=True,
                env=environment(),
            )
        finally:
            os.close(writer)
        try:
            told, finished, end = _collect(channel, deadline, on_event)
            try:
                code = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                where = kernel_function(process.pid)
                gone = kill(process)
                return Outcome(told, "hung" if gone else "stuck", process.returncode, where, _tail(stderr))
            return Outcome(told, "done" if finished and code == 0 else "crashed", code, "", _tail(stderr))
        except BaseException:
            kill(process)
            raise


def kill(process: subprocess.Popen[bytes]) -> bool:
    """SIGKILL to the child's group. False when it does not go: then it is abandoned."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        return False
    return True


def kernel_function(pid: int) -> str:
    """What the process waits for: its state and, where the kernel shows it, the function."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    try:
        function = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8").strip("0 \n")
    except OSError:
        function = ""
    return f"state {state}" + (f", in {function}" if function else "")


def _in(where: str) -> str:
    return f" ({where})" if where else ""


def _collect(
    channel: IO[bytes], deadline: float, on_event: Emit | None
) -> tuple[tuple[dict[str, Any], ...], bool, float]:
    """The events, whether the function returned, and when (monotonic) its time is up."""
    events: list[dict[str, Any]] = []
    finished = False
    end = time.monotonic() + START_DEADLINE
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0 and selector.select(left):
            data = channel.read(65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for event in map(json.loads, lines):
                if event == _STARTED:
                    end = time.monotonic() + deadline
                elif event == _FINISHED:
                    finished = True
                else:
                    events.append(event)
                    if on_event:
                        on_event(event)
    return tuple(events), finished, end


def _tail(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _STDERR_TAIL))
    return stream.read().decode(errors="replace")


def emitter(channel: int) -> Emit:
    """Emit to a file descriptor: one JSON object a line, written in one piece."""

    def emit(event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        while data:
            data = data[os.write(channel, data) :]

    return emit


def main(argv: list[str]) -> int:
    """The child's side: ``CHANNEL MODULE:FUNCTION ARGUMENTS``."""
    channel, target, arguments = argv
    launch.die_with_parent(signal.SIGKILL)
    module, _, function = target.partition(":")
    emit = emitter(int(channel))
    run_it = getattr(importlib.import_module(module), function)
    emit(_STARTED)
    run_it(emit, json.loads(arguments))
    emit(_FINISHED)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
