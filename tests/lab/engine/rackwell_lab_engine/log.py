# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: log lines as SGLang writes them: its own to stderr, uvicorn's access lines to stdout."""

from __future__ import annotations

import sys
import time
from typing import TextIO


def _stamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _write(stream: TextIO, line: str) -> None:
    try:
        stream.write(line + "\n")
        stream.flush()
    except (BrokenPipeError, ValueError):
        # whoever read the log is gone; serving goes on
        return


def line(message: str, rank: int | None = None) -> None:
    """A line of SGLang's own logger. ``rank`` is given only when there is more than one."""
    tag = "" if rank is None else f" TP{rank}"
    _write(sys.stderr, f"[{_stamp()}{tag}] {message}")


def uvicorn(level: str, message: str) -> None:
    """A line of uvicorn's logger."""
    _write(sys.stderr, f"[{_stamp()}] {level + ':':<9} {message}")


def access(client: str, request_line: str, status: str) -> None:
    """An access line."""
    _write(sys.stdout, f'[{_stamp()}] INFO:     {client} - "{request_line}" {status}')
