# SPDX-License-Identifier: Apache-2.0
"""What goes and what stays: never what serves, what it could return to, or what a process runs from."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.release_gc import Collector, used
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store
from releasesite import Built
from test_release_killed import killed_at
from test_release_target import is_right, stage


@pytest.fixture
def collector(store: Store, tmp_path: Path) -> Collector:
    (tmp_path / "state").mkdir()
    (tmp_path / "proc").mkdir()
    return Collector(store.root, store.cache, str(tmp_path / "state"), str(tmp_path / "proc"))


def served(tmp_path: Path, *digests: str) -> None:
    """The host's journal, in which these were seen serving, one after the other."""
    lines = [json.dumps({"at": "2026-01-01T00:00:00Z", "event": "activated", "release": one}) for one in digests]
    (tmp_path / "state/journal.jsonl").write_text("\n".join([*lines, '{"cut off']) + "\n")


def names(collector: Collector, **options: object) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for item in collector.plan(**options).items:  # type: ignore[arg-type]
        found.setdefault(item.kind, set()).add(item.name)
    return found


def test_what_only_an_old_release_needs_goes_with_it(
    store: Store, collector: Collector, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    stage(store, two, user, tmp_path)
    stage(store, one, user, tmp_path, slot="current")
    (tmp_path / "cache" / two.manifest.digest / "kernel.so").write_bytes(b"x" * 10000)
    plan = collector.plan()
    (helper,) = [wheel["sha256"] for wheel in two.manifest.wheels if wheel["project"] == "helper"]
    assert {(item.kind, item.name) for item in plan.items if item.kind != "unpacked"} == {
        ("release", two.manifest.digest),
        ("cache", two.manifest.digest),
        ("wheel", helper),
    }
    assert len([item for item in plan.items if item.kind == "unpacked"]) == 1, "leaf is linked by what stays"
    assert list(plan.kept) == [one.manifest.digest]
    before = used(str(tmp_path))
    collector.remove(plan)
    assert before - used(str(tmp_path)) == plan.bytes > 10000
    assert collector.plan().items == []
    assert store.damaged(one.manifest) == []
    assert is_right(store, one)
    assert stage(store, two, user, tmp_path, slot="current"), "it can come again"
    assert store.damaged(two.manifest) == []


def test_what_is_needed_stays(
    store: Store, collector: Collector, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    stage(store, two, user, tmp_path, slot="current")
    served(tmp_path, two.manifest.digest, one.manifest.digest)
    stage(store, one, user, tmp_path, slot="current")
    assert names(collector) == {}, "the way back"
    gone = {"release": {two.manifest.digest}, "cache": {two.manifest.digest}}
    assert {kind: names(collector, keep=0)[kind] for kind in gone} == gone
    assert names(collector, keep=0, wanted=[two.manifest.digest]) == {}, "declared"
    (tmp_path / "state/previous").mkdir()
    (tmp_path / "state/previous/state.json").write_text(json.dumps({"release": two.manifest.digest}))
    assert names(collector, keep=0) == {}, "what the last activation would return to"
    (tmp_path / "state/previous/state.json").unlink()
    store.switch("bench-client", two.manifest.digest)
    assert names(collector, keep=0) == {}, "another slot"
    (tmp_path / "opt/bench-client").unlink()
    assert names(collector, keep=0) != {}


def test_the_newest_of_the_releases_before_stay(collector: Collector, tmp_path: Path) -> None:
    digests = [format(number, "064x") for number in range(5)]
    for digest in digests:
        (tmp_path / "opt/releases" / digest).mkdir(parents=True)
    (tmp_path / "opt/current").symlink_to(f"releases/{digests[4]}")
    served(tmp_path, *digests, digests[1], digests[4])
    assert collector.way_back(2) == [digests[1], digests[3]]
    assert names(collector, keep=2)["release"] == {digests[0], digests[2]}


@pytest.mark.parametrize("how", ["cwd", "open", "environment", "command"])
def test_what_a_process_runs_from_stays(store: Store, one: Built, user: str, tmp_path: Path, how: str) -> None:
    collector = Collector(store.root, store.cache, str(tmp_path / "state"))
    stage(store, one, user, tmp_path)
    release = Path(store.release(one.manifest.digest))
    cache = str(tmp_path / "cache" / one.manifest.digest)
    assert one.manifest.digest in names(collector)["release"]
    ready = "echo ready; read line"
    with subprocess.Popen(
        ["sh", "-c", f"exec 9<{release}/complete; {ready}"]
        if how == "open"
        else ["sh", "-c", ready, *([str(release)] * (how == "command"))],
        cwd=release if how == "cwd" else None,
        env={"PATH": os.environ["PATH"], **({"TRITON_CACHE_DIR": cache} if how == "environment" else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert collector.running([one.manifest.digest]) == {one.manifest.digest: [process.pid]}
        assert names(collector) == {}
        process.communicate(b"\n")
    assert one.manifest.digest in names(collector)["release"]


def test_a_manifest_that_cannot_be_read_keeps_all_wheels(
    store: Store, collector: Collector, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    stage(store, two, user, tmp_path)
    stage(store, one, user, tmp_path, slot="current")
    manifest = Path(store.release(one.manifest.digest)) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"one"', '"eno"'))
    plan = collector.plan()
    assert not [item for item in plan.items if item.kind == "wheel"]
    assert one.manifest.digest[:12] in plan.notes[0]


def test_killed_at_any_step_nothing_half_removed_counts(
    store: Store, collector: Collector, one: Built, two: Built, user: str, tmp_path: Path
) -> None:
    stage(store, one, user, tmp_path, slot="current")
    stage(store, two, user, tmp_path)
    at = -1
    while True:
        at += 1
        stage(store, two, user, tmp_path)
        if at >= sum(len(item.paths) for item in collector.plan().items):
            break

        def work(die: Callable[[str], None]) -> None:
            collector.reached = die  # type: ignore[method-assign]
            collector.remove(collector.plan())

        killed_at(at, work)
        assert "environment" in store.unfinished(two.manifest, user)
        assert store.damaged(one.manifest) == []
        # the next run of either kind goes on from there
        if at % 2:
            collector.remove(collector.plan())
            assert collector.plan().items == []
        assert stage(store, two, user, tmp_path)
        assert store.damaged(two.manifest) == []
    assert at >= 6


def test_what_killed_runs_left_goes(collector: Collector, tmp_path: Path) -> None:
    for path in ("opt/.current.partial", "opt/releases/.gone-x/f", "opt/store/incoming/x", "cache/.x.partial/f"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    plan = collector.plan()
    assert {item.kind for item in plan.items} == {"leftover"}
    collector.remove(plan)
    assert not list(tmp_path.glob("*/.*")) + list(tmp_path.glob("opt/store/*"))
