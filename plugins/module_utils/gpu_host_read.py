# SPDX-License-Identifier: Apache-2.0
"""Reading what may never answer: the files of a driver whose locks are stuck, the configuration of a dead device.

Each part is read in a forked process that is left behind when it hangs; the parts after it are still read.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Callable, Optional

Part = tuple[str, Callable[[], Any]]

#: seconds in which a killed reader has to be gone; one that is stuck in the kernel is left
GRACE_S = 5.0


def read_parts(parts: list[Part], seconds: float) -> tuple[dict[str, Any], dict[str, str]]:
    """What each part gave (as JSON carries it), and why those gave nothing that did not.

    Args:
        parts: name and function. seconds: how long one of them may take.
    """
    values: dict[str, Any] = {}
    unread: dict[str, str] = {}
    left = list(parts)
    while left:
        told, why = _run(left, seconds)
        for answer in told:
            if "value" in answer:
                values[answer["part"]] = answer["value"]
            else:
                unread[answer["part"]] = answer["why"]
        left = left[len(told) :]
        if left:
            unread[left[0][0]] = why
            left = left[1:]
    return values, unread


def text(path: str) -> Optional[str]:
    """A small file's content without the white space around; None when there is none or it may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(1 << 20).strip()
    except OSError:
        return None


def names(directory: str) -> Optional[list[str]]:
    """What is in a directory, sorted; None when it is not there."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return None


def _run(parts: list[Part], seconds: float) -> tuple[list[dict[str, Any]], str]:
    """The answers of the first parts in their order, and why there are no more."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(parts, writer)
    os.close(writer)
    answers: list[dict[str, Any]] = []
    rest = b""
    why = "the process that read it died"
    try:
        end = time.monotonic() + seconds
        while len(answers) < len(parts):
            if not select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
                why = "it did not answer in %g s" % seconds
                break
            data = os.read(reader, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                answers.append(json.loads(line))
                end = time.monotonic() + seconds
    finally:
        os.close(reader)
        _end(pid)
    return answers, why


def _answer(parts: list[Part], channel: int) -> None:
    """The forked side: answers, one a line, and never returns."""
    try:
        for name, function in parts:
            try:
                answer = {"part": name, "value": function()}
            except (OSError, ValueError) as error:
                answer = {"part": name, "why": str(error)}
            data = json.dumps(answer).encode() + b"\n"
            while data:
                data = data[os.write(channel, data) :]
    finally:
        # neither the module's cleaning up nor its output may happen twice
        os._exit(0)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + GRACE_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
