# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: no bound on the time of one, which on a loaded machine says nothing about the product."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rackwell", deadline=None)
settings.load_profile("rackwell")
