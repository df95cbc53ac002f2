# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest

# the site that these tests break is that of the site's own tests
sys.path.insert(0, str(Path(__file__).parents[1] / "site"))
# reports of GPUs as the probe writes them
sys.path.insert(0, str(Path(__file__).parents[1] / "topology"))
sys.path.insert(0, str(Path(__file__).parent))

from cli_rig import Rig, make_rig


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    """A whole site with machines that are made up."""
    return make_rig(tmp_path, monkeypatch, capsys)
