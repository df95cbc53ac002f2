# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "site"))
sys.path.insert(0, str(Path(__file__).parents[1] / "topology"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from cli_rig import Rig, make_rig


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    """A whole site with machines that are made up."""
    made = make_rig(tmp_path, monkeypatch, capsys)
    # the container that is adopted has one GPU
    made.site.edit("profiles/toy.yml", "tp-size: 8", "tp-size: 1")
    return made
