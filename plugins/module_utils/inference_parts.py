# SPDX-License-Identifier: Apache-2.0
"""The engine's processes, as /proc shows them: its parent, and those of its descendants that carry its name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils.inference_ports import read_proc

#: how SGLang names the processes that it cannot serve without: sglang::scheduler_TP0, sglang::detokenizer
_MARK = "sglang::"
_SERVER = "server"


class Part(NamedTuple):
    """A process. ``started`` tells it from a later one of the same id; ``state`` is that of proc(5)."""

    pid: int
    started: int
    parent: int
    name: str
    state: str

    @property
    def gone(self) -> bool:
        """Whether it has ended; its parent may not have looked yet."""
        return self.state in ("Z", "X", "x")

    @property
    def stopped(self) -> bool:
        """Whether a signal stopped it. One that a debugger holds is in state t, and that is meant."""
        return self.state == "T"


def parse_stat(text: str) -> Part | None:
    """The process in the text of /proc/PID/stat; its name may hold blanks and parentheses."""
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    try:
        return Part(int(pid), int(fields[19]), int(fields[1]), name, fields[0])
    except (ValueError, IndexError):
        return None


def processes(proc: str = "/proc") -> list[Part]:
    """All processes that can be seen."""
    found = (parse_stat(read_proc(f"{proc}/{entry}/stat")) for entry in os.listdir(proc) if entry.isdigit())
    return [part for part in found if part is not None]


def parts_of(main: int, everything: Iterable[Part], proc: str = "/proc") -> dict[int, Part]:
    """The engine's parent and its named descendants, by process id; without the parent when it is gone."""
    children: dict[int, list[Part]] = {}
    known: dict[int, Part] = {}
    for part in everything:
        known[part.pid] = part
        children.setdefault(part.parent, []).append(part)
    found: dict[int, Part] = {}
    if main in known:
        found[main] = known[main]._replace(name=_SERVER)
    waiting = [main]
    while waiting:
        for part in children.get(waiting.pop(), []):
            waiting.append(part.pid)
            if part.name.startswith(_MARK):
                # the kernel keeps fifteen characters of a name; an ended process has no command line any more
                told = read_proc(f"{proc}/{part.pid}/cmdline").replace("\0", " ").strip() or part.name
                found[part.pid] = part._replace(name=told.removeprefix(_MARK)[:40])
    return found
