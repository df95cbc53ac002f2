# SPDX-License-Identifier: Apache-2.0
"""The laboratory's own code is found beside lab.py, as when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))
