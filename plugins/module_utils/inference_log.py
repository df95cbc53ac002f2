# SPDX-License-Identifier: Apache-2.0
"""Reads the engine's log lines: which one says that this start is lost, and which ones tell a person why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# The process may live on for a minute after one of these, or answer "fired up" from another server's port.
_FATAL = re.compile(
    r"Received sigquit from a child process"
    r"|SIGQUIT received\."
    r"|Scheduler hit an exception"
    r"|error while attempting to bind on address"
    r"|Initialization failed\. warmup error"
    r"|: error: (unrecognized arguments|argument |the following arguments)"
)
#: more lines than a start writes: a server with as many has been serving for long
MANY_LINES = 20_000
#: begins what `rackwell.probe require` says when the unit may not start
_HELD = "held by the boot gate: "
_READY = "The server is fired up and ready to roll!"
# written on every way out, after whatever mattered
_NOISE = re.compile(r"kill_process_tree called|it/s\]|s/it\]|\?it/s|\"(GET|POST|PUT) \S+ HTTP/|^\s*$")
_DROPPED = re.compile(r"it/s\]|s/it\]|\?it/s|\"(GET|POST|PUT) \S+ HTTP/")
_USAGE = re.compile(r"^usage: |^\s+\[?--?[\w-]+|^\s+\[-h\]|^\s+.*\]\s*$")
_RECORD = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]")
_BAD = re.compile(r"error|exception|refused|denied|failed|killed|not found|out of memory", re.IGNORECASE)
# quoted as Python or a shell quotes it: a key may hold either quote
_QUOTED = r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
_SECRET = re.compile(rf"((?:admin_)?api_key=)(?:{_QUOTED})|(--(?:admin-)?api-key[= ])(?:{_QUOTED}|\S+)")
_TRACEBACK = "Traceback (most recent call last)"


def first_fatal(lines: Iterable[str]) -> str | None:
    """The first line that says that the engine will not serve; ``None`` while there is none."""
    return next((line for line in lines if _FATAL.search(line)), None)


def said_ready(lines: Sequence[str]) -> bool:
    """Whether the engine said that it is ready, now or before the :data:`MANY_LINES` last lines.

    It also says so beside a port that it could not have.
    """
    return len(lines) >= MANY_LINES or any(_READY in line for line in lines)


def redact(line: str) -> str:
    """The line without API keys: the engine logs its arguments in clear."""
    return _SECRET.sub(lambda found: (found.group(1) or found.group(2)) + "***", line)


def _first_traceback(lines: Sequence[str]) -> list[str]:
    """The first traceback, from the record that holds it to the exception's own text."""
    start = next((i for i, line in enumerate(lines) if _TRACEBACK in line), None)
    if start is None:
        return []
    block = [lines[start]]
    for line in lines[start + 1 :]:
        # a new record, or the blank line that ends a traceback: other ranks' tracebacks say the same again
        if _RECORD.match(line) or not line.strip() or _NOISE.search(line):
            break
        block.append(line)
    return block


def telling(lines: Sequence[str], limit: int = 24) -> list[str]:
    """The lines that tell why a start failed, oldest first.

    The first traceback of the first rank when there is one, else the lines that speak of an error, else the last ones.
    Never the final ``kill_process_tree``, progress bars, access lines or the usage text.
    """
    block = _first_traceback(lines)
    if block:
        if len(block) > limit:
            block = [block[0], "  ...", *block[len(block) - limit + 2 :]]
        return [redact(line) for line in block]
    kept = [line for line in lines if not _NOISE.search(line) and not _USAGE.search(line)]
    fatal = next((i for i, line in enumerate(kept) if _FATAL.search(line)), None)
    if fatal is not None:
        # what comes after it is the way out, and can be a lie ("fired up")
        kept = kept[: fatal + 1]
    bad = [line for line in kept if _BAD.search(line) and "server_args=" not in line]
    return [redact(line) for line in (bad[-limit:] or kept[-limit:])]


def last_error(lines: Sequence[str]) -> str:
    """One line that names the error; empty when no line does."""
    lines = telling(lines)
    return lines[-1].strip() if lines else ""


#: what the controller gets of a start, for its diagnosis: so many lines from the beginning, up to where it fails, and
#: from the end; each cut to so many characters
_HEAD, _BEFORE, _AFTER, _TAIL, _WIDTH = 150, 150, 150, 100, 1000


def for_diagnosis(lines: Sequence[str], scale: int = 1) -> list[str]:
    """A start's lines for its diagnosis, bounded: the beginning, what surrounds the first failure, and the end.

    Args:
        scale: so many times as many as go into the result of a failed start.

    Returns:
        The lines without progress bars, access lines, usage text and secrets; what was left out is said.
    """
    kept = [redact(line[:_WIDTH]) for line in lines if not _DROPPED.search(line) and not _USAGE.search(line)]
    bad = next((i for i, line in enumerate(kept) if _TRACEBACK in line or _FATAL.search(line)), len(kept))
    wanted = [
        range(_HEAD * scale),
        range(bad - _BEFORE * scale, bad + _AFTER * scale),
        range(len(kept) - _TAIL * scale, len(kept)),
    ]
    places = sorted({place for part in wanted for place in part if 0 <= place < len(kept)})
    found: list[str] = []
    for place, before in zip(places, [-1, *places]):
        if place > before + 1:
            found.append(f"... {place - before - 1} lines left out")
        found.append(kept[place])
    return found


def held_by(lines: Sequence[str]) -> str:
    """Why the boot gate held this start; of a condition that said nothing of the kind, its last line."""
    told = [line for line in lines if line.startswith(_HELD)] or [line for line in lines if line.strip()]
    return told[-1].strip() if told else "its ExecCondition did not hold, and said nothing"
