# SPDX-License-Identifier: Apache-2.0
"""The names of runs on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackwell.bench.result import BenchResult
from rackwell.bench.store import Store, resolve
from rackwell.errors import ExitCode, RackwellError

from .conftest import point, run

OLD, NEW, OPEN = "20261128T090000Z-00aa", "20261129T101500Z-4f2a", "20261129T120000Z-77bb"


def made(name: str, container: str = "glm5-01", *, complete: bool = True) -> BenchResult:
    date = f"{name[:4]}-{name[4:6]}-{name[6:8]}T{name[9:11]}:{name[11:13]}:{name[13:15]}+00:00"
    result = run([point(4, (200.0, 100.0, 120.0))], name, date)
    return result.model_copy(update={"container": container, "complete": complete})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    store = Store(tmp_path / "site")
    for result in (made(OLD), made(NEW), made(OPEN, complete=False), made(NEW, "glm5-02")):
        store.save(result)
    return tmp_path / "site"


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("glm5-01", NEW),
        ("glm5-01~0", NEW),
        ("glm5-01~1", OLD),
        ("glm5-01/" + NEW, NEW),
        ("glm5-01/4f2a", NEW),
        ("77bb", OPEN),
        ("20261128", OLD),
        (OLD, OLD),
    ],
)
def test_a_run_is_found_by(site: Path, reference: str, name: str) -> None:
    entry = resolve(site, reference)
    assert (entry.container, entry.name) == ("glm5-01", name)
    assert resolve(site, entry.reference) == entry


def test_a_file_and_a_directory_are_runs_wherever_they_lie(site: Path, tmp_path: Path) -> None:
    stored = resolve(site, OLD)
    copy = tmp_path / "copy.json"
    copy.write_bytes(stored.file.read_bytes())
    for path in (copy, stored.path, stored.file):
        assert resolve(tmp_path, str(path)).load() == stored.load()


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("4f2a", "run-ambiguous"),
        ("2026112", "run-ambiguous"),
        ("glm5-01~2", "run-unknown"),
        ("glm5-03", "run-unknown"),
        ("glm5-01/", "run-unknown"),
        ("", "run-unknown"),
        ("no/such/file.json", "run-unknown"),
        ("glm5-02/00aa", "run-unknown"),
    ],
)
def test_what_means_none_or_several_is_refused(site: Path, reference: str, code: str) -> None:
    with pytest.raises(RackwellError) as caught:
        resolve(site, reference)
    assert caught.value.exit_code == ExitCode.INVALID
    assert caught.value.problems[0].code == code


def test_an_interrupted_run_is_never_taken_for_the_newest_or_for_what_was_measured(site: Path) -> None:
    store = Store(site)
    assert resolve(site, "glm5-01").name == NEW
    assert [entry.name for entry, _ in store.interrupted("glm5-01", made(NEW).bench)] == [OPEN]
    later = made("20261130T000000Z-ffff")
    previous = store.previous(later)
    assert previous is not None
    assert previous.run_id == NEW
