# SPDX-License-Identifier: Apache-2.0
"""The kernels' PTX: do NVIDIA's own tools take it, for GPUs that are not here? What the kernels do when they run is
held against their description by kernel_semantics.py, here on the stand-ins.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rackwell.probe.kernels import NAMES, SOURCE, THREADS

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def ptxas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The assembler from its wheel, which does not keep it executable."""
    if os.uname().machine != "x86_64":
        pytest.skip("ptxas is locked for x86_64")
    files = importlib.metadata.files("nvidia-cuda-nvcc-cu12") or []
    (found,) = [file for file in files if file.name == "ptxas"]
    copy = tmp_path_factory.mktemp("ptxas") / "ptxas"
    shutil.copy(str(found.locate()), copy)
    copy.chmod(0o755)
    return copy


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100", "sm_120"])
def test_ptxas_compiles_it_so_that_every_launch_fits(ptxas: Path, tmp_path: Path, architecture: str) -> None:
    command = [ptxas, "-v", "-Werror", f"-arch={architecture}", SOURCE, "-o", tmp_path / "kernels.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    entries = re.findall(r"entry function '(\w+)'", done.stderr)
    assert sorted(entries) == sorted(f"rackwell_{name}" for name in NAMES)
    # a multiprocessor has 65536 registers: a block with more cannot start
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(registers) == len(NAMES)
    assert max(registers) * THREADS <= 65536
    assert not re.findall(r"[1-9]\d* bytes spill", done.stderr)


def test_the_oldest_driver_knows_this_ptx() -> None:
    """570 knows PTX 8.7 (CUDA 12.8)."""
    (version,) = re.findall(r"^\.version (\d+)\.(\d+)$", SOURCE.read_text(), re.MULTILINE)
    assert tuple(map(int, version)) <= (8, 7)


def test_the_stand_in_for_the_bindings_does_what_the_kernels_do() -> None:
    done = subprocess.run([sys.executable, HERE / "kernel_semantics.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
