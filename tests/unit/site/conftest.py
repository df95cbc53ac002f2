# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sitemaker import SiteMaker, listing

from rackwell.site import inventory


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteMaker:
    """A site whose declaration holds; Ansible's part is made up (test_real_ansible_sees_the_same compares)."""
    monkeypatch.setattr(inventory, "read", lambda path: inventory.from_listing(listing(path), path))
    return SiteMaker(tmp_path / "site")


@pytest.fixture
def real_site(tmp_path: Path) -> SiteMaker:
    """The same, read by Ansible itself."""
    return SiteMaker(tmp_path / "site")


@pytest.fixture
def keygen() -> Callable[[str, Path], str]:
    """ssh-keygen, to write hashed known_hosts entries."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")

    def run(flag: str, path: Path) -> str:
        return subprocess.run(["ssh-keygen", flag, "-f", str(path)], check=True, capture_output=True, text=True).stdout

    return run
