#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of the stand-in engine with the standard library alone; the same source gives the same bytes.

build_wheel.py OUTDIR      writes OUTDIR/rackwell_lab_engine-<version>-py3-none-any.whl and prints its path
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "rackwell_lab_engine"
# the oldest time that a zip archive can hold: the files' own times must not reach the bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)


def version() -> str:
    """The version in the package's source."""
    text = (HERE / PACKAGE / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{HERE / PACKAGE / '__init__.py'}: no __version__")
    return found.group(1)


def contents() -> dict[str, bytes]:
    """Archive name to bytes of everything in the wheel, RECORD last."""
    info = f"{PACKAGE}-{version()}.dist-info"
    files = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in sorted((HERE / PACKAGE).glob("*.py"))}
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {PACKAGE.replace('_', '-')}\nVersion: {version()}\n"
        "Summary: STAND-IN for the SGLang engine, for the laboratory of rackwell only\n"
        "License: Apache-2.0\nRequires-Python: >=3.11\n"
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: rackwell-lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    return files


def build(outdir: Path) -> Path:
    """Write the wheel by rename, so that a reader never sees half of one.

    Returns:
        Its path.
    """
    outdir.mkdir(parents=True, exist_ok=True)
    wheel = outdir / f"{PACKAGE}-{version()}-py3-none-any.whl"
    partial = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, data in contents().items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3  # Unix, whatever builds it
            # stored: compressed bytes differ between versions of zlib
            archive.writestr(entry, data, zipfile.ZIP_STORED)
    partial.replace(wheel)
    return wheel


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("outdir", type=Path)
    print(build(parser.parse_args().outdir))
    return 0


if __name__ == "__main__":
    sys.exit(main())
