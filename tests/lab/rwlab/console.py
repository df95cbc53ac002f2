# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: what step, where, how many seconds since the command began."""

from __future__ import annotations

import sys
import threading
import time

_began = time.monotonic()
_lock = threading.Lock()
quiet = False


def say(where: str, what: str) -> None:
    """Print one progress line. Threads may call it."""
    if quiet:
        return
    with _lock:
        print(f"[lab {time.monotonic() - _began:5.1f}s] {where}: {what}", file=sys.stderr, flush=True)
