# SPDX-License-Identifier: Apache-2.0
"""A run is stored after each point, a host's files are not trusted, and no secret gets in."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rackwell.bench.result import BenchResult
from rackwell.bench.store import Store
from rackwell.provision import crediting, recording
from rackwell.provision.recording import Recorder

from .conftest import point

SECRET = "hunter2hunter2"


def tar(path: Path, members: dict[str, bytes], link: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return path


def test_only_the_files_of_points_are_unpacked_and_none_with_a_secret(tmp_path: Path) -> None:
    good, bad = gzip.compress(b'{"a": 1}\n'), gzip.compress(f'{{"key": "{SECRET}"}}'.encode())
    raw = tar(
        tmp_path / "raw.tar",
        {
            "./i32-o16-c2-r1/out.jsonl.gz": good,
            "./i32-o16-c2-r1/telemetry.json.gz": good,
            "./i32-o16-c4-r1/out.jsonl.gz": bad,
            "./i32-o16-c8-r1/out.jsonl.gz": b"no gzip",
            "../../evil/out.jsonl.gz": good,
            "/etc/out.jsonl.gz": good,
            "./i32-o16-c2-r1/other": good,
        },
        link="./i32-o16-c1-r1/out.jsonl.gz",
    )
    entry = tmp_path / "run"
    entry.mkdir()
    assert recording.unpack(raw, entry, [SECRET]) == 2
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        "run/points/i32-o16-c2-r1/client.jsonl.gz",
        "run/points/i32-o16-c2-r1/telemetry.json.gz",
    ]


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100])
def test_a_tar_that_is_none_does_no_harm(tmp_path: Path, content: bytes) -> None:
    raw = tmp_path / "raw.tar"
    raw.write_bytes(content)
    assert recording.unpack(raw, tmp_path, []) == 0
    assert recording.unpack(raw, tmp_path, []) == 0  # it is not there any more


def test_each_point_is_on_the_disk_before_it_is_told_of(tmp_path: Path, story: BenchResult) -> None:
    store = Store(tmp_path)
    started = story.model_copy(update={"points": [], "complete": False})
    seen: list[int] = []

    def told(_: Any) -> None:
        stored = store.entries("glm5-01")[0].load()
        seen.append(len(stored.points))
        assert not stored.complete

    recorder = Recorder(store, started, "glm5-01", [SECRET], told)
    entry = recorder.save()
    assert entry is not None
    first, second = point(4, (200.0, 100.0, 120.0)), point(16, (900.0, 100.0, 120.0))
    recorder.take("glm5-01", {**first, "lines": [f"api_key={SECRET}"]})
    recorder.take("glm5-02", second)  # of another machine
    recorder.take("glm5-01", {"schema": "rackwell.bench_point/1", "status": "planned"})
    recorder.take("glm5-01", second)
    recorder.take("glm5-01", second)  # told again at the play's end
    assert seen == [1, 2]
    assert SECRET not in entry.file.read_text()


def test_a_point_that_cannot_be_read_is_told_and_the_others_are_kept(tmp_path: Path, story: BenchResult) -> None:
    recorder = Recorder(Store(tmp_path), story.model_copy(update={"points": []}), "glm5-01", [])
    recorder.take("glm5-01", {"schema": "rackwell.bench_point/1", "status": "measured", "concurrency": "many"})
    recorder.take("glm5-01", point(4, (200.0, 100.0, 120.0)))
    assert recorder.problem is not None
    assert recorder.problem.problems[0].code == "result-invalid"
    assert len(recorder.run.points) == 1


def test_a_secret_is_hidden_wherever_it_stands() -> None:
    data = {"a": [f"x{SECRET}y", 5, None], SECRET: {"b": True}}
    assert crediting.hide(data, [SECRET]) == {"a": ["x***y", 5, None], "***": {"b": True}}
    assert crediting.hide(data, []) is data
