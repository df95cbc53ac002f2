# SPDX-License-Identifier: Apache-2.0
"""What spans machines and time: the lock, the builds, the plays of a command in their order, and what came of them."""
