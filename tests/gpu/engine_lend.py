# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/engine.py takes of the machine that it runs on: torch, the CUDA compiler, Python; links if it can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from run import CannotRunError  # beside this file

# what of a machine's packages is its torch; the rest comes with the release
_TORCH = re.compile(
    r"(torch|torchgen|functorch|triton|torchvision|torchaudio|nvidia)"
    r"(\.libs)?$|(torch|triton|torchvision|torchaudio|nvidia_[a-z0-9_]+|cuda_toolkit)-[^/]+\.dist-info$"
)
_NOT_OF_CUDA = {"doc", "compute-sanitizer", "gds", "nsight", "libnvvp", "compat", "share", "src"}


def link(source: Path, target: Path) -> None:
    """A copy of a file or directory that takes no space where it lies on the same file system."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = subprocess.run(["cp", "-al", str(source), str(target)], capture_output=True, check=False)
    if linked.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def lend_torch(packages: Path, target: Path) -> None:
    """The machine's torch and what belongs to it, out of its site-packages."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(packages.iterdir()):
        if _TORCH.match(path.name):
            link(path, target / path.name)
    target.chmod(0o755)


def lend_cuda(home: Path, target: Path) -> None:
    """The machine's CUDA compiler, headers and libraries."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(home.resolve().iterdir()):
        if path.name.split("-")[0] not in _NOT_OF_CUDA and not path.name.startswith("nsight"):
            link(path, target / path.name)
    target.chmod(0o755)


def lend_python(root: Path, version: str, target: Path) -> None:
    """The machine's own Python, which its torch is for, into a container's root."""
    for name in (
        f"usr/bin/python{version}",
        f"usr/lib/python{version}",
        f"usr/include/python{version}",
        f"usr/include/x86_64-linux-gnu/python{version}",
        f"etc/python{version}",
    ):
        source, copy = root / name, target / name
        if source.exists() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", str(source), str(copy)], check=True)
    if not os.access(target / f"usr/bin/python{version}", os.X_OK):
        raise CannotRunError(f"there is no usr/bin/python{version} in {root}")
