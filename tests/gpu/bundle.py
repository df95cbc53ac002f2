#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what SGLang needs beside itself, FlashInfer and a machine's own torch into one wheel for tests/gpu/engine.py.

    tests/gpu/bundle.py OUTDIR [--work FOLDER]

Takes the packages of tests/engine's lock, for Python 3.12, without torch, NVIDIA's libraries, and the kernels that the
toy model does not call: 4 GB become some 350 MB, and 50 MB once packed by xz. In the wheel they lie in a directory of
their own, which a .pth adds to the path, and behind it the directory where the containers see the machine's torch.
Needs the network (or the packages in uv's cache), uv of scripts/setup, and Debian's binutils.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
NAME, VERSION, PYTHON = "rackwell_engine_bundle", "1", "3.12"
#: where the containers see the directory with the machine's torch
MACHINE_TORCH = "/opt/machine-torch"
LOCK = REPO / "tests/engine/site/builds/engine-cpu.lock"
_LINE = re.compile(r"^([a-z0-9._-]+)==(\S+) --hash=sha256:")
# fmt: off
_LEFT_OUT = {
    "uv", "sglang", "flashinfer-python", "torch", "triton", "torchvision", "torchaudio", "torchcodec", "cuda-toolkit",
    "tilelang", "flash-attn-4", "quack-kernels", "cuda-tile", "modelscope", "modelscope-hub", "jedi", "parso",
    "py-spy", "z3-solver", "helion", "humming-kernels", "lxml", "tokenspeed-mla", "tokenspeed-triton",
    "anthropic", "openai-harmony", "pycryptodomex", "blobfile", "airportsdata", "httpx2", "httpcore2", "truststore",
    "numba", "llvmlite", "ninja",
}
_DROPPED = [
    "sgl_kernel/flash_ops*", "sgl_kernel/sm100/*", "sgl_kernel/infllm_ops*", "pycountry/locales/*",
    "mistral_common/data/*",
    "*cu12*", "zstandard/_cffi*", "*/tests/*", "*/__pycache__/*", "*.pyi", "include/*", "bin/*",
    "pyarrow/libarrow_flight*", "pyarrow/_flight*",
    "pyarrow/include/*", "pyarrow/src/*", "*.a",
]
# fmt: on
_KEPT = ["numpy/testing/tests/*", "torchao/*", "sgl_kernel/testing/*"]
# strip breaks libraries whose names were changed in their wheels (*.libs)
_NOT_STRIPPED = re.compile(r"^(sgl_kernel|torchao|[^/]+\.libs)/")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def requirements() -> list[str]:
    """The lock's packages that are taken: none of NVIDIA's but the small ones that are no part of torch."""
    found = [match.groups() for line in LOCK.read_text().splitlines() if (match := _LINE.match(line))]
    theirs = {"nvidia-ml-py", "nvidia-cudnn-frontend"}
    return [
        f"{name}=={version}"
        for name, version in found
        if name not in _LEFT_OUT and (not name.startswith("nvidia-") or name in theirs)
    ]


def install(target: Path) -> None:
    wanted = target.with_name("bundle.txt")
    wanted.write_text("\n".join(requirements()) + "\n")
    command = [str(REPO / ".venv/bin/uv"), "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    command += ["--link-mode", "copy", "--target", str(target), "--python-version", PYTHON]
    command += ["--python-platform", "x86_64-manylinux_2_34", "-r", str(wanted)]
    subprocess.run(command, check=True, env={**os.environ, "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"})


def _dropped(name: str) -> bool:
    def one_of(patterns: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return one_of(_DROPPED) and not one_of(_KEPT)


def prune(root: Path) -> None:
    """Without what is not needed, and without what debuggers need."""
    libraries = []
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and _dropped(name):
            path.unlink()
        elif path.is_file() and ".so" in path.suffixes and not _NOT_STRIPPED.match(name):
            libraries.append(str(path))
    # some are refused by strip, and stay as they are
    subprocess.run(["strip", "--strip-debug", *libraries], stderr=subprocess.DEVNULL, check=False)


def pack(root: Path, out: Path) -> Path:
    """The wheel, its files stored: it is packed as a whole later."""
    info = f"{NAME}-{VERSION}.dist-info"
    wheel = out / f"{NAME}-{VERSION}-cp312-cp312-manylinux_2_34_x86_64.whl"
    record = []
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:

        def add(name: str, data: bytes, mode: int = 0o100644) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr, entry.create_system = mode << 16, 3
            archive.writestr(entry, data, zipfile.ZIP_STORED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f'"{name}",sha256={digest},{len(data)}\n')

        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                mode = 0o100755 if os.access(path, os.X_OK) else 0o100644
                add(f"{NAME}/{path.relative_to(root)}", path.read_bytes(), mode)
        add(f"{NAME}.pth", f"{NAME}\n{MACHINE_TORCH}\n".encode())
        metadata = f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\n"
        add(f"{info}/METADATA", f"{metadata}Summary: what SGLang needs, for rackwell's tests on a GPU only\n".encode())
        tag = "cp312-cp312-manylinux_2_34_x86_64"
        add(
            f"{info}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: rackwell-tests\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        )
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _EPOCH), "".join([*record, f"{info}/RECORD,,\n"]))
    return wheel


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, help="keep the installed packages there, and take them if they are there")
    arguments = parser.parse_args()
    work = arguments.work or arguments.out / ".bundle"
    root = work / "site"
    if not root.is_dir():
        partial = work / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        install(partial)
        prune(partial)
        partial.rename(root)
    wheel = pack(root, arguments.out)
    if not arguments.work:
        shutil.rmtree(work)
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
