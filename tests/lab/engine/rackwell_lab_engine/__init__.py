# SPDX-License-Identifier: Apache-2.0
"""STAND-IN for the SGLang engine, used by rackwell's laboratory only: it computes nothing.

It takes the real server's flags, answers the real server's endpoints, logs, refuses and dies as the real one was
seen to, and serves deterministic text at rates and with faults that a file sets. Its speeds mean nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
