#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The laboratory: Proxmox VE hosts and GPU containers as real LXC containers on this machine (see README.md)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

# until `main` takes it: nothing has begun yet that could be left half-way
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rwlab.cli import main  # noqa: E402 - it takes long enough to be interrupted

if __name__ == "__main__":
    sys.exit(main())
