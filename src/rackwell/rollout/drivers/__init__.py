# SPDX-License-Identifier: Apache-2.0
"""Rolls of a driver and a kernel, one Proxmox host after the other."""
