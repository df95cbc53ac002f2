# SPDX-License-Identifier: Apache-2.0
"""The patch catalogue: what it says of each patch, held against the sources that the patch is for."""
