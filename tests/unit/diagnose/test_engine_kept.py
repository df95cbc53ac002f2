# SPDX-License-Identifier: Apache-2.0
"""The cache of rules: the same rules, and never those of anybody else, or of other files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rackwell import shipped
from rackwell.diagnose import kept
from rackwell.diagnose.rules import Rule, folder, load_rules
from rackwell.errors import RackwellError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rackwell" / "rules"


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    mine = folder(tmp_path / "catalog") / "memory"
    mine.mkdir(parents=True)
    for path in sorted((folder(shipped.catalog()) / "memory").glob("*.yml"))[:5]:
        shutil.copy(path, mine)
    return tmp_path / "catalog"


def told(rules: list[Rule]) -> list[object]:
    return [(rule.model_dump(), rule.tree) for rule in rules]


def test_the_rules_are_the_same_and_read_once(cache: Path, catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.rules(catalog)
    assert told(first) == told(load_rules(catalog))
    (path,) = cache.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(kept, "load", lambda _: pytest.fail("read anew"))
    assert told(kept.rules(catalog)) == told(first)


def test_another_file_is_another_cache(cache: Path, catalog: Path) -> None:
    before = kept.rules(catalog)
    path = min(folder(catalog).glob("*/*.yml"))
    path.write_text(path.read_text().replace("title: ", "title: Not "))
    assert kept.rules(catalog)[0].title == f"Not {before[0].title}"
    path.write_text(path.read_text().replace("severity: ", "severity: un"))
    with pytest.raises(RackwellError):
        kept.rules(catalog)
    for number in range(9):
        path.write_text(f"# {number}\n" + path.read_text().replace("severity: un", "severity: "))
        kept.rules(catalog)
    assert len(list(cache.iterdir())) == kept._KEPT


@pytest.mark.parametrize("wrong", ["", "{", "[]", "[1]", '[{"id": "x"}]', "null", "link", "writable"])
def test_what_is_wrong_in_the_cache_is_not_taken(wrong: str, cache: Path, catalog: Path, tmp_path: Path) -> None:
    right = told(kept.rules(catalog))
    (path,) = cache.iterdir()
    text = path.read_text().replace("memory", "pve") if wrong in {"link", "writable"} else wrong
    path.unlink()
    place = tmp_path / "elsewhere" if wrong == "link" else path
    place.write_text(text)
    if wrong == "link":
        path.symlink_to(place)
    elif wrong == "writable":
        path.chmod(0o666)
    assert told(kept.rules(catalog)) == right


def test_a_folder_that_is_not_the_users_own_is_left_alone(
    cache: Path, catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "theirs" / "a.json").write_text("{}")
    cache.parent.mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "theirs")
    assert kept.rules(catalog)
    cache.unlink()
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    assert kept.rules(catalog)
    assert not list(cache.iterdir())
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["a.json"]
    mine = os.geteuid()
    cache.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert kept.rules(catalog)
    assert not list(cache.iterdir())


def test_without_a_cache_the_rules_are_read(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert told(kept.rules(catalog)) == told(load_rules(catalog))


def test_what_is_kept_is_data(cache: Path, catalog: Path) -> None:
    kept.rules(catalog)
    (path,) = cache.iterdir()
    assert [rule["id"] for rule in json.loads(path.read_text())] == sorted(
        p.stem for p in folder(catalog).rglob("*.yml")
    )
