# SPDX-License-Identifier: Apache-2.0
"""Reads what a diagnosis looks at: commands and files of a machine, each bounded in time and size. Changes nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError, run

#: seconds for one command: a driver that is stuck must not keep everything else from being read
COMMAND_S = 10
#: characters of one source; of a longer one the beginning and the end are kept
MOST = 200_000
_WIDTH = 4000


class Source(NamedTuple):
    """Something that was read.

    Attributes:
        name: ``journal``, ``unit``, … ``earlier``: it tells of an earlier start than the present one.
        unread: why there is nothing, or less than there should be; empty when all is well.
        look: whether the rules are held against it.
    """

    name: str
    text: str
    unread: str = ""
    earlier: bool = False
    look: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For the result."""
        return dict(self._asdict())


class Answer(NamedTuple):
    """What a command said; ``why`` is empty when it ended well."""

    text: str
    why: str


def clipped(text: str, most: int = MOST) -> str:
    """A text of at most about so many characters: its beginning and its end, and how much lies between."""
    lines = [line[:_WIDTH] for line in text.splitlines()]
    if sum(map(len, lines)) + len(lines) <= most:
        return "\n".join(lines)
    head: list[str] = []
    tail: list[str] = []
    left, right = most // 3, most - most // 3
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            break
        head.append(line)
    for line in reversed(lines[len(head) :]):
        right -= len(line) + 1
        if right < 0:
            break
        tail.append(line)
    out = len(lines) - len(head) - len(tail)
    return "\n".join([*head, f"... {out} lines left out", *reversed(tail)])


class Reader:
    """Asks one machine.

    Args:
        seconds: for everything together; what is asked later gets no answer.
        prefix: in front of every command: ``pct exec VMID --`` asks a container from its host.
    """

    def __init__(
        self,
        seconds: float,
        prefix: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        runner: Callable[..., Any] = run,
    ) -> None:
        self._prefix = list(prefix)
        self._clock = clock
        self._end = clock() + seconds
        self._runner = runner

    def ask(self, *command: str, seconds: float = COMMAND_S) -> Answer:
        """Run a command that only looks; what it writes on stderr counts too."""
        left = min(seconds, self._end - self._clock())
        if left <= 0:
            return Answer("", "not asked: the time for all of it was over")
        words = [*self._prefix, *command]
        try:
            done = self._runner(words, left, env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"})
        except DeadlineError as error:
            return Answer(error.output, f"{command[0]} did not answer in {error.seconds:.0f} s")
        except OSError as error:
            return Answer("", f"{words[0]}: {error.strerror}")
        if done.returncode:
            said = (done.stdout.strip().splitlines() or ["no word"])[-1]
            return Answer(done.stdout, f"{command[0]} ended with status {done.returncode}: {said[:200]}")
        return Answer(done.stdout, "")

    def file(self, path: str, most: int = MOST) -> Answer:
        """A file's text, or the end of a long one."""
        return self.ask("tail", "-c", str(most), "--", path)

    def source(self, name: str, *command: str, head: str = "", look: bool = True) -> Source:
        """A command as a source; ``head`` is a first line that says what it is."""
        answer = self.ask(*command)
        text = clipped(answer.text)
        return Source(name, "\n".join(filter(None, [head, text])) if text.strip() else "", answer.why, look=look)


def values(text: str) -> dict[str, str]:
    """``key=value`` lines, as of ``systemctl show``."""
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def records(text: str) -> list[dict[str, Any]]:
    """The entries of ``journalctl -o json``; what is none is left out."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def message(entry: dict[str, Any]) -> str:
    """The text of a journal's entry. One that is no UTF-8, or holds control characters, comes as a list of bytes."""
    value = entry.get("MESSAGE")
    if isinstance(value, list):
        value = bytes(value).decode("utf-8", "replace")
    # a progress bar overwrites itself
    return value.rsplit("\r", 1)[-1] if isinstance(value, str) else ""


def number(text: Optional[str]) -> Optional[int]:
    """A whole number, or None."""
    try:
        return int(text or "")
    except ValueError:
        return None
