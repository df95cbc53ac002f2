# SPDX-License-Identifier: Apache-2.0
"""Tiny wheels, and a folder of them that stands in for the package index, so that no test needs the network."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import uv

ENGINE = {
    "sglang/__init__.py": "__version__ = '0.5.9'\n",
    "sglang/runner.py": "".join(f"line {n}\n" for n in range(1, 41)),
    "sglang/dos.py": "one\r\ntwo\r\nthree\r\n",
    "sglang/data.txt": "data " * 2000,
}

PATCH = """\
--- a/sglang/runner.py
+++ b/sglang/runner.py
@@ -19,5 +19,5 @@
 line 19
 line 20
-line 21
+line twenty-one
 line 22
 line 23
"""

PATCH_YML = """\
name: sglang/example
project: sglang
summary: an example
applies_to:
  "0.5.9": 0.5.9.patch
needs_flags:
  moe-runner-backend: flashinfer_cutlass
status: recommended
"""


def make_wheel(
    folder: Path,
    project: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    executable: Sequence[str] = (),
) -> Path:
    """Write a wheel of `files` (path -> content) and return its path."""
    stem = f"{project.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
    metadata = [f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"]
    metadata += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    contents[f"{info}/METADATA"] = "".join(metadata).encode()
    tags = "".join(f"Tag: {tag.rsplit('-', 1)[0]}-{platform}\n" for platform in tag.rsplit("-", 1)[1].split("."))
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n{tags}".encode()
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in contents.items()
    ]
    contents[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, (2024, 2, 3, 4, 5, 6))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name in executable else 0o100644) << 16
            archive.writestr(entry, data)
    return path


def make_index(folder: Path) -> Path:
    """A folder with an engine, what it needs, and an installer that hands on to this machine's uv."""
    make_wheel(folder, "sglang", "0.5.9", ENGINE, requires=["helper>=1"])
    make_wheel(folder, "flashinfer-python", "0.6.3", {"flashinfer/__init__.py": ""})
    make_wheel(folder, "helper", "1.2", {"helper.py": "VALUE = 12\n"}, requires=["leaf"])
    make_wheel(folder, "leaf", "3.0", {"leaf.py": "VALUE = 3\n"})
    for python in ("cp311", "cp313"):
        tag = f"{python}-{python}-manylinux_2_28_x86_64"
        make_wheel(folder, "native", "2.0", {"native.py": f"BUILT_FOR = '{python}'\n"}, tag=tag)
    make_wheel(folder, "native", "2.0", {"native.py": "BUILT_FOR = 'any'\n"})
    version = importlib.metadata.version("uv")
    script = f"uv-{version}.data/scripts/uv"
    program = f'#!/bin/sh\nexec "{uv.find_uv_bin()}" "$@"\n'
    tag = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"
    make_wheel(folder, "uv", version, {script: program}, tag=tag, executable=[script])
    return folder


def index_environment(folder: Path) -> dict[str, str]:
    """Settings by which pip and uv know `folder` alone."""
    settings = folder.parent / "uv.toml"
    settings.write_text(f"no-index = true\nfind-links = [{json.dumps(str(folder))}]\n")
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_CONFIG_FILE": str(settings),
        "UV_CACHE_DIR": str(folder.parent / "uv-cache"),
    }


def running_python() -> str:
    """``X.Y`` of the Python that runs the tests."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
