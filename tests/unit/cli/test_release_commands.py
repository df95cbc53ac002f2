# SPDX-License-Identifier: Apache-2.0
"""`rackwell gc`, `rackwell cache`, and what provision and verify say of releases."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cli_rig import CONTAINER, DIGEST, ERROR, GPUS, HOST, SERVER, Rig, release

from rackwell.provision import collecting

OTHER = "cd" * 32
REPORT: dict[str, Any] = {
    "schema": "rackwell.release_gc/1",
    "kept": [{"digest": DIGEST, "build": "server", "why": ["slot current", "declared"]}],
    "removed": [
        {"kind": "release", "name": OTHER, "build": "server"},
        {"kind": "wheel", "name": "ef" * 32, "build": ""},
        {"kind": "wheel", "name": "fe" * 32, "build": ""},
    ],
    "bytes": 12_345_678,
    "bytes_by_kind": {"release": 12_345_678},
    "available_before": 1,
    "available_after": 50_000_000_000,
    "notes": ["all wheels are kept"],
}


def test_gc_of_a_container(rig: Rig) -> None:
    rig.machines.on("gc", ("ok", "glm5-01", "", {"changed": True, "rackwell_result": REPORT}))
    assert rig.at_site("gc", "glm5-01", "--dry-run", "--keep", "3") == 0
    ((name, options),) = rig.machines.calls
    assert (name, options["check"], options["extra"], options["limit"]) == (
        "gc",
        True,
        {"rackwell_gc_keep": 3},
        ["glm5-01", "pve1"],
    )
    assert "would free 12.3 MB" in rig.out
    assert f"keeps    server {DIGEST[:12]} (slot current, declared)" in rig.out
    assert f"would go release server {OTHER[:12]}" in rig.out
    assert "2 wheels" in rig.out
    assert "all wheels are kept" in rig.out
    found = rig.json("gc")["result"]
    assert (found["dry_run"], found["local"]) == (False, None)
    assert [one["container"] for one in found["containers"]] == ["glm5-01"]
    rig.machines.on("gc", ("failed", "glm5-01", "", {"rackwell_error": ERROR}))
    assert rig.at_site("gc", "glm5-01") == 1
    assert rig.at_site("gc", "nobody") == 2


def test_gc_of_this_machine_touches_no_container(rig: Rig) -> None:
    envelope = rig.json("gc", "--local")
    assert rig.machines.calls == []
    assert envelope["result"]["local"] == {"removed": [], "bytes": 0}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "site/.rackwell"


def made(state: Path, build: str, wheel: bytes, age: int, *, linked: bool = False) -> str:
    """A release of one wheel, `age` seconds old. Returns its digest."""
    blob = hashlib.sha256(wheel).hexdigest()
    (state / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    (state / "blobs/sha256" / blob).write_bytes(wheel)
    text = json.dumps({"name": build, "wheels": [{"sha256": blob}]})
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = state / "releases" / digest
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(text)
    os.utime(path, (time.time() - age, time.time() - age))
    if linked:
        (state / "builds").mkdir(exist_ok=True)
        (state / "builds" / build).symlink_to(f"../releases/{digest}")
    return digest


def test_what_of_this_machine_goes(state: Path) -> None:
    now = made(state, "a", b"now", 10, linked=True)
    before = made(state, "a", b"before", 20)
    oldest = made(state, "a", b"oldest", 30)
    locked = hashlib.sha256(b"locked").hexdigest()
    (state / "blobs/sha256" / locked).write_bytes(b"locked")
    (state.parent / "builds").mkdir()
    (state.parent / "builds/a.lock").write_text(f"sha256: {locked}\n")
    for digest in (now, oldest):
        (state / "caches" / f"{digest[:12]}-sm120-1-x").mkdir(parents=True)
    (state / "caches/.x.partial").mkdir()
    found = {(thing.kind, thing.name) for thing in collecting.superfluous(state, 1, young_s=0)}
    assert found == {
        ("release", oldest),
        ("cache", f"{oldest[:12]}-sm120-1-x"),
        ("cache", ".x.partial"),
        ("wheel", hashlib.sha256(b"oldest").hexdigest()),
    }
    assert ("release", before) in {(t.kind, t.name) for t in collecting.superfluous(state, 0, young_s=0)}
    assert not [t for t in collecting.superfluous(state, 0) if t.kind == "wheel"], "one that is young may be in use"
    (state / "releases" / now / "manifest.json").write_text("{")
    assert not [t for t in collecting.superfluous(state, 0, young_s=0) if t.kind == "wheel"]


def test_gc_of_this_machine_removes(rig: Rig) -> None:
    state = rig.site.root / ".rackwell"
    linked = made(state, "a", b"now", 10, linked=True)
    gone = made(state, "a", b"gone", 20)
    assert rig.json("gc", "--local", "--keep", "0", "--dry-run")["result"]["local"]["bytes"] > 0
    assert (state / "releases" / gone).exists()
    assert rig.at_site("gc", "--local", "--keep", "0") == 0
    assert [path.name for path in (state / "releases").iterdir()] == [linked]


PAPER = {"schema": "rackwell.release_cache/1", "id": "ab-sm120-1-x", "key": {"driver": "1"}, "files": [], "bytes": 0}


def keep_cache(rig: Rig, archive: bytes = b"archive") -> Path:
    place = rig.site.root / ".rackwell/caches/ab-sm120-1-x"
    place.mkdir(parents=True)
    (place / "cache.tar.gz").write_bytes(archive)
    paper: dict[str, Any] = {**PAPER, "archive": {"sha256": hashlib.sha256(archive).hexdigest(), "size": 7}}
    canonical = json.dumps(paper, sort_keys=True, separators=(",", ":")).encode()
    (place / "manifest.json").write_text(json.dumps({**paper, "digest": hashlib.sha256(canonical).hexdigest()}))
    return place


def test_cache_capture(rig: Rig) -> None:
    report = {**PAPER, "state": "captured", "files": 2, "bytes": 2048}
    rig.machines.on("cache", ("ok", "glm5-01", "", {"changed": True, "rackwell_result": report}))
    assert rig.at_site("cache", "capture", "glm5-01") == 0
    assert "ab-sm120-1-x: 2 files, 2.0 kB, captured" in rig.out
    busy = {**ERROR, "code": "cache-busy"}
    rig.machines.on("cache", ("failed", "glm5-01", "", {"rackwell_error": busy}))
    envelope = rig.json("cache", "capture", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["cache-busy"])


def test_cache_list_and_show(rig: Rig) -> None:
    assert rig.json("cache", "list")["result"]["caches"] == []
    place = keep_cache(rig)
    (found,) = rig.json("cache", "list")["result"]["caches"]
    assert (found["id"], found["ok"]) == ("ab-sm120-1-x", True)
    assert rig.at_site("cache", "show", "ab") == 0
    assert "every hash holds" in rig.out
    assert rig.at_site("cache", "show", "cd") == 2
    (place / "cache.tar.gz").write_bytes(b"another")
    envelope = rig.json("cache", "show", "ab")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["cache-damaged"])
    paper = place / "manifest.json"
    paper.write_text(paper.read_text().replace('"driver": "1"', '"driver": "2"'))
    assert rig.json("cache", "list")["result"]["caches"][0]["why"] == "its manifest was changed"
    paper.write_text("no JSON")
    assert not rig.json("cache", "list")["result"]["caches"][0]["ok"]


BUDGET = {
    "blobs": 5_100_000_000,
    "installed": 8_200_000_000,
    "caches": 0,
    "needed": 13_300_000_000,
    "available": 61_000_000_000,
    "could_free": 0,
}


def test_provision_tells_space_and_caches(rig: Rig) -> None:
    staged = {**release(DIGEST), "budget": BUDGET}
    refused = {**PAPER, "state": "refused", "why": "driver: 1 there, 2 here"}
    rig.machines.on(
        "provision",
        ("ok", "glm5-01", "release", {"rackwell_result": staged}),
        ("ok", "glm5-01", "release", {"changed": True, "rackwell_result": {**release(DIGEST), "budget": None}}),
        ("ok", "glm5-01", "release", {"rackwell_result": refused}),
    )
    assert rig.at_site("provision", "glm5-01", "--check") == 0
    assert "13.3 GB (5.1 GB wheels, 8.2 GB installed, 0 B caches); 61.0 GB were free" in rig.out
    assert "caches not used: driver: 1 there, 2 here" in rig.out
    found = rig.json("provision", "glm5-01", "--check")["result"]
    assert found["staging"] == [{"name": "server", "digest": DIGEST, **BUDGET}]
    assert found["cache"]["state"] == "refused"


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"files_damaged_count": 2, "files_damaged": [{"path": "env/lib/x.py"}]}, "2 installed files"),
        ({"blobs_damaged": ["ab" * 32]}, "1 wheels in the store"),
    ],
)
def test_verify_says_that_a_release_is_damaged(rig: Rig, report: dict[str, Any], said: str) -> None:
    rig.machines.on(
        "verify",
        ("ok", "pve1", "pve_host", {"rackwell_result": HOST}),
        ("ok", "glm5-01", "pve_container", {"rackwell_result": CONTAINER}),
        ("ok", "glm5-01", "gpu_probe", {"rackwell_result": GPUS}),
        ("ok", "glm5-01", "", {"rackwell_result": {**release(DIGEST), **report}}),
        ("ok", "glm5-01", "inference_server", {"rackwell_result": SERVER}),
    )
    envelope = rig.json("verify", "glm5-01")
    assert envelope["exit_code"] == 1
    (item,) = [one for one in envelope["result"]["checks"] if one["item"] == "release"]
    assert item["verdict"] == "fail"
    assert said in item["evidence"]
