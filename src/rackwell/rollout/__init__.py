# SPDX-License-Identifier: Apache-2.0
"""Rolls a build across hosts: order, gates, return, and a journal from which a dead run is taken up again."""
