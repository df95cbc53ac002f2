# SPDX-License-Identifier: Apache-2.0
"""The verdict of the boot gate as it lies in /run, and what it is worth now.

It counts for the boot and the container start that it was given in, and for nothing else. The kernel's boot id alone
does not tell two starts of a container apart, so the start of its process 1 is kept too; CLOCK_BOOTTIME, which nobody
can set, stands for the time. Standard library only: this is read before every start of the server.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

SCHEMA = "rackwell.gate/1"
#: states of a verdict; only the first lets the server start
PASSED, HELD, ABSENT, RUNNING = "passed", "held", "absent", "running"
INTERRUPTED, OTHER_BOOT, DAMAGED = "interrupted", "other-boot", "damaged"
_VERDICTS = ("pass", "degraded", "fail")


@dataclasses.dataclass(frozen=True)
class Moment:
    """When something is said.

    Attributes:
        boot_id: the kernel's.
        uptime: CLOCK_BOOTTIME, seconds.
        init: start of process 1 of this container, clock ticks since boot; None when /proc does not show it.
    """

    boot_id: str
    uptime: float
    init: int | None


def moment(proc: Path = Path("/proc")) -> Moment:
    """Now, here."""
    boot_id = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        init: int | None = int(
            (proc / "1/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, ValueError, IndexError):
        init = None
    return Moment(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME), init)


@dataclasses.dataclass(frozen=True)
class Standing:
    """What the verdict is worth now: its state, the code of what is wrong (``ok``), and why, in one line."""

    state: str
    code: str
    line: str

    @property
    def passed(self) -> bool:
        """Whether the server may start."""
        return self.state == PASSED


def partial(out: Path) -> Path:
    """Marks a run that has not come to its verdict."""
    return out.with_suffix(".partial")


def request(out: Path) -> Path:
    """Asks the next run for the full check; goes with its verdict."""
    return out.with_suffix(".full")


def lock(out: Path) -> Path:
    """Held by a gate at work."""
    return out.with_suffix(".lock")


def standing(out: Path, now: Moment) -> Standing:
    """What the verdict in ``out`` is worth; never raises for what lies there."""
    try:
        text = out.read_bytes()
    except FileNotFoundError:
        return _without(out)
    except OSError as error:
        return Standing(DAMAGED, "gate-damaged", f"the boot gate's verdict {out} cannot be read: {error.strerror}")
    try:
        verdict = json.loads(text)
        wrong = _misshapen(verdict)
    except (ValueError, RecursionError):
        wrong = "it is no JSON"
    if wrong:
        return Standing(DAMAGED, "gate-damaged", f"the boot gate's verdict {out} is damaged: {wrong}")
    stale = _other_boot(verdict, now)
    if stale:
        return Standing(OTHER_BOOT, "gate-other-boot", f"the boot gate's verdict {out} is not of this boot: {stale}")
    if verdict["held"] or verdict["verdict"] == "fail":
        return Standing(HELD, one_line(verdict["code"]), one_line(verdict["line"]))
    return Standing(PASSED, one_line(verdict["code"]), one_line(verdict["line"]))


def one_line(text: str) -> str:
    """The text without line breaks and other control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def at_work(out: Path) -> bool:
    """Whether a gate holds the lock now."""
    try:
        handle = os.open(lock(out), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _without(out: Path) -> Standing:
    since = _since(partial(out))
    if at_work(out):
        return Standing(RUNNING, "gate-running", f"the boot gate is still at work{since}")
    if partial(out).exists():
        why = f"the boot gate{since} was ended before it had a verdict (log: journalctl -u rackwell-gpu-gate)"
        return Standing(INTERRUPTED, "gate-interrupted", why)
    return Standing(ABSENT, "gate-absent", "the boot gate has not run since this container started")


def _since(marker: Path) -> str:
    try:
        return one_line(f", begun at {json.loads(marker.read_bytes())['started']}")
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _misshapen(verdict: Any) -> str:
    """What of the verdict is not as a gate writes it; empty when nothing."""
    if not isinstance(verdict, dict) or verdict.get("schema") != SCHEMA:
        return f"it is not of the schema {SCHEMA}"
    for key, kind in (("held", bool), ("boot_id", str), ("code", str), ("line", str), ("started", str)):
        if not isinstance(verdict.get(key), kind):
            return f"'{key}' is missing or of another type"
    if verdict.get("verdict") not in _VERDICTS:
        return "'verdict' is none"
    uptime = verdict.get("uptime")
    if isinstance(uptime, bool) or not isinstance(uptime, (int, float)) or not uptime >= 0:
        return "'uptime' is no time"
    try:
        time.strptime(verdict["started"], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return "'started' is no time"
    return ""


def _other_boot(verdict: dict[str, Any], now: Moment) -> str:
    if verdict["boot_id"] != now.boot_id:
        return f"boot id {one_line(verdict['boot_id'])[:36]}, now {now.boot_id}"
    if verdict["uptime"] > now.uptime:
        return f"given {verdict['uptime']:.0f} s after a boot, now it is {now.uptime:.0f} s"
    then = verdict.get("init")
    if then is not None and now.init is not None and then != now.init:
        return "the container has been started again since"
    return ""
