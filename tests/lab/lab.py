#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The laboratory: Proxmox VE hosts and GPU containers as real LXC containers on this machine (see README.md)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rwlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
