# SPDX-License-Identifier: Apache-2.0
"""The laboratory's code. Standard library only: it runs before anything of rackwell is installed."""
