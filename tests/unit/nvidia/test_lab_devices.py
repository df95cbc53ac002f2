# SPDX-License-Identifier: Apache-2.0
"""libcuda holds nvidia-uvm's node against /proc/devices, as far as that tells of the driver."""

from __future__ import annotations

import os

import pytest
from labmachine import Machine

OTHERS = "Character devices:\n  1 mem\n"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param("195 nvidia\n{own} nvidia-uvm\n", 0, id="the node's own"),
        pytest.param("195 nvidia\n1 nvidia-uvm\n", 999, id="another, as after a reload of the module"),
        pytest.param("195 nvidia\n{own} other\n", 999, id="none: nvidia_uvm is not loaded"),
        pytest.param("{own} nvidia-uvm-tools\n195 nvidia\n", 999, id="a device whose name begins alike"),
        pytest.param("", 0, id="nothing of the driver"),
    ],
)
def test_major_of_uvm(machine: Machine, lines: str, code: int) -> None:
    own = os.major((machine.root / "dev/nvidia-uvm").stat().st_rdev)
    text = f"{OTHERS}{lines.format(own=own)}\nBlock devices:\n  8 nvidia-uvm\n"
    (machine.root / "proc/devices").write_text(text)
    assert machine.run("answer(cuda().cuInit(0))") == code
