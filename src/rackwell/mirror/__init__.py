# SPDX-License-Identifier: Apache-2.0
"""A mirror: one directory with all that a site needs from outside, told by hash, on disk or behind any web server.

`store` reads and writes it, `debian` brings packages of Debian into it. It knows nothing of sites.
"""
