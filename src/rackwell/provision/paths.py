# SPDX-License-Identifier: Apache-2.0
"""Where the data that ships with rackwell lies."""

from __future__ import annotations

from rackwell.shipped import catalog, checkout, example

__all__ = ["catalog", "checkout", "example"]
