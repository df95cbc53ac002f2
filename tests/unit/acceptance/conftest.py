# SPDX-License-Identifier: Apache-2.0
"""The rig of the commands: a site whose declaration holds, without machines."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("site", "topology", "cli"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
