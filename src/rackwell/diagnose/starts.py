# SPDX-License-Identifier: Apache-2.0
"""Where a new start of the server begins in a text: what stands before is of an earlier one."""

from __future__ import annotations

import re

from rackwell.diagnose.blocks import Origin
from rackwell.diagnose.patterns import compiled

_UNIT = (
    r"^(?P<what>Starting|Started) (?P<unit>[\w.@:\\-]{1,120}\.service|"
    r"[\w .,()'-]{1,80}(?:[Ss]erver|SGLang|sglang|vLLM|LLM)[\w .,()'-]{0,60})"
)
_ENDED = (
    r"^(?P<unit>[\w.@:\\-]{1,120}\.service): (?:Main process exited|Failed with result|Deactivated successfully|"
    r"Scheduled restart job|Control process exited|Start request repeated|start operation timed out|Failed to start)"
)
_STOPPED = r"^Stopped (?P<unit>[\w.@:\\-]{1,120}\.service)"
_DIED = r"kill_process_tree called|Received sigquit from a child process"
_ARGUMENTS = r"server_args=ServerArgs\(|^(?:vLLM API server version |non-default args: |Launching server with args)"
_BOOT = r"^Linux version \d+\.\d+|^-- (?:Boot [0-9a-f]{32}|Reboot) --"

PATTERNS = (_UNIT, _ENDED, _STOPPED, _DIED, _ARGUMENTS, _BOOT)

_SERVER = re.compile(r"sglang|vllm|llm|inference|rackwell|glm|model|serv(?:e|ing)\b|openai|gpu", re.IGNORECASE)
_SYSTEM = re.compile(r"systemd-|user@|session-|dbus|apt-|getty|cron|ssh|pve|nvidia-persist|gpu-gate")


class Starts:
    """Follows the starts of one server. `first` is the number of the line at which the present one began."""

    def __init__(self) -> None:
        self.number = 0
        self.first = 1
        self._unit = ""
        self._phase = ""
        self._ended = False
        self._arguments = 0
        self._invocations: dict[str, str] = {}
        self._boot = ""

    def origin(self, origin: Origin, number: int) -> str:
        """A record of a journal: "boot" or "start" where a new one begins with it."""
        if origin.boot and origin.boot != self._boot:
            known, self._boot = self._boot, origin.boot
            if known:
                self._invocations.clear()
                return self._new("boot", number)
        unit = origin.unit
        if unit and origin.invocation and is_server(unit):
            known = self._invocations.get(unit, "")
            if known != origin.invocation:
                self._invocations[unit] = origin.invocation
                if known:
                    self._unit, self._phase, self._arguments = unit, "starting", 0
                    return self._new("start", number)
        return ""

    def line(self, pattern: str, message: str, rank: str, number: int) -> str:
        """A line in which one of `PATTERNS` was found: "boot" or "start" where a new one begins with it."""
        if pattern == _BOOT:
            return self._new("boot", number) if number > 1 else ""
        if pattern == _UNIT:
            return self._started(message, number)
        if pattern == _ARGUMENTS:
            return "" if rank else self._with_arguments(number)
        if pattern == _DIED:
            self._ended = True
        else:
            found = compiled(pattern).search(message)
            unit = found["unit"] if found else ""
            if unit and is_server(unit):
                self._ended, self._unit, self._phase = True, unit, ""
        return ""

    def _started(self, message: str, number: int) -> str:
        found = compiled(_UNIT).search(message)
        if found is None or not is_server(found["unit"]):
            return ""
        unit, what = found["unit"].rstrip("."), found["what"]
        if self._invocations.get(unit):
            return ""  # the invocations say it better
        if what == "Started" and self._phase == "starting" and self._unit == unit:
            self._phase = "started"
            return ""
        anew = self._unit == unit or self._ended or (self._arguments and not self._unit)
        self._unit, self._phase, self._arguments = unit, what.lower(), 0
        return self._new("start", number) if anew else ""

    def _with_arguments(self, number: int) -> str:
        last, self._arguments = self._arguments, number
        if self._ended or (last and number - last > 20):
            if self._phase and not last:
                return ""
            self._phase = ""
            return self._new("start", number, keep=number)
        return ""

    def _new(self, kind: str, number: int, keep: int = 0) -> str:
        self.number += 1
        self.first = number
        self._ended = False
        self._arguments = keep
        return kind


def is_server(unit: str) -> bool:
    """Whether a unit is one that serves models, as far as its name says."""
    return bool(_SERVER.search(unit)) and not _SYSTEM.search(unit)
