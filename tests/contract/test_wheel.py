# SPDX-License-Identifier: Apache-2.0
"""The wheel alone, without the checkout, carries the collection, the catalogue and the example site."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked as an installation; built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source") / "rackwell"
    files = (
        subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        )
        .stdout.decode()
        .split("\0")
    )
    for name in filter(None, files):
        if (REPOSITORY / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target)
    output = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    target = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(next(output.glob("*.whl"))) as wheel:
        wheel.extractall(target)
    return target


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees the unpacked wheel before the checkout, in an empty directory."""
    # -S and the .pth file of the development environment would bring the checkout back: the path goes first instead
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, cwd=installed.parent, env=environment, text=True, capture_output=True, check=False)


def test_ansible_finds_the_collection_by_itself(installed: Path) -> None:
    found = run(
        installed,
        str(Path(sys.executable).with_name("ansible-doc")),
        "-t",
        "module",
        "--json",
        "rackwell.gpu.pve_container",
    )
    assert found.returncode == 0, found.stderr
    assert str(installed) in found.stdout


def test_a_fresh_site_is_checked_to_its_placeholders(installed: Path, tmp_path: Path) -> None:
    program = "from rackwell.cli.main import run; run()"
    created = run(installed, sys.executable, "-c", program, "init", str(tmp_path / "site"))
    assert created.returncode == 0, created.stderr
    checked = run(installed, sys.executable, "-c", program, "check", "-i", str(tmp_path / "site"), "--json")
    assert checked.returncode == 2, checked.stdout + checked.stderr
    assert '"problems"' in checked.stdout
