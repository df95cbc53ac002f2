# SPDX-License-Identifier: Apache-2.0
"""Caches of compiled kernels: whole, of the same kind of machine, never over another; or not at all."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.action import release_cache as action
from ansible_collections.rackwell.gpu.plugins.module_utils.release_cache import Cache
from ansible_collections.rackwell.gpu.plugins.module_utils.release_cache_key import (
    PARTS,
    differences,
    differs,
    key_id,
    read_paper,
    seal,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError
from test_release_killed import killed_at

DIGEST = "ab" * 32
GPUS = {"gpu_architecture": "12.0", "gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "driver": "595.58.03"}
ODD_NS = 1_700_000_000_123_456_789
"""A time to the nanosecond, which is what ninja compares."""


class Machine(Cache):
    """A container of the given GPUs."""

    def __init__(self, base: Path, **gpus: str) -> None:
        self.proc_folder = base / "proc"
        self.proc_folder.mkdir(parents=True, exist_ok=True)
        (base / "cache" / DIGEST).mkdir(parents=True, exist_ok=True)
        # both are at the same path on two containers, and cannot be here
        super().__init__("/opt/rackwell", str(base / "cache"), DIGEST, str(self.proc_folder))
        self._gpus = {**GPUS, **gpus}

    def gpus(self) -> dict[str, str]:
        return self._gpus

    def key(self) -> dict[str, str]:
        return {**super().key(), "caches": "/var/cache/rackwell"}


def compile_something(machine: Machine) -> None:
    for path, data in (
        (".cache/flashinfer/0.6.3/120f/cached_ops/moe/moe.so", b"\x7fELF" + bytes(5000)),
        (".cache/flashinfer/0.6.3/120f/cached_ops/moe/.ninja_log", b"# ninja log v5\n"),
        ("sglang/flashinfer/autotune/rank_tp0.json", b'{"tactic": 7}\n'),
        ("pycache/x.pyc", b"pyc"),
        ("triton/a.lock", b""),
    ):
        file = Path(machine.path) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, ns=(ODD_NS, ODD_NS))
    (Path(machine.path) / "triton/link").symlink_to("/etc/passwd")


@pytest.fixture
def captured(tmp_path: Path, user: str) -> tuple[Path, dict[str, Any]]:
    """Archive and paper of what the first machine compiled."""
    first = Machine(tmp_path / "first")
    compile_something(first)
    return tmp_path / "cache.tar.gz", first.pack(str(tmp_path / "cache.tar.gz"), user)


def refusal(work: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(ReleaseError) as caught:
        work()
    assert caught.value.parts["fix"]
    return caught.value.parts


def contents(machine: Machine) -> dict[str, bytes]:
    base = Path(machine.path)
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}


def test_what_one_machine_compiled_is_on_the_other(
    captured: tuple[Path, dict[str, Any]], tmp_path: Path, user: str
) -> None:
    archive, paper = captured
    assert read_paper(json.dumps(paper), "here") == paper
    second = Machine(tmp_path / "second")
    (Path(second.path) / "pycache").mkdir()
    (Path(second.path) / "pycache/own.pyc").write_bytes(b"own")
    assert second.untouched()
    second.unpack(str(archive), paper, user)
    found = contents(second)
    assert sorted(found) == [
        ".cache/flashinfer/0.6.3/120f/cached_ops/moe/.ninja_log",
        ".cache/flashinfer/0.6.3/120f/cached_ops/moe/moe.so",
        "pycache/own.pyc",
        "sglang/flashinfer/autotune/rank_tp0.json",
    ]
    assert len(found[".cache/flashinfer/0.6.3/120f/cached_ops/moe/moe.so"]) == 5004
    for path in Path(second.path).rglob("*.so"):
        assert path.stat().st_mtime_ns == ODD_NS
        assert path.owner() == user
    assert not second.untouched()
    assert not list((tmp_path / "second/cache").glob(".*"))


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_key_that_differs_is_refused_with_the_part(
    captured: tuple[Path, dict[str, Any]], tmp_path: Path, user: str, part: str
) -> None:
    archive, paper = captured
    other = seal({**paper, "key": {**paper["key"], part: "other"}})
    assert key_id(other["key"]) != paper["id"]
    second = Machine(tmp_path / "second")
    parts = refusal(lambda: second.unpack(str(archive), other, user))
    assert parts["code"] == "cache-key-differs"
    assert parts["why"].startswith(f"{PARTS[part]}: other there, ")
    assert second.untouched()


def test_the_differences_of_two_machines() -> None:
    here, there = {**GPUS, "release": DIGEST}, {**GPUS, "release": DIGEST, "driver": "580.1"}
    assert differs(differences(here, there)) == "driver: 580.1 there, 595.58.03 here"
    assert differences(here, here) == []


def test_a_bit_in_any_place_is_noticed(captured: tuple[Path, dict[str, Any]], tmp_path: Path, user: str) -> None:
    archive, paper = captured
    data = bytearray(gzip.decompress(archive.read_bytes()))
    second = Machine(tmp_path / "second")
    with tarfile.open(archive) as opened:
        offsets = [info.offset_data for info in opened]
    for offset in [*offsets, 0]:  # a byte of each file, and of a name
        flipped = bytes(data[:offset]) + bytes([data[offset] ^ 1]) + bytes(data[offset + 1 :])
        (tmp_path / "flipped").write_bytes(gzip.compress(flipped, mtime=0))
        assert refusal(lambda: second.unpack(str(tmp_path / "flipped"), paper, user))["code"] == "cache-damaged"
    whole = archive.read_bytes()
    for end in (0, len(whole) // 2, len(whole) * 9 // 10):
        (tmp_path / "cut").write_bytes(whole[:end])
        assert refusal(lambda: second.unpack(str(tmp_path / "cut"), paper, user))["code"] == "cache-damaged"
    assert second.untouched()
    assert not list((tmp_path / "second/cache").glob(".*"))
    for change in (
        {"files": [{**paper["files"][0], "mode": 0o777}, *paper["files"][1:]]},
        {"key": {**paper["key"], "driver": "1.2"}},
    ):
        assert (
            refusal(lambda change=change: read_paper(json.dumps({**paper, **change}), "x"))["code"] == "cache-damaged"
        )  # type: ignore[misc]


def test_a_paper_that_leads_out_is_refused(captured: tuple[Path, dict[str, Any]]) -> None:
    _archive, paper = captured
    for path in ("../x", "/etc/x", "a//b", ""):
        bad = seal({**paper, "files": [{**paper["files"][0], "path": path}]})
        assert refusal(lambda bad=bad: read_paper(json.dumps(bad), "x"))["code"] == "cache-damaged"  # type: ignore[misc]


def test_nothing_is_captured_that_is_being_written(tmp_path: Path, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path / "first")
    archive = str(tmp_path / "x.tar.gz")
    assert refusal(lambda: machine.pack(archive, user))["code"] == "cache-empty"
    compile_something(machine)
    (machine.proc_folder / "77").mkdir()
    (machine.proc_folder / "77/comm").write_text("cicc\n")
    parts = refusal(lambda: machine.pack(archive, user))
    assert (parts["code"], "cicc (process 77)" in parts["why"]) == ("cache-busy", True)
    (machine.proc_folder / "77/comm").write_text("python\n")
    write = Cache._write

    def meanwhile(self: Cache, *given: Any) -> Any:
        files = write(self, *given)
        (Path(self.path) / "sglang/more.json").write_text("{}")
        return files

    monkeypatch.setattr(Cache, "_write", meanwhile)
    parts = refusal(lambda: machine.pack(archive, user))
    assert (parts["code"], "sglang/more.json" in parts["why"]) == ("cache-busy", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_user_cannot_have_root_read_for_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        machine = Machine(Path(folder))
        compile_something(machine)
        machine.pack(str(tmp_path / "x.tar.gz"), "nobody")
        secret = Path(machine.path) / "secret"
        secret.write_text("root's")
        secret.chmod(0o600)
        parts = refusal(lambda: machine.pack(str(tmp_path / "x.tar.gz"), "nobody"))
    assert parts["code"] == "cache-busy"
    assert os.geteuid() == 0


def test_killed_while_unpacking_the_next_run_goes_on(
    captured: tuple[Path, dict[str, Any]], tmp_path: Path, user: str
) -> None:
    archive, paper = captured
    for at in range(3):
        machine = Machine(tmp_path / f"second-{at}")

        def work(die: Callable[[str], None], machine: Machine = machine) -> None:
            machine.reached = die  # type: ignore[method-assign]
            machine.unpack(str(archive), paper, user)

        killed_at(at, work)
        assert machine.untouched() == (at < 2), "all of it, or nothing"
        if machine.untouched():
            machine.unpack(str(archive), paper, user)
        assert len(contents(machine)) == 3


def test_the_controllers_copies(captured: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    archive, paper = captured
    place = tmp_path / "caches" / paper["id"]
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps(paper))
    (place / "cache.tar.gz").write_bytes(archive.read_bytes())
    assert action.known(str(tmp_path / "caches")) == ([paper], {})
    action.check_archive(str(place), paper)
    (place / "cache.tar.gz").write_bytes(archive.read_bytes() + b"x")
    assert refusal(lambda: action.check_archive(str(place), paper))["code"] == "cache-damaged"
    place.rename(tmp_path / "caches/other")
    papers, broken = action.known(str(tmp_path / "caches"))
    assert papers == []
    assert "wrong name" in broken["other"]
    assert action.known(str(tmp_path / "nothing")) == ([], {})
