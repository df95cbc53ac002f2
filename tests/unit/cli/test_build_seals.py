# SPDX-License-Identifier: Apache-2.0
"""``rackwell build --sign`` and ``--verify``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli_rig import Rig

from rackwell.provision import builds
from rackwell.provision.builds import Built


@pytest.fixture
def release(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release that `build` finds made, and beside it a key and who may sign."""
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}\n")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "signers").write_text(f"ops@example.org {(tmp_path / 'key.pub').read_text()}")
    monkeypatch.setattr(builds, "make", lambda *_, **__: Built("server", "d" * 64, folder, False, {}))
    return folder


def test_a_release_is_signed_and_the_signature_is_told(rig: Rig, release: Path) -> None:
    key, signers = release.parent / "key", release.parent / "signers"
    envelope = rig.json("build", "server", "--sign", str(key), "--verify", str(signers))
    assert envelope["exit_code"] == 0, envelope
    (result,) = envelope["result"]["releases"]
    assert result["signature"] == str(release / "manifest.json.sig")
    assert result["signed_by"] == "ops@example.org"
    assert rig.at_site("build", "server", "--verify", str(signers)) == 0
    assert "signed by ops@example.org" in rig.out


def test_without_the_options_nothing_is_said_of_signatures(rig: Rig, release: Path) -> None:
    (result,) = rig.json("build", "server")["result"]["releases"]
    assert not {"signature", "signed_by"} & result.keys()
    assert not (release / "manifest.json.sig").exists()


def test_a_release_that_is_not_signed_fails_the_check(rig: Rig, release: Path) -> None:
    envelope = rig.json("build", "server", "--verify", str(release.parent / "signers"))
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["unsigned"])


@pytest.mark.parametrize(("option", "code"), [("--sign", "key-missing"), ("--verify", "signers-missing")])
def test_files_that_are_not_there_are_told_before_anything_is_built(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, option: str, code: str
) -> None:
    monkeypatch.setattr(builds, "make", None)
    envelope = rig.json("build", "server", option, "nowhere")
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, [code])
