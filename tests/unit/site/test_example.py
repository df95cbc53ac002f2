# SPDX-License-Identifier: Apache-2.0
"""The site that `rackwell init` writes: commented, and whole but for what only the operator knows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rackwell import shipped
from rackwell.provision import declared
from rackwell.site import declaration


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, on a machine where the operator has a key."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("key")
    (home / ".ssh" / "id_ed25519.pub").write_text("ssh-ed25519 AAAA me\n")
    monkeypatch.setenv("HOME", str(home))
    return Path(shutil.copytree(shipped.example(), tmp_path / "site"))


def test_check_names_exactly_the_placeholders(fresh: Path) -> None:
    expected = {
        f"{path}:{number}"
        for path in fresh.rglob("*.yml")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r": FILL_IN\b", line)
    }
    problems = declared.problems(declaration.load(fresh))
    assert {problem.code for problem in problems} == {"fill-in"}
    assert {problem.where for problem in problems} == expected
    assert len(problems) == len(expected) == 7


def test_filled_in_it_holds(fresh: Path) -> None:
    run_file = fresh / "NVIDIA-Linux-x86_64-595.58.03.run"
    run_file.write_text("installer")
    for path in fresh.rglob("*.yml"):
        text = path.read_text().replace("FILL_IN the 64 hex digits", '"' + "0" * 64 + '" #')
        path.write_text(re.sub(r"FILL_IN /srv/drivers/\S+", str(run_file), text).replace("FILL_IN ", ""))
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e"
    (fresh / "known_hosts").write_text(f"192.0.2.10 ssh-ed25519 {key}\n")
    loaded = declaration.load(fresh)
    assert declared.problems(loaded) == []
    profile = loaded.profile(loaded.container("glm5-01"))
    assert profile.flags["moe-runner-backend"] == "flashinfer_cutlass"
    for sweep in ("quick", "full"):
        assert loaded.bench(loaded.container("glm5-01"), sweep).concurrency
