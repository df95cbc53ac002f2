# SPDX-License-Identifier: Apache-2.0
"""The probe's children find the stand-ins for the bindings and for NVML instead of the real ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAKES = Path(__file__).parent / "fakes"
SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), str(SOURCES)]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Order faults of the driver, e.g. ``fake_cuda(hang="cuInit")``."""

    def order(**faults: Any) -> None:
        monkeypatch.setenv("RACKWELL_FAKE_CUDA", json.dumps(faults))

    return order


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Order faults of NVML."""

    def order(**faults: Any) -> None:
        monkeypatch.setenv("RACKWELL_FAKE_NVML", json.dumps(faults))

    return order


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's /dev, /sys and /proc as they are in a healthy container with two GPUs."""
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1"):
        place = tmp_path / "dev" / name
        place.parent.mkdir(exist_ok=True)
        place.touch(mode=0o666)
    for name, text in {
        "sys/module/nvidia/version": "595.58.03\n",
        "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n",
        "proc/devices": "Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n",
    }.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path
