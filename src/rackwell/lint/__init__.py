# SPDX-License-Identifier: Apache-2.0
"""Profiles and builds held against what is known of the engine before a host is touched.

Two kinds of knowledge: *tables*, read from an engine's own source (`tables`: flags, choices, environment), and *rules*,
which are data in ``catalog/rules/lint`` (`rules`). `lint` holds one profile and its build against both.
"""

from __future__ import annotations

from rackwell.lint.context import Context
from rackwell.lint.findings import Finding
from rackwell.lint.run import Linter

__all__ = ["Context", "Finding", "Linter"]
