# SPDX-License-Identifier: Apache-2.0
"""The probe as a wheel of its own: `rackwell.probe` without the rest of rackwell."""

from __future__ import annotations

from pathlib import Path

import rackwell
from rackwell.build.wheelfile import from_files

PROJECT = "rackwell-probe"


def probe_wheel() -> tuple[str, bytes]:
    """File name and bytes; the same for the same sources."""
    package = Path(rackwell.__file__).parent
    paths = [package / "__init__.py", *(package / "probe").rglob("*")]
    files = {
        f"rackwell/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".pyc", ".pyo"}
    }
    metadata = (
        "Metadata-Version: 2.1\n"
        f"Name: {PROJECT}\n"
        f"Version: {rackwell.__version__}\n"
        "Summary: CUDA, peer-to-peer and telemetry checks of rackwell, for the machine with the GPUs\n"
        "License: Apache-2.0\n"
        "Requires-Python: >=3.9\n"
    )
    return from_files(f"{PROJECT.replace('-', '_')}-{rackwell.__version__}", files, metadata)
