# SPDX-License-Identifier: Apache-2.0
"""From measurements to a verdict: rules that find, a table that folds what follows, rows of checks."""

from __future__ import annotations

from rackwell.probe.judge.context import Context
from rackwell.probe.judge.verdict import judge

__all__ = ["Context", "judge"]
