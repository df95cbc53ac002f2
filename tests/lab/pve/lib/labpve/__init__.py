# SPDX-License-Identifier: Apache-2.0
"""STAND-IN for the part of Proxmox VE that rackwell speaks to: `pct` and `pvesh`, driving real LXC.

Not Proxmox. It runs inside a laboratory container that plays the Proxmox VE host. Config file format, rewriting,
outputs, exit codes and error texts follow pve-container; what the laboratory does not need is absent and says so.
"""
