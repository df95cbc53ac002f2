# SPDX-License-Identifier: Apache-2.0
"""rackwell: declarative deployment of patched SGLang into GPU containers of Proxmox VE hosts."""

__version__ = "0.1.0"
