# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: ``python -m rackwell_lab_engine FLAGS``, for trying it without the patched release."""

from __future__ import annotations

import sys

from rackwell_lab_engine.main import main

if __name__ == "__main__":
    sys.exit(main())
