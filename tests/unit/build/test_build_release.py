# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import tinywheels
from buildsite import BUILD, Site

from rackwell import bounded
from rackwell.build import fetch, load_build, lock
from rackwell.build.files import scratch
from rackwell.errors import ExitCode, RackwellError


def tree(folder: Path, *, provenance: bool = True) -> dict[str, bytes | str]:
    """Every file and link below a folder; without provenance, what must be the same wherever it is made."""
    # verified.json holds inodes and times
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file())
        and (provenance or path.name not in {"provenance.json", "verified.json"})
    }


def fails(site: Site, path: Path, **options: object) -> RackwellError:
    with pytest.raises(RackwellError) as caught:
        site.make(path, **options)
    return caught.value


def test_a_release_is_what_its_digest_says(locked: Site) -> None:
    release = locked.make(locked.write(BUILD))
    data = (release.path / "manifest.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == release.digest == release.path.name
    assert json.loads(data) == release.manifest
    assert data == json.dumps(release.manifest, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert release.changed
    assert str((locked.state / "builds/lab").readlink()) == f"../releases/{release.digest}"
    manifest = release.manifest
    assert (manifest["schema"], manifest["name"]) == ("rackwell.release/1", "lab")
    assert (manifest["python"], manifest["platform"]) == ("3.11", "linux_x86_64")
    requirements = (release.path / "requirements.txt").read_bytes()
    assert hashlib.sha256(requirements).hexdigest() == manifest["requirements_sha256"]
    assert [w["project"] for w in manifest["wheels"]] == ["flashinfer-python", "helper", "leaf", "native", "sglang"]
    assert requirements.decode().splitlines() == sorted(
        f"{w['project']}=={w['version']} --hash=sha256:{w['sha256']}" for w in manifest["wheels"]
    )
    for wheel in [*manifest["wheels"], manifest["uv"]]:
        blob = locked.state / "blobs/sha256" / wheel["sha256"]
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == wheel["sha256"]
        assert blob.stat().st_size == wheel["size"]
    assert manifest["wheels"][3]["filename"] == "native-2.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert [source["project"] for source in manifest["sources"]] == ["flashinfer-python", "sglang"]
    assert list((locked.state / "tmp").iterdir()) == []


def test_the_patched_wheel_is_patched_and_keeps_its_version(locked: Site) -> None:
    manifest = locked.make(locked.write(BUILD)).manifest
    wheel = manifest["wheels"][-1]
    assert re.fullmatch(r"sglang-0\.5\.9-1[0-9a-f]{8}-py3-none-any\.whl", wheel["filename"])
    assert wheel["version"] == "0.5.9"
    assert wheel["sha256"] != manifest["sources"][1]["sha256"]
    with zipfile.ZipFile(locked.state / "blobs/sha256" / wheel["sha256"]) as archive:
        assert b"line twenty-one\n" in archive.read("sglang/runner.py")
        assert b"Version: 0.5.9\n" in archive.read("sglang-0.5.9.dist-info/METADATA")
    (patch,) = manifest["patches"]
    assert patch["files"] == ["sglang/runner.py"]
    assert patch["needs_flags"] == {"moe-runner-backend": "flashinfer_cutlass"}
    assert (patch["status"], patch["file"]) == ("recommended", "0.5.9.patch")


def test_the_same_inputs_give_the_same_digest(site: Site, tmp_path: Path) -> None:
    first = site.make(site.write(BUILD))
    other = Site(tmp_path / "elsewhere" / "site", site.catalog, site.index)
    second = other.make(other.write(BUILD))
    assert first.digest == second.digest
    assert tree(first.path, provenance=False) == tree(second.path, provenance=False)
    assert tree(site.state / "blobs") == tree(other.state / "blobs")
    assert (site.folder / "builds/lab.lock").read_bytes() == (other.folder / "builds/lab.lock").read_bytes()


def test_a_second_run_changes_nothing(locked: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = locked.write(BUILD)
    first = locked.make(path)
    before = tree(locked.folder)
    # with everything there, nobody is asked
    monkeypatch.setattr(lock, "resolve", None)
    monkeypatch.setattr(fetch, "_run", None)
    second = locked.make(path)
    assert (second.digest, second.changed) == (first.digest, False)
    assert tree(locked.folder) == before


def test_another_patch_is_another_release(locked: Site) -> None:
    path = locked.write(BUILD)
    first = locked.make(path)
    diff = locked.catalog / "patches/sglang/example/0.5.9.patch"
    diff.write_text(diff.read_text().replace("twenty-one", "XXI"))
    second = locked.make(path)
    assert second.digest != first.digest
    assert second.changed
    assert second.manifest["wheels"][-1]["filename"] != first.manifest["wheels"][-1]["filename"]
    assert first.path.is_dir(), "the release before stays, to return to"


def test_the_lock_is_a_requirements_file_without_an_index(locked: Site) -> None:
    locked.make(locked.write(BUILD))
    text = (locked.folder / "builds/lab.lock").read_text()
    assert re.match(r"# rackwell-lock/1 inputs-sha256:[0-9a-f]{64}\n", text)
    assert "://" not in text
    found = lock.read_lock(locked.folder / "builds/lab.lock")
    assert found is not None
    assert found.text() == text
    assert [wheel.project for wheel in found.sources] == ["flashinfer-python", "sglang"]
    assert [wheel.project for wheel in found.dependencies] == ["helper", "leaf", "native"]
    assert found.installer.project == "uv"


def test_the_lock_holds_until_its_inputs_change(site: Site) -> None:
    path = site.write(BUILD)
    site.make(path)
    newer = tinywheels.make_wheel(site.index, "leaf", "3.1", {"leaf.py": "VALUE = 31\n"})
    try:
        assert "leaf==3.0" in (site.make(path).path / "requirements.txt").read_text()
        assert "leaf==3.1" in (site.make(path, relock=True).path / "requirements.txt").read_text()
        site.make(path)
        path = site.write(BUILD.replace("[helper, native]", "[helper, native, 'leaf<3.1']"))
        site.said.clear()
        assert "leaf==3.0" in (site.make(path).path / "requirements.txt").read_text()
        assert "lock lab.lock: resolving (the build's inputs changed)" in site.said
    finally:
        newer.unlink()


def test_dependencies_full_follows_the_sources(site: Site) -> None:
    text = BUILD.replace("declared", "full").replace("requirements: [helper, native]\n", "")
    manifest = site.make(site.write(text)).manifest
    assert [w["project"] for w in manifest["wheels"]] == ["flashinfer-python", "helper", "leaf", "sglang"]


def test_the_commands_pin_the_target_and_name_no_index() -> None:
    uv = lock.uv_command(Path("in.txt"), "3.13", follow=True)
    assert {"--generate-hashes", "--no-header", "--no-annotate", ":all:", "--no-python-downloads"} <= set(uv)
    assert uv[uv.index("--python-version") + 1] == "3.13"
    assert uv[uv.index("--python-platform") + 1] == "x86_64-manylinux_2_34"
    assert "--no-deps" not in uv
    assert "--no-deps" in lock.uv_command(Path("in.txt"), "3.13", follow=False)
    pip = fetch.pip_command(Path("in.txt"), Path("out"), "3.13")
    assert {"download", "--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(pip)
    named = [pip[at + 1] for at, word in enumerate(pip) if word == "--platform"]
    assert {"manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "linux_x86_64"} <= set(named)
    assert not [word for word in uv + pip if "://" in word or "index" in word]
    environment = lock.uv_environment()
    assert (environment["UV_SYSTEM_CERTS"], environment["UV_NATIVE_TLS"]) == ("1", "1")


def test_python_of_the_container(site: Site) -> None:
    path = site.write(BUILD)
    site.make(path)
    release = site.make(path, python="3.13")
    assert release.manifest["python"] == "3.13"
    names = [wheel["filename"] for wheel in release.manifest["wheels"]]
    assert "native-2.0-cp313-cp313-manylinux_2_28_x86_64.whl" in names
    assert (site.folder / "builds/lab-py3.13.lock").is_file()
    assert (site.state / "builds/lab").readlink() == (site.state / "builds/lab-py3.13").readlink()
    assert site.make(path).manifest["python"] == "3.11"


def test_a_shipped_build_is_locked_in_the_site(site: Site) -> None:
    path = site.catalog / "builds/probe.yml"
    path.write_text('python: "3.11"\nprobe: true\nrequirements: [leaf]\n')
    release = site.make(path)
    assert (site.folder / "builds/probe.lock").is_file()
    assert list(path.parent.iterdir()) == [path]
    assert [wheel["project"] for wheel in release.manifest["wheels"]] == ["leaf", "rackwell-probe"]


def test_own_wheels(locked: Site) -> None:
    own = tinywheels.make_wheel(locked.folder / "wheels", "mine", "1.0", {"mine.py": ""}, requires=["not-there"])
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    text = f"{BUILD}wheels:\n  - path: ../wheels/{own.name}\n    sha256: {digest}\n"
    manifest = locked.make(locked.write(text)).manifest
    assert {
        "filename": own.name,
        "sha256": digest,
        "size": own.stat().st_size,
        "project": "mine",
        "version": "1.0",
    } in (manifest["wheels"])
    (found,) = fails(locked, locked.write(text.replace(digest, "f" * 64))).problems
    assert found.code == "hash-mismatch"
    assert found.where.endswith("lab.yml:10")
    (found,) = fails(locked, locked.write(text.replace("mine-1.0", "yours-1.0"))).problems
    assert (found.code, found.where.endswith("lab.yml:9")) == ("wheel-missing", True)
    tinywheels.make_wheel(own.parent, "evil", "1.0", {"../evil.py": ""})
    (found,) = fails(locked, locked.write(f"{BUILD}wheels: [{{path: ../wheels/evil-1.0-py3-none-any.whl}}]\n")).problems
    assert (found.code, "../evil.py" in found.why) == ("wheel-malformed", True)
    shutil.copy(own, own.with_name("mine-2.0-py3-none-any.whl"))
    (found,) = fails(locked, locked.write(text.replace("mine-1.0", "mine-2.0"))).problems
    assert (found.code, found.why) == ("wheel-malformed", "its metadata says mine 1.0")
    tinywheels.make_wheel(own.parent, "mine", "1.0", {}, tag="cp312-cp312-linux_x86_64")
    (found,) = fails(locked, locked.write(text.replace("py3-none-any", "cp312-cp312-linux_x86_64"))).problems
    assert found.code == "wheel-unfit"
    tinywheels.make_wheel(own.parent, "leaf", "9", {})
    (found,) = fails(locked, locked.write(f"{BUILD}wheels: [{{path: ../wheels/leaf-9-py3-none-any.whl}}]\n")).problems
    assert (found.code, "leaf" in found.what) == ("given-twice", True)


def test_a_declared_hash_must_be_the_wheels(locked: Site) -> None:
    digest = hashlib.sha256((locked.index / "sglang-0.5.9-py3-none-any.whl").read_bytes()).hexdigest()
    text = BUILD.replace("{version: 0.5.9}", f"{{version: 0.5.9, sha256: {digest}}}")
    locked.make(locked.write(text))
    error = fails(locked, locked.write(text.replace(digest, "f" * 64)))
    assert error.exit_code == ExitCode.INVALID
    assert error.problems[0].code == "hash-mismatch"
    assert error.problems[0].where.endswith("lab.yml:3")


def test_a_wheel_that_changed_at_the_index_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.write(BUILD)
    site.make(path)
    shutil.rmtree(site.state)
    index = tmp_path / "index2"
    shutil.copytree(site.index, index)
    tinywheels.make_wheel(index, "leaf", "3.0", {"leaf.py": "VALUE = 666\n"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    error = fails(site, path)
    assert error.exit_code == ExitCode.FAILED
    assert error.problems[0].code == "hash-mismatch"
    assert "leaf" in error.problems[0].why
    assert not (site.state / "releases").exists()
    assert not (site.state / "builds").exists()


def test_a_wheel_of_the_index_that_leads_out_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index2"
    shutil.copytree(site.index, index)
    tinywheels.make_wheel(index, "leaf", "3.0", {"../leaf.py": "VALUE = 666\n"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    settings = tmp_path / "uv.toml"
    settings.write_text(f"no-index = true\nfind-links = [{json.dumps(str(index))}]\n")
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    error = fails(site, site.write(BUILD))
    assert (error.problems[0].code, "../leaf.py" in error.problems[0].why) == ("wheel-malformed", True)
    assert not (site.state / "builds").exists()


def test_a_damaged_blob_is_fetched_again(locked: Site) -> None:
    path = locked.write(BUILD)
    release = locked.make(path)
    blob = locked.state / "blobs/sha256" / release.manifest["wheels"][1]["sha256"]
    whole = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not locked.make(path).changed
    assert blob.read_bytes() == whole
    (release.path / "manifest.json").write_text("{}")
    assert locked.make(path).changed
    assert hashlib.sha256((release.path / "manifest.json").read_bytes()).hexdigest() == release.digest


def test_what_cannot_be_resolved_is_said(site: Site) -> None:
    error = fails(site, site.write(BUILD.replace("[helper, native]", "[helper>7]")))
    assert error.exit_code == ExitCode.FAILED
    assert (error.problems[0].code, "helper" in error.problems[0].why) == ("resolve-failed", True)
    assert error.problems[0].where.endswith("lab.yml:7")
    assert not (site.folder / "builds/lab.lock").exists()


def test_a_requirement_that_leads_to_a_source_is_refused(site: Site, index: Path) -> None:
    needy = tinywheels.make_wheel(index, "needy", "1", {}, requires=["sglang"])
    try:
        error = fails(site, site.write(BUILD.replace("helper", "needy")))
    finally:
        needy.unlink()
    assert error.problems[0].code == "source-also-required"


LOCK = """\
# rackwell-lock/1 inputs-sha256:{a}
# the installer: travels with the release, is no part of its environment
uv==1 --hash=sha256:{b}  # uv-1-py3-none-any.whl 5 bytes
# the sources
# what they need
leaf==3.0 --hash=sha256:{c}  # leaf-3.0-py3-none-any.whl 7 bytes
""".format(a="a" * 64, b="b" * 64, c="c" * 64)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (LOCK, "", 1),
        ("# rackwell-lock/1", "# rackwell-lock/2", 1),
        ("leaf==3.0", "leaf>=3.0", 6),
        ("c" * 64, "c" * 63, 6),
        ("leaf-3.0-py3-none-any.whl", "../leaf-3.0-py3-none-any.whl", 6),
        (LOCK[LOCK.index("uv==1") : LOCK.index("# the sources")], "", 1),
    ],
)
def test_a_lock_that_is_none_is_refused(tmp_path: Path, old: str, new: str, line: int) -> None:
    path = tmp_path / "lab.lock"
    path.write_text(LOCK)
    assert lock.read_lock(path)
    path.write_text(LOCK.replace(old, new))
    with pytest.raises(RackwellError) as caught:
        lock.read_lock(path)
    assert caught.value.exit_code == ExitCode.INVALID
    assert (caught.value.problems[0].code, caught.value.problems[0].where) == ("lock-damaged", f"{path}:{line}")


def test_no_space_is_told_before_anything_is_fetched(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))
    monkeypatch.setattr(fetch, "_run", None)
    error = fails(site, site.write(BUILD))
    assert (error.exit_code, error.problems[0].code) == (ExitCode.FAILED, "no-space")
    assert "1,000 bytes are available" in error.problems[0].why


def stopping(at: int, said: list[str]) -> Callable[[str], None]:
    """A progress that stops the build at its message number `at`."""

    def progress(message: str) -> None:
        if len(said) == at:
            raise KeyboardInterrupt
        said.append(message)

    return progress


def test_interrupted_anywhere_it_leaves_nothing_half_made(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop at each progress message in turn; the state stays whole, and the run after brings the same release."""
    whole = Site(tmp_path / "whole", site.catalog, site.index)
    expected = whole.make(whole.write(BUILD))
    locked = lock.read_lock(whole.folder / "builds/lab.lock")
    monkeypatch.setattr(lock, "resolve", lambda _spec, _python, _git: locked)

    def copy(_command: object, folder: Path, wanted: dict[str, object], progress: Callable[[str], None]) -> None:
        (folder / "fetched").mkdir()
        for count, name in enumerate(wanted):
            shutil.copy(site.index / name, folder / "fetched")
            progress(f"{count} {name}")

    monkeypatch.setattr(fetch, "_run", copy)
    path = site.write(BUILD)
    for stop in range(len(whole.said)):
        shutil.rmtree(site.state, ignore_errors=True)
        (site.folder / "builds/lab.lock").unlink(missing_ok=True)
        with pytest.raises(KeyboardInterrupt):
            site.make(path, stopping(stop, []))
        for name, content in tree(site.folder).items():
            assert not name.endswith(".partial")
            if "/sha256/" in name:
                assert isinstance(content, bytes)
                assert hashlib.sha256(content).hexdigest() == Path(name).name
        assert site.make(path).digest == expected.digest
    assert tree(site.folder, provenance=False) == tree(whole.folder, provenance=False)


def test_what_the_file_system_refuses_is_said(site: Site) -> None:
    path = site.write(BUILD)
    site.state.write_text("a file where the state should be")
    error = fails(site, path)
    assert (error.exit_code, error.problems[0].code) == (ExitCode.FAILED, "filesystem")
    assert error.problems[0].where.startswith(str(site.state))


@pytest.mark.parametrize("tool", ["uv_command", "pip_command"])
def test_uv_and_pip_have_a_deadline(site: Site, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    path = site.write(BUILD)
    module = lock if tool == "uv_command" else fetch
    monkeypatch.setattr(module, tool, lambda *_, **__: ["sleep", "600"])
    monkeypatch.setattr(module, "DEADLINE_S", 0.2)
    problem = fails(site, path).problems[0]
    assert problem.code == "timed-out"
    assert problem.where
    assert "network" in problem.why
    assert "network" in problem.fix


def test_interrupted_while_pip_works_it_ends_pip(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site.write(BUILD)
    started: list[subprocess.Popen[str]] = []

    class Watched(subprocess.Popen[str]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(bounded.subprocess, "Popen", Watched)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        site.make(path, stopping(4, said))
    assert said[-1].startswith("  1/"), "it was stopped after pip told of the first wheel"
    assert started[-1].returncode is not None
    assert list((site.state / "tmp").iterdir()) == []
    assert not (site.state / "releases").exists()


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    dead = tmp_path / "tmp" / "build-4194304999-x"
    alive = tmp_path / "tmp" / f"build-{os.getpid()}-x"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    with scratch(tmp_path) as folder:
        assert folder.is_dir()
        assert not dead.exists()
        assert alive.exists()
    assert not folder.exists()


@pytest.mark.index
def test_a_shipped_patch_is_built_into_the_real_wheel(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the machine's own index. That all patches apply to all versions is shown by `rackwell patches verify`."""
    from test_build_declaration import CATALOG

    for name in tinywheels.index_environment(site.index):
        monkeypatch.delenv(name, raising=False)
    build = site.write(
        'python: "3.11"\nsources: {sglang: {version: 0.5.9}}\n'
        "patches: [sglang/flashinfer-autotune-cutlass]\ndependencies: declared\n"
    )
    try:
        lock.resolve(load_build(build), "3.11")
    except RackwellError as error:
        pytest.skip(f"the package index does not answer: {error.problems[0].why[:200]}")
    manifest = Site(site.folder, CATALOG, site.index).make(build).manifest
    (wheel,) = manifest["wheels"]
    assert wheel["sha256"] != manifest["sources"][0]["sha256"]


def test_what_pip_brings_is_held_against_the_lock_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = lock.LockedWheel("leaf", "3.0", "leaf-3.0-py3-none-any.whl", "f" * 64, 1)

    def bring(*_: object) -> None:
        tinywheels.make_wheel(tmp_path / "fetched", "leaf", "3.0", {"leaf.py": ""})

    monkeypatch.setattr(fetch, "_run", bring)
    blobs = fetch.Blobs(tmp_path / "state")
    with pytest.raises(RackwellError) as caught:
        fetch.fetch([wheel], "3.11", blobs, tmp_path, lambda _message: None)
    assert caught.value.problems[0].code == "hash-mismatch"
    assert blobs.missing([wheel.sha256]) == {wheel.sha256}


def test_what_nobody_touched_is_not_hashed_again_for_the_next_release(
    locked: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = locked.write(BUILD)
    first = locked.make(path)
    hashed: list[str] = []

    def counting(path: Path) -> str:
        hashed.append(path.name)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(fetch, "sha256_of", counting)
    diff = locked.catalog / "patches/sglang/example/0.5.9.patch"
    diff.write_text(diff.read_text().replace("twenty-one", "XXI"))
    second = locked.make(path)
    assert second.digest != first.digest
    passed_on = {
        wheel["sha256"] for wheel in second.manifest["wheels"] if wheel["project"] in {"helper", "leaf", "native"}
    }
    sources = {source["sha256"] for source in second.manifest["sources"]}
    assert not passed_on & set(hashed)
    assert sources <= set(hashed), "what is patched is read, and so it is hashed"
    # somebody touched one
    blob = locked.state / "blobs/sha256" / min(passed_on)
    os.utime(blob)
    hashed.clear()
    diff.write_text(diff.read_text().replace("XXI", "XX-I"))
    locked.make(path)
    assert passed_on & set(hashed) == {blob.name}


def test_a_release_that_is_found_made_is_hashed_through(locked: Site) -> None:
    """A bit that flips without anybody's doing changes no time; the next run finds it, and brings the file again."""
    path = locked.write(BUILD)
    first = locked.make(path)
    locked.make(path)
    for wheel in first.manifest["wheels"]:
        blob = locked.state / "blobs/sha256" / wheel["sha256"]
        good, stamps = blob.read_bytes(), json.loads((locked.state / "verified.json").read_text())
        blob.chmod(0o644)
        blob.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        found = blob.stat()
        stamps[blob.name] = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        (locked.state / "verified.json").write_text(json.dumps(stamps))
        assert locked.make(path).digest == first.digest
        assert blob.read_bytes() == good, wheel["filename"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', '{"x": [1]}', "null"])
def test_stamps_that_are_damaged_count_for_nothing(locked: Site, text: str) -> None:
    first = locked.make(locked.write(BUILD))
    (locked.state / "verified.json").write_text(text)
    assert locked.make(locked.write(BUILD)).digest == first.digest
    assert json.loads((locked.state / "verified.json").read_text()).keys() >= {first.manifest["uv"]["sha256"]}
