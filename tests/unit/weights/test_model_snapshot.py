# SPDX-License-Identifier: Apache-2.0
"""What the module sees without any program, and what a unit is started with."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import snapshot_unit
from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_store import Entry, Place, SnapshotError, chosen
from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_unit import Unit
from ansible_collections.rackwell.gpu.plugins.modules.model_snapshot import look
from hubserver import COMMIT, REPOSITORY, toy
from weightsrig import Fetcher

TOKEN = "hf_PleaseTellNobody1234567890"


def test_what_is_there_is_told_by_sizes(fetcher: Fetcher) -> None:
    place = Place(str(fetcher.models), REPOSITORY, COMMIT)
    ignore = ["original/"]
    assert look(place, [], ignore)["state"] == "absent"
    fetcher.staging.mkdir()
    assert look(place, [], ignore)["state"] == "incomplete"
    assert fetcher.run().code == 0
    found = look(place, [], ignore)
    assert (found["state"], found["files"], found["left_out"]) == ("complete", 7, 1)
    assert look(place, [], [])["state"] == "incomplete"
    (fetcher.snapshot / "config.json").write_text("{}")
    found = look(place, [], ignore)
    assert (found["state"], found["damaged"]) == ("damaged", ["config.json"])
    (fetcher.snapshot / ".rackwell-weights.json").unlink()
    assert look(place, [], ignore)["state"] == "unverified"


@pytest.mark.parametrize(
    ("include", "ignore"),
    [([], []), ([], ["original/"]), (["*.json"], []), (["*.safetensors", "tokenizer/"], ["*00002*"]), (["x"], [])],
)
def test_patterns_mean_what_they_mean_to_huggingface_hub(include: list[str], ignore: list[str]) -> None:
    from huggingface_hub.utils import filter_repo_objects

    entries = [Entry(path, 1, None, "0" * 40) for path in toy()]
    theirs = filter_repo_objects(toy(), allow_patterns=include or None, ignore_patterns=ignore or None)
    assert [one.path for one in chosen(entries, include, ignore)] == list(theirs)


class Systemd:
    """Stands in for systemd-run: keeps what it was called with, and what was on standard input's file then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
        self.command: list[str] = []
        self.token, self.mode, self.code = "", 0, code
        monkeypatch.setattr(snapshot_unit.subprocess, "run", self.run)

    def run(self, command: list[str], **_: object) -> object:
        self.command = command
        for word in command:
            if word.startswith("StandardInput=file:"):
                path = Path(word.partition(":")[2])
                self.token, self.mode = path.read_text(), path.stat().st_mode & 0o777
        return snapshot_unit.subprocess.CompletedProcess(command, self.code, "it cannot", "")


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    (tmp_path / "run").mkdir()
    return Unit(Place(str(tmp_path / "models"), REPOSITORY, COMMIT), str(tmp_path / "home"), str(tmp_path / "run"))


JOB = {"run": "1", "repair": True, "environment": {"HTTPS_PROXY": "http://proxy.example:3128"}}


def test_the_token_is_on_no_command_line_and_in_no_file_that_stays(
    unit: Unit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    systemd = Systemd(monkeypatch)
    unit.start(JOB, getpass.getuser(), "/usr/bin/python3", TOKEN)
    assert (systemd.token, systemd.mode) == (TOKEN, 0o600)
    assert TOKEN not in " ".join(systemd.command)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN in path.read_text()]
    job = json.loads(Path(unit.job).read_text())
    assert job["environment"]["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert Path(unit.job).stat().st_mode & 0o777 == 0o600


def test_it_may_write_the_repository_only_when_it_repairs(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(monkeypatch)
    for repair in (True, False):
        unit.start({**JOB, "repair": repair}, getpass.getuser(), "/usr/bin/python3", "")
        writable = next(word for word in systemd.command if word.startswith("ReadWritePaths="))
        assert (unit.place.parent in writable) is repair
        assert not any("StandardInput" in word for word in systemd.command)


def test_a_refusal_of_systemd_is_told_and_leaves_no_token(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    Systemd(monkeypatch, code=1)
    with pytest.raises(SnapshotError) as told:
        unit.start(JOB, getpass.getuser(), "/usr/bin/python3", TOKEN)
    assert told.value.parts["code"] == "fetch-not-started"
    assert "it cannot" in told.value.parts["why"]
    assert list(Path(unit.secrets).iterdir()) == []


def test_the_program_that_travels_is_whole(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started with nothing but what was put there, it reaches its job."""
    import subprocess
    import sys

    real = subprocess.run
    systemd = Systemd(monkeypatch)
    unit.start(JOB, getpass.getuser(), "/usr/bin/python3", "")
    base = next(word for word in systemd.command if word.startswith("--setenv=PYTHONPATH=")).rpartition("=")[2]
    start = systemd.command.index("-m")
    command = [sys.executable, "-S", "-E", "-c", f"import sys, runpy; sys.path.insert(0, {base!r}); "]
    command[-1] += (
        f"sys.argv = ['x', '/does/not/exist']; runpy.run_module({systemd.command[start + 1]!r}, run_name='__main__')"
    )
    ended = real(command, capture_output=True, text=True, check=False)
    assert "FileNotFoundError" in ended.stderr
    assert "/does/not/exist" in ended.stderr
