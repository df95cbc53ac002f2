# SPDX-License-Identifier: Apache-2.0
"""Acceptance: the declared state, asserted on the machines by a suite of tests that uses none of rackwell's own code.

`expected` turns the declaration into plain data, `running` has pytest hold the machines against it, `result` reads what
came of it. `suite` is what pytest runs: it imports nothing but itself, pytest and testinfra.
"""
