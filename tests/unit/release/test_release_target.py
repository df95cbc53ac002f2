# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import ClassVar

import pytest
import tinywheels
from ansible_collections.rackwell.gpu.plugins.module_utils import release_target
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError, pack, pieces
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store
from ansible_collections.rackwell.gpu.plugins.modules import release_store
from releasesite import Built


class Stopped(BaseException):
    """Stands for a kill at this moment."""


def stage(store: Store, built: Built, user: str, folder: Path, *, slot: str = "", limit: int = 1 << 20) -> bool:
    """All that the action and the module do, in this process. Returns whether anything changed."""
    manifest = built.manifest
    store.check_machine(manifest)
    missing = store.missing(manifest)
    store.lock()
    try:
        for chunk in pieces({sha256: manifest.blobs[sha256] for sha256 in missing}, limit):
            archive = folder / "transfer.tar"
            pack(chunk, str(built.blobs), str(archive))
            store.receive(manifest, str(archive))
        changed = store.install(manifest, built.requirements, user)
        store.tidy()
        switched = store.switch(slot, manifest.digest) if slot else False
    finally:
        store.unlock()
    return bool(missing) or changed or switched


def refusal(store: Store, built: Built, user: str, folder: Path) -> dict[str, str]:
    with pytest.raises(ReleaseError) as caught:
        stage(store, built, user, folder, slot="current")
    return caught.value.parts


