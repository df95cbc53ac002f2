# SPDX-License-Identifier: Apache-2.0
"""Becomes a command that gets SIGTERM when its parent dies: ``python -m rackwell.probe.launch COMMAND…``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when the thread that started it ends. Survives exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def main(argv: list[str]) -> NoReturn:
    die_with_parent()
    os.execvp(argv[0], argv)  # noqa: S606 - to become the command is this file's purpose


if __name__ == "__main__":
    main(sys.argv[1:])
