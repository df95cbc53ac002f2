# SPDX-License-Identifier: Apache-2.0
"""Passwords for Ansible: from a file, or typed, and then on no disk; and sites with vaulted files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rackwell.cli import passwords
from rackwell.errors import ExitCode, RackwellError
from rackwell.site import inventory

TYPED = 'it\'s-a "$(password)" %n ключ'


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (passwords.VAULT, passwords.BECOME):
        monkeypatch.setenv(name, "before")


@pytest.mark.usefixtures("environment")
def test_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vault").write_text("x")
    monkeypatch.chdir(tmp_path)
    passwords.provide(Path("vault"), ask_vault=False, ask_become=False)
    assert os.environ[passwords.VAULT] == str(tmp_path / "vault")
    assert os.environ[passwords.BECOME] == "before"


@pytest.mark.usefixtures("environment")
def test_what_was_typed_reaches_ansible_and_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", lambda _prompt: TYPED)
    passwords.provide(None, ask_vault=True, ask_become=True)
    for name in (passwords.VAULT, passwords.BECOME):
        said = subprocess.run([os.environ[name]], capture_output=True, text=True, check=True).stdout
        assert said == TYPED + "\n"
        assert TYPED not in os.environ[name]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and TYPED in path.read_text()] == []


@pytest.mark.parametrize(
    ("asked", "code"), [({"vault_file": Path("/no/such")}, "vault-password-missing"), ({"ask": True}, "no-terminal")]
)
def test_what_cannot_be_had_is_wrong_input(
    asked: dict[str, object], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    file = asked.get("vault_file")
    with pytest.raises(RackwellError) as raised:
        passwords.provide(file if isinstance(file, Path) else None, ask_vault="ask" in asked, ask_become=False)
    assert (raised.value.problems[0].code, raised.value.exit_code) == (code, ExitCode.INVALID)


def test_a_file_that_is_vaulted_as_a_whole_is_left_to_ansible(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {a: {}}}\n")
    (tmp_path / "group_vars" / "all").mkdir(parents=True)
    (tmp_path / "group_vars" / "all" / "vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    (tmp_path / "group_vars" / "all" / "main.yml").write_text("x: 1\n")
    sources, problems = inventory.read_sources(tmp_path)
    assert problems == []
    assert sources is not None
    assert [document.path.name for document in sources.group_vars["all"]] == ["main.yml"]


def test_a_locked_vault_says_how_to_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "[ERROR]: Attempting to decrypt but no vault secrets found."
    refused = SimpleNamespace(returncode=1, stderr=said, stdout="")
    monkeypatch.setattr("rackwell.bounded.run", lambda *_, **__: refused)
    with pytest.raises(RackwellError) as raised:
        inventory.read(tmp_path)
    assert raised.value.problems[0].code == "vault-locked"
    assert "--vault-password-file" in raised.value.problems[0].fix
