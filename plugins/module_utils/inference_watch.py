# SPDX-License-Identifier: Apache-2.0
"""Ends an engine that lives on without serving, so that systemd starts it anew.

The engine's own watchdogs leave three cases out: a dead detokenizer (the port stays open for a minute, and nothing
answers), a process that a signal stopped (its watchdog is stopped with it), and a hang of which no part ends. A server
that is merely busy is none of them: its processes are there and run, and it says that it is healthy as long as any
token comes out. So what is gone or stopped counts after seconds, and silence only after many minutes.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_client import Client
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_parts import Part, parts_of, processes
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import System

#: what every line of the watch about an engine begins with; rules of the diagnosis look for it
SAYS = "rackwell's watch: "
#: seconds between two looks at the processes
LOOK_S = 2.0
#: the engine tells of a dead part after a second and needs some more to write its reasons; it may also end by itself
GRACE_S = 10.0
#: seconds between two questions, each of which may take the engine's own twenty seconds
ASK_S = 60.0
#: without one answer for so long it hangs; longer than what compiles kernels at a first request
HANG_S = 900
_JOURNAL = "/run/systemd/journal/socket"
_SETTING = re.compile(r"^(Host|Port|HangTimeout)=(.*)$")


class Settings(NamedTuple):
    """What the unit file tells the watch in its section X-Rackwell, which systemd leaves alone."""

    host: str = "127.0.0.1"
    port: int = 30000
    hang_s: float = HANG_S


def settings_in(unit: str) -> Settings:
    """The settings in the text of a unit file; what is not there or is no number has its default."""
    _, _, section = unit.partition("\n[X-Rackwell]\n")
    told = {found[1]: found[2] for line in section.splitlines() if (found := _SETTING.match(line.strip()))}
    default = Settings()

    def number(name: str, otherwise: float) -> float:
        text = told.get(name, "")
        return float(text) if text.isdigit() else otherwise

    host = told.get("Host") or default.host
    return Settings(host, int(number("Port", default.port)), number("HangTimeout", default.hang_s))


class Judge:
    """Says when an engine that was ready once is lost. Time is given, so that a test needs none."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self._known: dict[int, Part] = {}
        self._since: dict[int, float] = {}
        self._healthy = now

    def heard(self, now: float) -> None:
        """It answered that it is healthy."""
        self._healthy = now

    def lost(self, parts: Mapping[int, Part], now: float) -> str:
        """Why it is lost, in one line; empty while it is not.

        Args:
            parts: those of now. One that was seen in an earlier call counts for good.
        """
        for pid, part in parts.items():
            if not part.gone:
                self._known.setdefault(pid, part)
        for pid, known in self._known.items():
            part = parts.get(pid)
            ended = part is None or part.gone or part.started != known.started
            if not ended and part is not None and not part.stopped:
                self._since.pop(pid, None)
                continue
            since = self._since.setdefault(pid, now)
            if now - since >= GRACE_S:
                what = "is gone, and the others wait for it" if ended else "was stopped by a signal, and serves nobody"
                return f"{known.name} (process {pid}) {what}"
        if now - self._healthy >= self._settings.hang_s:
            return f"its processes are there, and for {now - self._healthy:.0f} s it did not say that it is healthy"
        return ""


def say(unit: str, invocation: str, text: str, path: str = _JOURNAL) -> None:
    """Write a line that belongs to a start of the server, so that whoever reads that start's journal finds it."""
    fields = {
        "MESSAGE": SAYS + text,
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "rackwell-watch",
        "UNIT": unit,
        "INVOCATION_ID": invocation,
    }
    data = "".join(f"{name}={value}\n" for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.sendto(data.encode(), path)
    except OSError:
        # what is to be done does not depend on its being told
        return


class Watch:
    """Watches one start of the unit, to its end.

    Args:
        journal: the host's own file of records. The others are for tests.
    """

    def __init__(
        self,
        unit: str,
        system: System,
        settings: Settings,
        journal: str,
        parts: Callable[[int], dict[int, Part]] = lambda main: parts_of(main, processes()),
        client: Callable[[Settings], Any] = lambda settings: Client(settings.host, settings.port),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        tell: Callable[[str, str, str], None] = say,
    ) -> None:
        self.unit = unit
        self._system = system
        self._settings = settings
        self._journal = journal
        self._parts = parts
        self._client = client(settings)
        self._clock = clock
        self._sleep = sleep
        self._tell = tell

    def run(self) -> str:
        """Watch until this start is over.

        Returns:
            Why it was ended from here; empty when it ended otherwise.
        """
        state = self._system.show(self.unit)
        while state.active == "activating":
            # systemd waits before it starts anew, and starts what is wanted at once
            self._sleep(LOOK_S)
            state = self._system.show(self.unit)
        main = state.main_pid
        if not main or not self._ready(main):
            return ""
        judge = Judge(self._settings, self._clock())
        asked = self._clock()
        while True:
            parts = self._parts(main)
            if main not in parts or parts[main].gone:
                return ""
            why = judge.lost(parts, self._clock())
            if why and self._end(state.invocation, why):
                return why
            if self._clock() - asked >= ASK_S:
                if self._client.healthy().status == 200:
                    judge.heard(self._clock())
                asked = self._clock()
            self._sleep(LOOK_S)

    def _ready(self, main: int) -> bool:
        """Wait until it is healthy for the first time: how long a start may take is not for the watch to say."""
        while main in self._parts(main):
            if self._client.healthy().status == 200:
                return True
            self._sleep(LOOK_S)
        return False

    def _end(self, invocation: str, why: str) -> bool:
        """Kill all of it, unless it is being stopped: then it may wait for its last requests."""
        state = self._system.show(self.unit)
        if state.active != "active" or state.invocation != invocation:
            return False
        self._tell(self.unit, invocation, f"{why}; it is ended, so that it starts anew")
        # a full disk does not keep a lost server up
        with contextlib.suppress(OSError):
            files.append_record(self._journal, event="watch-ended", unit=self.unit, why=why)
        self._system.systemctl("kill", "--signal=SIGKILL", self.unit)
        return True
