# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: tells the stand-in of NVML how busy the GPUs are.

One line ``<unix time s> <utilisation 0..100> <joules above idle per GPU so far> <memory MiB per GPU>``, replaced by
rename; the reader derives utilisation, power, energy counter and memory from it, and takes an old line for no engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

FILE = Path(os.environ.get("RACKWELL_LAB_LOAD") or "/dev/shm/rackwell-lab-load")
STATE = Path("/proc/driver/nvidia/rackwell-lab-gpus.json")
MEMORY_MIB = 77400  # what the start's log says: 57.2 GB of weights, 18.4 GB of KV cache


def busy_watts(state: Path = STATE) -> float:
    """Power above idle of a fully busy GPU of the laboratory, watts."""
    try:
        gpu: dict[str, Any] = json.loads(state.read_text(encoding="utf-8"))["gpus"][0]
        return float(gpu["busy_w"]) - float(gpu["idle_w"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 162.0


def joules_so_far(path: Path) -> float:
    """What an earlier run counted: the GPU's energy counter goes on over a restart of the server."""
    try:
        return float(path.read_text(encoding="ascii").split()[2])
    except (OSError, ValueError, IndexError):
        return 0.0


class LoadFile:
    """Adds up what the steps used, and writes it down twice a second, idle or not."""

    def __init__(self, path: Path = FILE, period: float = 0.5) -> None:
        self.path = path
        self.period = period
        self.joules = joules_so_far(path)
        self._watts = busy_watts()
        self._begun = time.monotonic()
        self._sum = 0.0
        self._level: float | None = None

    def level(self, utilisation: float) -> None:
        """From now on the GPUs are used by so many percent, until it is said otherwise. Not to be mixed with steps."""
        now = time.monotonic()
        if self._level is not None:
            self.joules += (now - self._begun) * self._level / 100 * self._watts
        self._level = utilisation
        self._line(now, utilisation)

    def step(self, seconds: float, utilisation: float) -> None:
        """A step of ``seconds`` ran at ``utilisation`` percent."""
        self._sum += seconds * utilisation
        self.joules += seconds * utilisation / 100 * self._watts
        if time.monotonic() - self._begun >= self.period:
            self.write()

    def write(self) -> None:
        """Write the mean utilisation since the last line."""
        now = time.monotonic()
        self._line(now, min(100.0, self._sum / max(now - self._begun, 1e-3)))

    def _line(self, now: float, utilisation: float) -> None:
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        # the laboratory's picture of power is worth no failed request (another user's file, no /dev/shm)
        with contextlib.suppress(OSError):
            temporary.write_text(
                f"{time.time():.3f} {utilisation:.1f} {self.joules:.3f} {MEMORY_MIB}\n", encoding="ascii"
            )
            temporary.replace(self.path)
        self._begun = now
        self._sum = 0.0

    async def keep(self) -> None:
        """Write when no step does: an idle server still holds its memory. Runs until cancelled."""
        while True:
            await asyncio.sleep(self.period)
            if self._level is not None:
                self.level(self._level)
            elif time.monotonic() - self._begun >= self.period:
                self.write()
