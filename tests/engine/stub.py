#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel that lets SGLang start without a GPU: the one function that it imports from vLLM there.

stub.py OUTDIR      writes OUTDIR/rackwell_engine_stub-1-py3-none-any.whl, the same bytes each time, and prints its path

Nothing calls the function with the attention backend of profile engine-cpu; if something does, that ends the engine.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

NAME, VERSION = "rackwell_engine_stub", "1"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODULE = '''# SPDX-License-Identifier: Apache-2.0
"""STAND-IN for one module of vLLM, for tests of rackwell without a GPU. SGLang imports it, and must not call it."""


def rotary_embedding(*arguments, **named):
    raise NotImplementedError("a stand-in of rackwell's tests: vllm._custom_ops is not there")
'''


def files() -> dict[str, bytes]:
    """Archive name to bytes of everything in the wheel, RECORD last."""
    info = f"{NAME}-{VERSION}.dist-info"
    contents = {
        "vllm/__init__.py": b"# STAND-IN of rackwell's tests: not vLLM\n",
        "vllm/_custom_ops.py": _MODULE.encode(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\n"
            "Summary: STAND-IN for one module of vLLM, for the tests of rackwell only\nLicense: Apache-2.0\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: rackwell-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    return contents | {f"{info}/RECORD": "".join([*record, f"{info}/RECORD,,\n"]).encode()}


def build(outdir: Path) -> Path:
    """Write the wheel.

    Returns:
        Its path.
    """
    outdir.mkdir(parents=True, exist_ok=True)
    wheel = outdir / f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files().items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            # stored: compressed bytes differ between versions of zlib
            archive.writestr(entry, data, zipfile.ZIP_STORED)
    return wheel


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
