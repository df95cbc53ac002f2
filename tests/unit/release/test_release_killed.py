# SPDX-License-Identifier: Apache-2.0
"""A process that stages is killed (SIGKILL) at every step; a bit of every blob flips; every transfer is cut."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError, pack
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store
from releasesite import Built
from test_release_target import is_right, stage

LIMIT = 3000
"""Bytes of a transfer: small, so that blobs come in pieces."""


def killed_at(number: int, work: Callable[[Callable[[str], None]], None]) -> None:
    """Do `work` in a process of its own that kills itself at step `number`."""
    pid = os.fork()
    if pid == 0:
        left = number

        def die(_step: str) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        try:
            work(die)
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it came to its end, or failed by itself"
    assert os.WTERMSIG(status) == signal.SIGKILL


def steps_of(store: Store, built: Built, user: str, folder: Path) -> list[str]:
    steps: list[str] = []
    store.reached = steps.append  # type: ignore[method-assign]
    stage(store, built, user, folder, slot="current", limit=LIMIT)
    return steps


def test_killed_at_any_step_the_next_run_converges(
    python_folder: Path, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    probe = Store(str(tmp_path / "probe"), str(tmp_path / "probe-cache"), str(python_folder))
    steps = steps_of(probe, two, user, tmp_path)
    assert {"piece received", "blob stored", "wheels installed", "complete", "link made", "switched"} <= set(steps)
    # the same step again and again, such as for each blob, leaves the same kind of state: the first and the last do
    chosen = sorted(
        {steps.index(step) for step in steps} | {len(steps) - 1 - steps[::-1].index(step) for step in steps}
    )
    for at in chosen:
        base = tmp_path / f"at-{at}"
        store = Store(str(base / "opt"), str(base / "cache"), str(python_folder))
        (base / "opt/releases" / one.manifest.digest).mkdir(parents=True)
        store.switch("current", one.manifest.digest)  # something runs already

        def work(die: Callable[[str], None], store: Store = store, base: Path = base) -> None:
            store.reached = die  # type: ignore[method-assign]
            stage(store, two, user, base, slot="current", limit=LIMIT)

        killed_at(at, work)
        if "environment" in store.unfinished(two.manifest, user):
            assert store.slot("current") == one.manifest.digest, "a slot never leads to a half-made release"
        again = Store(store.root, store.cache, store.python_folder)
        stage(again, two, user, base, slot="current", limit=LIMIT)
        assert again.slot("current") == two.manifest.digest
        assert again.damaged(two.manifest) == []
        assert not stage(again, two, user, base, slot="current")
        assert not list(base.rglob("*.partial")), steps[at]
    assert is_right(again, two)


def test_the_installer_ends_with_the_process_that_started_it(
    store: Store, one: Built, user: str, tmp_path: Path
) -> None:
    """Else it would write on beside the next run, which takes the lock that the killed one lost."""
    stage(store, one, user, tmp_path)
    release = Path(store.release(one.manifest.digest))
    (release / "complete").unlink()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    installer = Path(store.root) / "uv" / one.manifest.uv["sha256"] / "uv"
    installer.unlink()
    installer.write_text(f"#!/bin/sh\nexec 3>{pipe}\necho started >&3\nexec sleep 600\n")
    installer.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        try:
            stage(store, one, user, tmp_path)
        finally:
            os._exit(1)
    with pipe.open() as stream:
        assert stream.readline() == "started\n"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert stream.read() == "", "its end of the pipe is closed when it is gone"


def test_killed_while_it_mends_the_next_run_converges(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    def damage() -> None:
        for path in Path(store.release(one.manifest.digest)).glob("env/lib/*/site-packages/leaf.py"):
            path.unlink()

    def mend(reached: Callable[[str], None]) -> None:
        own = Store(store.root, store.cache, store.python_folder)
        own.reached = reached  # type: ignore[method-assign]
        own.lock()
        own.install(one.manifest, one.requirements, user, {}, True)
        own.unlock()

    stage(store, one, user, tmp_path)
    damage()
    steps: list[str] = []
    mend(steps.append)
    assert "damaged wheels installed anew" in steps
    for at in range(len(steps)):
        damage()
        killed_at(at, mend)
        mend(lambda _step: None)
        assert store.damaged(one.manifest) == []
        assert store.unfinished(one.manifest, user) == []


def test_a_bit_flipped_in_any_blob_is_told_and_mended(store: Store, one: Built, user: str, tmp_path: Path) -> None:
    stage(store, one, user, tmp_path)
    for sha256 in sorted(one.manifest.blobs):
        blob = Path(store.blobs) / sha256
        data = blob.read_bytes()
        for position in (0, len(data) // 2, len(data) - 1):
            with blob.open("r+b") as stream:
                stream.write(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
            assert store.missing(one.manifest) == {sha256: "damaged"}
            with pytest.raises(ReleaseError) as caught:
                store._prepared(one.manifest)
            assert caught.value.parts["code"] == "blob-missing", "nothing is installed from it"
            assert stage(store, one, user, tmp_path)
            assert store.missing(one.manifest) == {}


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_transfer_that_was_cut_leaves_nothing_that_counts(
    store: Store, one: Built, user: str, tmp_path: Path, part: float
) -> None:
    archive = tmp_path / "cut.tar"
    whole = [(sha256, 0, size) for sha256, size in sorted(one.manifest.blobs.items())]
    pack(whole, str(one.blobs), str(archive))
    data = archive.read_bytes()
    contents = data.rstrip(b"\0")  # the blocks of zeros at the end say nothing
    archive.write_bytes(contents[: int(len(contents) * part)])

    def receive_and_install() -> None:
        store.receive(one.manifest, str(archive))
        store.install(one.manifest, one.requirements, user)

    with pytest.raises(ReleaseError) as caught:
        receive_and_install()
    assert caught.value.parts["code"] in {"transfer-damaged", "blob-damaged", "blob-missing"}
    assert store.slot("current") is None
    assert "environment" in store.unfinished(one.manifest, user)
    assert stage(store, one, user, tmp_path, slot="current")
    assert is_right(store, one)
