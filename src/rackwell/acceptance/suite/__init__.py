# SPDX-License-Identifier: Apache-2.0
"""The acceptance suite. It imports nothing else of rackwell: what it asserts was not worked out by what it judges."""
