# SPDX-License-Identifier: Apache-2.0
"""What the activation needs of systemd and its journal."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils.inference_log import MANY_LINES

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "InvocationID",
    "MainPID",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "UnitFileState",
    "ActiveEnterTimestampMonotonic",
)


class UnitState(NamedTuple):
    """A unit as systemd sees it now."""

    loaded: bool
    active: str
    invocation: str
    result: str
    exit_text: str
    enabled: bool
    started_monotonic: float
    main_pid: int = 0

    @property
    def ended(self) -> bool:
        """Whether the main process is gone."""
        return self.active in ("inactive", "failed")

    @property
    def held(self) -> bool:
        """Whether systemd left it down since its ExecCondition did not hold; that is no failure for systemd."""
        return self.ended and self.result == "exec-condition"


def parse_show(text: str) -> UnitState:
    """The state in the output of ``systemctl show``."""
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    # ExecMainCode is CLD_EXITED 1, CLD_KILLED 2, CLD_DUMPED 3 of waitid(2)
    status = values.get("ExecMainStatus", "")
    exit_text = {"1": f"exit code {status}", "2": f"signal {status}", "3": f"signal {status}, core dumped"}.get(
        values.get("ExecMainCode", ""), ""
    )
    return UnitState(
        loaded=values.get("LoadState") == "loaded",
        active=values.get("ActiveState", "inactive"),
        invocation=values.get("InvocationID", ""),
        result=values.get("Result", ""),
        exit_text=exit_text,
        enabled=values.get("UnitFileState", "").startswith("enabled"),
        started_monotonic=int(values.get("ActiveEnterTimestampMonotonic") or 0) / 1e6,
        main_pid=int(values.get("MainPID") or 0),
    )


def parse_journal(text: str) -> tuple[list[str], str]:
    """Messages and the last cursor in the output of ``journalctl -o json``."""
    lines: list[str] = []
    cursor = ""
    for record in text.splitlines():
        try:
            entry = json.loads(record)
        except ValueError:
            continue
        message = entry.get("MESSAGE")
        # the journal gives a message that is not UTF-8, or holds control characters, as a list of bytes
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace")
        if isinstance(message, str):
            # a progress bar overwrites itself with carriage returns
            lines.append(message.rsplit("\r", 1)[-1])
        cursor = entry.get("__CURSOR", cursor)
    return lines, cursor


def run_condition(command: list[str]) -> str:
    """Ask what the unit asks before it starts (its ExecCondition): empty when it may, else why not, in one line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd="/", check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode == 0:
        return ""
    return " ".join((done.stderr or done.stdout).split()) or f"{command[0]} ended with status {done.returncode}"


class CommandError(Exception):
    """A command of systemd failed; the text is what it said."""


class System:
    """The real systemd of this machine."""

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)

    def systemctl(self, *arguments: str) -> None:
        """Run systemctl.

        Raises:
            CommandError: it failed.
        """
        done = self._run("systemctl", *arguments)
        if done.returncode != 0:
            raise CommandError((done.stderr or done.stdout).strip() or f"systemctl {' '.join(arguments)} failed")

    def run_later(self, name: str, seconds: int, command: list[str]) -> None:
        """Have a command run after so many seconds, by a transient timer ``name``.

        Raises:
            CommandError: it cannot be ordered.
        """
        done = self._run(
            "systemd-run", "--quiet", "--collect", f"--unit={name}", f"--on-active={seconds}s", "--", *command
        )
        if done.returncode != 0:
            raise CommandError((done.stderr or done.stdout).strip() or "systemd-run failed")

    def run_now(self, name: str, command: list[str]) -> None:
        """Have a command run in a service ``name`` of its own, which outlives whoever asked for it.

        It waits for the fork, not for the end: a unit whose start is only queued still looks as if it had ended.

        Raises:
            CommandError: it cannot be ordered; one of that name still runs, among others.
        """
        done = self._run("systemd-run", "--quiet", "--collect", f"--unit={name}", "--", *command)
        if done.returncode != 0:
            raise CommandError((done.stderr or done.stdout).strip() or "systemd-run failed")

    def show(self, unit: str) -> UnitState:
        """The unit's present state."""
        return parse_show(self._run("systemctl", "show", unit, "--property=" + ",".join(_PROPERTIES)).stdout)

    def show_all(self, units: Sequence[str]) -> list[UnitState]:
        """The present states of several units, in their order."""
        told = self._run("systemctl", "show", *units, "--property=" + ",".join(_PROPERTIES)).stdout
        states = [parse_show(block) for block in told.split("\n\n")]
        # one that systemd does not tell of at all cannot be said to have ended
        return states if len(states) == len(units) else [self.show(unit) for unit in units]

    def journal_of(self, unit: str) -> list[str]:
        """What systemd itself wrote of a unit last, oldest first: why it could not run its program is only there."""
        command = ["journalctl", "--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE", "--lines=40"]
        return parse_journal(self._run(*command, "--unit=" + unit).stdout)[0]

    def condition_exit(self, unit: str) -> str:
        """How the unit's ExecCondition ended, as `UnitState.exit_text` has it."""
        text = self._run("systemctl", "show", unit, "--property=ExecCondition", "--value").stdout
        found = re.search(r"code=exited ; status=(\d+)", text)
        return f"exit code {found.group(1)}" if found else ""

    def drop_ins(self, unit: str) -> list[str]:
        """Files that change the unit beside its own."""
        return self._run("systemctl", "show", unit, "--property=DropInPaths", "--value").stdout.split()

    def journal(self, invocation: str, cursor: str = "") -> tuple[list[str], str]:
        """Lines of one start of a unit, after a cursor; without one the last ones only.

        A server that has been serving for weeks has written millions, which would not fit into memory.

        Args:
            invocation: the start's InvocationID; lines of other starts never appear.
        """
        command = ["journalctl", "--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE"]
        command.append("--after-cursor=" + cursor if cursor else f"--lines={MANY_LINES}")
        lines, last = parse_journal(self._run(*command, "_SYSTEMD_INVOCATION_ID=" + invocation).stdout)
        return lines, last or cursor
