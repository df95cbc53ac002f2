# SPDX-License-Identifier: Apache-2.0
"""A log, or a command's output, against what is known of failures of these machines.

Rules are data in ``catalog/rules/diagnose`` (`rules`). A text is read once (`reading`, `scan`), whatever its size; the
lines that were found are held against the rules (`evaluate`), and what follows from another is put below it (`order`).
"""

from __future__ import annotations

from rackwell.diagnose.facts import Facts
from rackwell.diagnose.findings import Diagnosis, Finding
from rackwell.diagnose.run import Diagnoser, Text, diagnose, diagnoser

__all__ = ["Diagnoser", "Diagnosis", "Facts", "Finding", "Text", "diagnose", "diagnoser"]
