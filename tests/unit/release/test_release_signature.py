# SPDX-License-Identifier: Apache-2.0
"""Only what an allowed key signed is let in; and what lies beside a manifest travels with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.action.release_store import Bundle
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import BESIDE, ReleaseError
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store
from releasesite import Built
from test_release_target import stage

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture
def state(one: Built, tmp_path: Path) -> Path:
    shutil.copytree(one.state, tmp_path / "state", symlinks=True)
    return tmp_path / "state/builds/one"


def key(folder: Path, name: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name], check=True)
    return folder / name


def sign(bundle: Path, signer: Path, namespace: str = "rackwell-release") -> None:
    (bundle / "manifest.json.sig").unlink(missing_ok=True)
    arguments = ["-Y", "sign", "-f", signer, "-n", namespace, bundle / "manifest.json"]
    subprocess.run(["ssh-keygen", *arguments], check=True, capture_output=True)


def refused(bundle: Path, allowed: Path) -> str:
    with pytest.raises(ReleaseError) as caught:
        Bundle(str(bundle)).signer(str(allowed))
    assert caught.value.parts["fix"]
    return caught.value.parts["code"]


def test_only_an_allowed_signature_is_let_in(state: Path, tmp_path: Path) -> None:
    mine, other = key(tmp_path, "mine"), key(tmp_path, "other")
    allowed = tmp_path / "allowed"
    assert refused(state, allowed) == "signers-missing"
    allowed.write_text(f'release@example.org namespaces="rackwell-release" {mine.with_suffix(".pub").read_text()}')
    assert refused(state, allowed) == "unsigned"
    sign(state, other)
    assert refused(state, allowed) == "wrongly-signed"
    sign(state, mine, "git")
    assert refused(state, allowed) == "wrongly-signed"
    sign(state, mine)
    assert Bundle(str(state)).signer(str(allowed)) == "release@example.org"
    signature = state / "manifest.json.sig"
    lines = signature.read_text().splitlines()
    lines[2] = lines[2][:20] + ("A" if lines[2][20] != "A" else "B") + lines[2][21:]
    signature.write_text("\n".join(lines) + "\n")
    assert refused(state, allowed) == "wrongly-signed"


def test_the_signature_of_another_release_is_refused(state: Path, two: Built, tmp_path: Path) -> None:
    mine = key(tmp_path, "mine")
    allowed = tmp_path / "allowed"
    allowed.write_text(f"* {mine.with_suffix('.pub').read_text()}")
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(two.bundle / "manifest.json", other)
    sign(other, mine)
    shutil.copy(other / "manifest.json.sig", state / "manifest.json.sig")
    assert refused(state, allowed) == "wrongly-signed"


def test_what_lies_beside_the_manifest_travels(
    store: Store, one: Built, state: Path, user: str, tmp_path: Path
) -> None:
    stage(store, one, user, tmp_path)
    for name in BESIDE:
        (state / name).unlink(missing_ok=True)
    assert Bundle(str(state)).extras == {}
    (state / "sbom.cdx.json").write_text('{"bomFormat": "CycloneDX"}\n')
    (state / "provenance.json").write_text("{}\n")
    (state / "notes.txt").write_text("not this\n")
    extras = Bundle(str(state)).extras
    assert sorted(extras) == ["provenance.json", "sbom.cdx.json"]
    assert store.unfinished(one.manifest, user, extras) == ["settings"]
    environment = (tmp_path / "opt/releases" / one.manifest.digest / "env").stat().st_ctime_ns
    store.lock()
    assert store.install(one.manifest, one.requirements, user, extras)
    store.unlock()
    release = tmp_path / "opt/releases" / one.manifest.digest
    assert (release / "sbom.cdx.json").read_text() == extras["sbom.cdx.json"]
    assert (release / "env").stat().st_ctime_ns == environment, "nothing is installed for that"
    assert store.unfinished(one.manifest, user, extras) == []
