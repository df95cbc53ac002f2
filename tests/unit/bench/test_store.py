# SPDX-License-Identifier: Apache-2.0
"""Results are kept whole, found again, and an invalid one is never taken for a measurement."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from rackwell.bench import store as stores
from rackwell.bench.result import BenchResult
from rackwell.bench.store import Store
from rackwell.bench.table import table
from rackwell.errors import ExitCode, RackwellError

from .conftest import crashed, point, run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_a_result_comes_back_as_it_was(store: Store, story: BenchResult) -> None:
    entry = store.save(story, "<html>")
    assert entry.path == store.root / "glm5-01" / "20261129T101500Z-4f2a"
    assert entry.load() == story
    assert json.loads((entry.path / "bench.json").read_text())["schema"] == "rackwell.bench/1"
    assert sorted(file.name for file in entry.path.iterdir()) == ["bench.json", "report.html"]


def test_the_directory_is_named_by_time_whatever_the_run_is_called(store: Store) -> None:
    result = run([point(4, (200.0, 100.0, 120.0))], "before-the-change", "2026-11-29T11:15:00.250+01:00")
    assert store.save(result).name == "20261129T101500Z-before-the-change"


def test_the_newest_comes_first(store: Store, story: BenchResult, baseline: BenchResult) -> None:
    store.save(story)
    store.save(baseline)
    assert [entry.name for entry in store.entries()] == ["20261129T101500Z-4f2a", "20261128T090000Z-00aa"]
    assert store.entries("glm5-01")[0].load().run_id == story.run_id
    assert store.entries("other") == []


def test_what_was_measured_already_is_found_by_release_profile_and_sweep(store: Store, story: BenchResult) -> None:
    store.save(story)
    assert story.release is not None
    assert story.profile is not None
    release, profile = story.release.digest, story.profile.digest
    assert store.find("glm5-01", release, profile, "full") == story
    assert store.find("glm5-01", release, profile) == story
    assert store.find("glm5-01", release, profile, "quick") is None
    assert store.find("glm5-01", "0" * 64, profile) is None
    assert store.find("glm5-01", release, "0" * 64) is None
    assert store.find("glm5-02", release, profile) is None


def test_an_edited_sweep_is_not_measured_yet(store: Store, story: BenchResult) -> None:
    assert story.release is not None
    assert story.profile is not None
    wanted = ("glm5-01", story.release.digest, story.profile.digest, "full")
    store.save(story)  # as results were written before they held the digest
    assert store.find(*wanted, "a" * 64) is None
    kept = story.model_copy(update={"bench_digest": "a" * 64})
    store.save(kept)
    assert store.find(*wanted, "a" * 64) == kept
    assert store.find(*wanted, "b" * 64) is None


def test_an_invalid_run_is_not_a_measurement(store: Store) -> None:
    result = run([point(4, (200.0, 100.0, 120.0)), crashed(16)])
    store.save(result)
    assert not result.valid
    assert result.release is not None
    assert result.profile is not None
    assert store.find("glm5-01", result.release.digest, result.profile.digest) is None


def test_the_previous_run_is_older_valid_and_of_the_same_sweep(
    store: Store, story: BenchResult, baseline: BenchResult
) -> None:
    for result in (story, baseline):
        store.save(result)
    assert store.previous(story) == baseline
    assert store.previous(baseline) is None
    store.save(baseline.model_copy(update={"bench": "quick"}))
    assert store.previous(story) is None


def test_an_interrupted_write_leaves_the_earlier_file_whole(
    store: Store, story: BenchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = store.save(story)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RackwellError, match="cannot be stored"):
        store.save(story.model_copy(update={"bench": "other"}))
    assert entry.load() == story
    assert [file.name for file in entry.path.iterdir()] == ["bench.json"]


@pytest.mark.parametrize(
    ("text", "code"), [(None, "result-unreadable"), ("{", "result-invalid"), ('{"schema": "x"}', "result-invalid")]
)
def test_what_is_not_a_result_is_told_so(tmp_path: Path, text: str | None, code: str) -> None:
    file = tmp_path / "bench.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RackwellError) as caught:
        stores.load(file)
    assert caught.value.problems[0].code == code
    assert caught.value.exit_code == ExitCode.INVALID


def test_a_damaged_run_does_not_hide_the_others(store: Store, story: BenchResult, baseline: BenchResult) -> None:
    store.save(baseline)
    (store.save(story).path / "bench.json").write_text("{")
    assert [result.run_id for _entry, result in store.results("glm5-01")] == [baseline.run_id]


@pytest.mark.parametrize("change", [{"container": "../x"}, {"run_id": "a/b"}, {"date_utc": "yesterday"}])
def test_names_do_not_leave_the_store(store: Store, story: BenchResult, change: dict[str, str]) -> None:
    with pytest.raises(RackwellError):
        store.save(story.model_copy(update=change))
    assert not store.root.exists()


def test_points_come_in_order_and_the_last_word_on_each_wins() -> None:
    result = run([point(16, (1.0, 1.0, 1.0)), crashed(4), point(4, (200.0, 100.0, 120.0))])
    assert [p.concurrency for p in result.points] == [4, 16]
    assert result.valid


def test_energy_and_power_are_of_all_gpus(story: BenchResult) -> None:
    best = story.best
    assert best is not None
    assert best.telemetry is not None
    assert best.telemetry.mean_power_w == pytest.approx(sum(250 + 4 * g for g in range(8)), rel=0.01)
    assert best.telemetry.power_limit_w == 4800
    assert best.joules_per_output_token == pytest.approx(8 * 264 / 1240, rel=0.01)


def test_the_terminal_table_says_what_does_not_count() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(run([point(4, (200.0, 100.0, 120.0)), crashed(512)])))
    text = console.export_text()
    assert "44.0 %" in text
    assert "512 streams do not count: the server died" in text


def test_a_run_without_points_has_measured_nothing(story: BenchResult) -> None:
    assert story.valid
    assert not story.model_copy(update={"points": []}).valid