def is_right(store: Store, built: Built) -> bool:
    """Whether the environment runs what the release says."""
    env = Path(store.release(built.manifest.digest)) / "env/bin/python"
    code = "import leaf, sglang; print(leaf.VALUE, sglang.__version__)"
    done = subprocess.run([env, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "3 0.5.9\n"


def test_stages_and_switches(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    assert stage(store, one, user, tmp_path, slot="current")
    digest = one.manifest.digest
    release = tmp_path / "opt/releases" / digest
    assert is_right(store, one)
    assert sorted(path.name for path in release.iterdir()) == [
        "complete",
        "env",
        "manifest.json",
        "release.env",
        "requirements.txt",
    ]
    assert (release / "complete").read_text() == digest + "\n"
    assert str((tmp_path / "opt/current").readlink()) == f"releases/{digest}"
    assert store.slot("current") == digest
    assert (tmp_path / "cache" / digest).owner() == user
    assert not stage(store, one, user, tmp_path, slot="current"), "a second time there is nothing to do"
    for path in [release, *release.iterdir(), *(tmp_path / "opt/store/sha256").iterdir()]:
        mode = path.stat().st_mode
        assert mode & stat.S_IROTH
        assert not mode & stat.S_IWOTH


def test_environments_are_hard_links_into_one_cache(
    store: Store, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    stage(store, one, user, tmp_path)
    stage(store, two, user, tmp_path)
    files = [next(Path(store.release(b.manifest.digest)).glob("env/lib/*/site-packages/leaf.py")) for b in (one, two)]
    assert files[0].stat().st_ino == files[1].stat().st_ino


def test_settings_name_no_shared_cache(store: Store, one: Built) -> None:
    lines = [line for line in store.settings(one.manifest).splitlines() if not line.startswith("#")]
    settings = dict(line.split("=", 1) for line in lines)
    assert all(value.startswith(f"{store.cache}/{one.manifest.digest}") for value in settings.values())
    assert {
        "FLASHINFER_WORKSPACE_BASE",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "SGLANG_CACHE_DIR",
        "SGLANG_DG_CACHE_DIR",
        "TVM_FFI_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "XDG_CACHE_HOME",
        "HOME",
    } <= settings.keys()


def test_only_what_is_missing_travels(store: Store, one: Built, two: Built, user: str, tmp_path: Path) -> None:
    stage(store, one, user, tmp_path)
    (helper,) = [wheel["sha256"] for wheel in two.manifest.wheels if wheel["project"] == "helper"]
    assert store.missing(two.manifest) == {helper: "absent"}


def test_stopped_between_any_two_steps_the_next_run_converges(
    python_folder: Path, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    steps: list[str] = []
    probe = Store(str(tmp_path / "probe"), str(tmp_path / "probe-cache"), str(python_folder))
    probe.reached = steps.append  # type: ignore[method-assign]
    stage(probe, two, user, tmp_path, slot="current", limit=3000)
    assert len(set(steps)) >= 12
    for at in range(len(steps)):
        base = tmp_path / f"at-{at}"
        store = Store(str(base / "opt"), str(base / "cache"), str(python_folder))
        # something runs already
        (base / "opt/releases" / one.manifest.digest).mkdir(parents=True)
        store.switch("current", one.manifest.digest)
        left = at

        def stop(step: str) -> None:
            nonlocal left
            if left == 0:
                raise Stopped(step)
            left -= 1

        store.reached = stop  # type: ignore[method-assign]
        with pytest.raises(Stopped):
            stage(store, two, user, tmp_path, slot="current", limit=3000)
        if steps[at] != "switched":
            assert store.slot("current") == one.manifest.digest
        if "environment" in store.unfinished(two.manifest, user):
            assert store.slot("current") == one.manifest.digest, "a slot never leads to a half-made release"
        again = Store(store.root, store.cache, store.python_folder)
        stage(again, two, user, tmp_path, slot="current", limit=3000)
        assert again.slot("current") == two.manifest.digest
        assert is_right(again, two)
        assert not stage(again, two, user, tmp_path, slot="current")
        assert not list(base.rglob("*.partial"))
        assert not Path(again.incoming).exists()


def test_a_half_made_release_is_made_anew(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    stage(store, one, user, tmp_path)
    release = Path(store.release(one.manifest.digest))
    (release / "complete").unlink()
    (leaf,) = release.glob("env/lib/*/site-packages/leaf.py")
    leaf.unlink()
    assert stage(store, one, user, tmp_path)
    assert is_right(store, one)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_blob_is_sent_again(store: Store, one: Built, user: str, tmp_path: Path, damage: str) -> None:
    stage(store, one, user, tmp_path)
    sha256 = one.manifest.wheels[0]["sha256"]
    blob = Path(store.blobs) / sha256
    data = blob.read_bytes()
    blob.unlink()
    if damage != "gone":
        blob.write_bytes(data[:-1] + (bytes([data[-1] ^ 4]) if damage == "flip" else b""))
    assert store.missing(one.manifest) == {sha256: "absent" if damage == "gone" else "damaged"}
    assert stage(store, one, user, tmp_path)
    assert blob.read_bytes() == data


def test_what_arrives_damaged_never_counts(store: Store, one: Built, tmp_path: Path) -> None:
    manifest = one.manifest
    sha256 = manifest.wheels[0]["sha256"]
    folder = tmp_path / "bad"
    folder.mkdir()
    data = (one.blobs / sha256).read_bytes()
    (folder / sha256).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    archive = tmp_path / "x.tar"
    pack([(sha256, 0, len(data))], str(folder), str(archive))
    with pytest.raises(ReleaseError) as caught:
        store.receive(manifest, str(archive))
    assert caught.value.parts["code"] == "blob-damaged"
    assert sha256 in store.missing(manifest)
    pack([(sha256, 5, 7)], str(one.blobs), str(archive))
    with pytest.raises(ReleaseError, match="not whole"):
        store.receive(manifest, str(archive))
    (folder / ("f" * 64)).write_bytes(b"x")
    pack([("f" * 64, 0, 1)], str(folder), str(archive))
    with pytest.raises(ReleaseError, match="not of this release"):
        store.receive(manifest, str(archive))
    archive.write_bytes(archive.read_bytes()[:700])
    with pytest.raises(ReleaseError):
        store.receive(manifest, str(archive))
    with tarfile.open(archive, "w") as opened:
        info = tarfile.TarInfo(f"{sha256}.0")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(info)
    with pytest.raises(ReleaseError, match="not of this release"):
        store.receive(manifest, str(archive))


@pytest.mark.parametrize("files", [{"../../../evil.py": "x"}, {"/tmp/evil.py": "x"}, None])
def test_a_wheel_that_leads_out_is_not_installed(
    store: Store, one: Built, tmp_path: Path, files: dict[str, str] | None
) -> None:
    blob = tmp_path / "blob"
    if files is None:
        blob.write_bytes(b"no archive")
    else:
        tinywheels.make_wheel(tmp_path, "evil", "1.0", files).rename(blob)
    Path(store.blobs).mkdir(parents=True)
    blob.rename(Path(store.blobs) / ("a" * 64))
    with pytest.raises(ReleaseError) as caught:
        store._link("a" * 64, "evil-1.0-py3-none-any.whl")
    assert caught.value.parts["code"] == "wheel-malformed"
    assert not list(Path(store.named).rglob("*.whl"))


def test_an_installer_that_is_no_wheel_is_said(store: Store, one: Built) -> None:
    sha256 = one.manifest.uv["sha256"]
    Path(store.blobs).mkdir(parents=True)
    (Path(store.blobs) / sha256).write_bytes(b"no archive")
    with pytest.raises(ReleaseError) as caught:
        store._installer(one.manifest)
    assert caught.value.parts["code"] == "installer-missing"


def test_another_python_is_refused(store: Store, old: Built, user: str, tmp_path: Path) -> None:
    parts = refusal(store, old, user, tmp_path)
    assert parts["code"] == "python-mismatch"
    here = tinywheels.running_python()
    assert parts["why"] == f"found here: python{here}"
    assert parts["fix"] == f'set `python: "{here}"` in builds/old.yml and run `rackwell build old`'
    assert not Path(store.root).exists()


def test_a_python_that_went_away_makes_the_release_unfinished(
    store: Store, one: Built, user: str, tmp_path: Path, python_folder: Path
) -> None:
    stage(store, one, user, tmp_path)
    assert store.unfinished(one.manifest, user) == []
    (python_folder / f"python{tinywheels.running_python()}").unlink()
    assert store.unfinished(one.manifest, user) == ["environment"]


def test_an_unknown_user_is_said(store: Store, one: Built, tmp_path: Path) -> None:
    assert refusal(store, one, "no-such-user", tmp_path)["code"] == "user-missing"
    assert store.slot("current") is None


def test_a_cache_directory_of_somebody_else_is_mended(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    stage(store, one, user, tmp_path)
    (tmp_path / "cache" / one.manifest.digest).rmdir()
    assert store.unfinished(one.manifest, user) == ["caches"]
    assert stage(store, one, user, tmp_path)
    assert store.unfinished(one.manifest, user) == []


def test_a_slot_that_is_no_link_is_left_alone(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    (tmp_path / "opt/current").mkdir(parents=True)
    assert refusal(store, one, user, tmp_path)["code"] == "slot-occupied"
    assert (tmp_path / "opt/current").is_dir()


def test_two_runs_do_not_meet(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    other = Store(store.root, store.cache, store.python_folder)
    other.lock()
    try:
        assert refusal(store, one, user, tmp_path)["code"] == "locked"
    finally:
        other.unlock()
    assert stage(store, one, user, tmp_path)


@pytest.mark.parametrize(
    "said", ["error: failed to write: No space left on device (os error 28)", "error: no such wheel"]
)
def test_a_failing_installer_touches_no_slot(
    store: Store, one: Built, user: str, tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], _seconds: float, **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 2, stdout=said)

    monkeypatch.setattr(release_target.bounded, "run", fails)
    with pytest.raises((OSError, ReleaseError)) as caught:
        stage(store, one, user, tmp_path, slot="current")
    if isinstance(caught.value, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert not (Path(store.release(one.manifest.digest)) / "env").exists(), "its space is given back"
    else:
        assert (caught.value.parts["code"], caught.value.parts["why"]) == ("install-failed", said)
    assert store.slot("current") is None
    assert "environment" in store.unfinished(one.manifest, user)


def test_an_installer_that_hangs_is_ended_and_the_next_run_converges(
    store: Store, one: Built, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = release_target.bounded.run
    with monkeypatch.context() as patched:
        patched.setattr(release_target, "DEADLINE_S", 0.2)
        patched.setattr(
            release_target.bounded, "run", lambda _command, *rest, **more: real(["sleep", "600"], *rest, **more)
        )
        parts = refusal(store, one, user, tmp_path)
    assert parts["code"] == "timed-out"
    assert parts["where"]
    assert parts["fix"]
    assert stage(store, one, user, tmp_path, slot="current")
    assert is_right(store, one)


def test_in_check_mode_the_module_itself_takes_nothing_in(store: Store, one: Built) -> None:
    """The action plugin does not ask for it; whoever calls the module without it must not change anything either."""

    class EndedError(Exception):
        pass

    class Module:
        check_mode = True
        params: ClassVar = {"archive": "/nonexistent.tar", "step": "install", "state": "staged"}

        def exit_json(self, **result: object) -> None:
            raise EndedError(result["changed"])

    with pytest.raises(EndedError, match="False"):
        release_store._change(Module(), store, one.manifest)
    assert not Path(store.root).exists()
