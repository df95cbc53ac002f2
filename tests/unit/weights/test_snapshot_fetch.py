# SPDX-License-Identifier: Apache-2.0
"""A snapshot is brought whole or not at all, by the real huggingface_hub from a hub on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubserver import BRANCH_LIKE_A_COMMIT, Hub
from weightsrig import Fetcher

SHARD = "model-00001-of-00002.safetensors"
SECRET = "hf_PleaseTellNobody1234567890"


def whole(fetcher: Fetcher, hub: Hub) -> None:
    wanted = {path: data for path, data in hub.files.items() if not path.startswith("original/")}
    there = {
        path.relative_to(fetcher.snapshot).as_posix(): path.read_bytes()
        for path in fetcher.snapshot.rglob("*")
        if path.is_file() and path.name != ".rackwell-weights.json"
    }
    assert there == wanted
    assert not fetcher.staging.exists()


def test_a_snapshot_is_whole_and_its_manifest_has_the_hubs_hashes(fetcher: Fetcher, hub: Hub) -> None:
    done = fetcher.run()
    assert (done.code, done.state["phase"]) == (0, "done"), done.output
    whole(fetcher, hub)
    manifest = json.loads((fetcher.snapshot / ".rackwell-weights.json").read_text())
    files = {one["path"]: one for one in manifest["files"]}
    assert len(files) == 7
    assert len(files[SHARD]["sha256"]) == 64
    assert files["config.json"]["sha256"] is None
    assert len(files["config.json"]["git_sha1"]) == 40
    assert [one["path"] for one in manifest["left_out"]] == ["original/consolidated.bin"]
    assert done.state["fetched_bytes"] == done.state["bytes"] == done.state["done_bytes"]


def test_a_second_run_asks_the_hub_nothing(fetcher: Fetcher, hub: Hub) -> None:
    fetcher.run()
    hub.requests.clear()
    done = fetcher.run(verify="sha256")
    assert (done.code, done.state["fetched_files"]) == (0, 0)
    assert not hub.requests


def test_a_cut_connection_goes_on_where_it_broke(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.cut = {SHARD: 60_000}
    done = fetcher.run()
    assert done.code == 0, done.output
    whole(fetcher, hub)
    assert hub.sent[SHARD] == len(hub.files[SHARD])


def test_a_hub_that_ignores_ranges_gives_the_file_from_its_start(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.cut, hub.faults.cuts, hub.faults.no_ranges = {SHARD: 60_000}, 2, True
    assert fetcher.run().code == 0
    whole(fetcher, hub)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_where_it_was(fetcher: Fetcher, hub: Hub, number: signal.Signals) -> None:
    hub.faults.stall = {SHARD: 120_000}
    process = fetcher.start()
    assert hub.stalled.wait(60)
    part = wait_for_part(process, fetcher.staging / ".parts", 120_000)
    process.send_signal(number)
    ended = fetcher.end(process)
    assert ended.code != 0
    if number == signal.SIGTERM:
        assert ended.error["code"] == "fetch-stopped"
    assert not fetcher.snapshot.exists()
    before = part.stat().st_size
    hub.go.set()
    hub.faults.stall, hub.sent[SHARD] = {}, 0
    done = fetcher.run()
    assert done.code == 0, done.output
    assert done.state["resumed_bytes"] >= before >= 100_000
    assert hub.sent[SHARD] == len(hub.files[SHARD]) - before
    whole(fetcher, hub)


def wait_for_part(process: subprocess.Popen[str], folder: Path, sent: int) -> Path:
    """The first shard's part, when all is in it that the hub sent but for the last pieces of 10,000 bytes."""
    while process.poll() is None:
        for path in folder.glob("model-00001*"):
            if path.stat().st_size >= sent - 20_000:
                return path
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


def test_a_file_that_is_damaged_on_the_way_is_refused_told_and_brought_again(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.corrupt = {SHARD: 1, "config.json": 1}
    done = fetcher.run()
    assert done.code == 0, done.output
    assert sorted(done.state["refetched"]) == ["config.json", SHARD]
    assert "damaged on the way" in done.output
    whole(fetcher, hub)


def test_a_file_that_is_always_damaged_is_never_let_in(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.corrupt = {SHARD: 99}
    done = fetcher.run()
    assert (done.code, done.error["code"], done.error["where"]) == (1, "weights-corrupt", SHARD)
    assert not fetcher.snapshot.exists()
    assert not (fetcher.staging / SHARD).exists()


def test_only_what_is_damaged_is_brought_anew_and_open_files_stay_what_they_are(fetcher: Fetcher, hub: Hub) -> None:
    fetcher.run()
    shard, config = fetcher.snapshot / SHARD, fetcher.snapshot / "config.json"
    with shard.open("r+b") as stream:
        stream.write(b"\0")
    config.unlink()
    hub.sent.clear()
    told = fetcher.run(verify="sha256", repair=False)
    assert (told.code, told.error["code"]) == (1, "weights-damaged")
    assert sorted(told.state["damaged"]) == ["config.json", SHARD]
    assert not hub.sent
    with shard.open("rb") as open_before:
        done = fetcher.run(repair=True)
        assert done.code == 0, done.output
        assert open_before.read(1) == b"\0"
    assert sorted(hub.sent) == ["config.json", SHARD]
    whole(fetcher, hub)


def test_a_damage_of_the_same_size_is_seen_by_its_hash_only(fetcher: Fetcher, hub: Hub) -> None:
    fetcher.run()
    with (fetcher.snapshot / SHARD).open("r+b") as stream:
        stream.write(b"\0")
    assert fetcher.run(verify="size").state["fetched_files"] == 0
    assert fetcher.run(verify="sha256").state["fetched_files"] == 1
    whole(fetcher, hub)


def test_wider_patterns_bring_only_what_lacks(fetcher: Fetcher, hub: Hub) -> None:
    fetcher.run()
    hub.sent.clear()
    done = fetcher.run(ignore=[])
    assert (done.code, set(hub.sent)) == (0, {"original/consolidated.bin"})
    manifest = json.loads((fetcher.snapshot / ".rackwell-weights.json").read_text())
    assert (len(manifest["files"]), manifest["left_out"]) == (8, [])
    # and who wants less keeps what others want
    assert fetcher.run(ignore=["original/"]).code == 0
    assert (fetcher.snapshot / "original/consolidated.bin").exists()


def test_patterns_that_leave_out_a_shard_are_refused(fetcher: Fetcher, hub: Hub) -> None:
    done = fetcher.run(ignore=["model-00002*"])
    assert done.error["code"] == "weights-incomplete"
    assert not fetcher.snapshot.exists()


def test_files_that_somebody_put_there_are_taken_over_when_they_are_right(fetcher: Fetcher, hub: Hub) -> None:
    fetcher.snapshot.mkdir()
    (fetcher.snapshot / SHARD).write_bytes(hub.files[SHARD])
    (fetcher.snapshot / "config.json").write_bytes(b"x" * len(hub.files["config.json"]))
    done = fetcher.run()
    assert done.code == 0, done.output
    assert SHARD not in hub.sent
    whole(fetcher, hub)


def test_too_little_space_is_told_before_anything_arrives(fetcher: Fetcher, hub: Hub, small: Path) -> None:
    fetcher.job["directory"] = str(small)
    done = fetcher.run()
    assert done.error["code"] == "no-space"
    assert "are needed" in done.error["why"]
    assert not hub.sent


def test_a_disk_that_runs_full_is_told_and_goes_on_later(fetcher: Fetcher, hub: Hub, small: Path) -> None:
    hub.files = {"config.json": b"{}\n", SHARD: hub.files[SHARD][:150_000] + b"e"}
    hub.faults.stall = {SHARD: 100_000}
    fetcher.job["directory"] = str(small)
    process = fetcher.start()
    assert hub.stalled.wait(60)
    wait_for_part(process, small / "toy--model" / fetcher.staging.name / ".parts", 100_000)
    filler = small / "filler"
    handle = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(handle, b"x" * 4096):
            pass
    os.close(handle)
    hub.go.set()
    done = fetcher.end(process)
    assert (done.code, done.error["code"]) == (1, "no-space"), done.output
    assert "ran full" in done.error["why"]
    filler.unlink()
    again = fetcher.run()
    assert again.code == 0, again.output
    assert again.state["resumed_bytes"] > 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(path)]
    if os.getuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("needs to mount a tmpfs")
    (path / "toy--model").mkdir()
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_wrong_token(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.token, hub.faults.echo_token = "right", True
    done = fetcher.run(token=SECRET)
    assert done.error["code"] == "weights-unauthorized"
    assert "refuses the token" in done.error["what"]
    assert SECRET not in done.output + json.dumps(done.state)


def test_no_token_where_one_is_needed(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.token = "right"
    done = fetcher.run()
    assert (done.error["code"], done.error["what"]) == ("weights-unauthorized", "the hub asks for a token")


def test_the_right_token_goes_to_the_hub_and_nowhere_else(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.token = SECRET
    done = fetcher.run(token=f"{SECRET}\n")
    assert done.code == 0, done.output
    assert hub.leaks == []
    whole(fetcher, hub)
    left = [path for path in fetcher.base.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not left


def test_a_gated_repository(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.gated = True
    error = fetcher.run(token=SECRET).error
    assert error["code"] == "weights-gated"
    assert f"{hub.endpoint}/toy/model" in error["fix"]


def test_an_unknown_commit(fetcher: Fetcher) -> None:
    assert fetcher.run(revision="a" * 40).error["code"] == "revision-unknown"


def test_a_branch_that_is_called_like_a_commit(fetcher: Fetcher) -> None:
    assert fetcher.run(revision=BRANCH_LIKE_A_COMMIT).error["code"] == "revision-moved"


def test_an_unknown_repository(fetcher: Fetcher) -> None:
    assert fetcher.run(repository="toy/none").error["code"] == "repository-unknown"


def test_a_busy_hub_is_asked_again(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.busy = {"config.json": 2}
    done = fetcher.run(attempts=3)
    assert done.code == 0, done.output
    whole(fetcher, hub)


def test_a_hub_that_is_gone(fetcher: Fetcher, hub: Hub) -> None:
    hub.stop()
    error = fetcher.run().error
    assert error["code"] == "hub-unreachable"
    assert hub.endpoint in error["fix"]


def test_a_hub_that_goes_midway(fetcher: Fetcher, hub: Hub) -> None:
    hub.faults.stall = {"model-00002-of-00002.safetensors": 100_000}
    process = fetcher.start(attempts=1, workers=1)
    assert hub.stalled.wait(120)
    hub.stop()
    done = fetcher.end(process)
    assert done.error["code"] in {"hub-unreachable", "hub-failed"}
    assert (fetcher.staging / SHARD).exists()


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a//b", ".rackwell-weights.json", "a\nb"])
def test_a_name_that_leads_out_is_refused(fetcher: Fetcher, hub: Hub, path: str) -> None:
    hub.files = {**hub.files, path: b"x"}
    assert fetcher.run().error["code"] == "weights-unfit"


def test_a_link_in_the_way_is_replaced_not_followed(fetcher: Fetcher, hub: Hub, tmp_path: Path) -> None:
    fetcher.run()
    outside = tmp_path / "outside"
    outside.write_bytes(hub.files["config.json"])
    (fetcher.snapshot / "config.json").unlink()
    (fetcher.snapshot / "config.json").symlink_to(outside)
    assert fetcher.run().state["fetched_files"] == 1
    assert not (fetcher.snapshot / "config.json").is_symlink()


def test_from_the_snapshot_of_another_host(fetcher: Fetcher, hub: Hub, tmp_path: Path) -> None:
    fetcher.run()
    carried = tmp_path / "carried"
    fetcher.snapshot.rename(carried)
    hub.requests.clear()
    done = fetcher.run(**{"from": "directory", "source": str(carried)})
    assert done.code == 0, done.output
    assert not hub.requests
    whole(fetcher, hub)


def test_from_what_the_hubs_own_tool_downloaded(fetcher: Fetcher, hub: Hub, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    kept = {"repo_id": "toy/model", "revision": fetcher.job["revision"], "endpoint": hub.endpoint, "token": False}
    snapshot_download(**kept, local_dir=tmp_path / "local", ignore_patterns=["original/*"])
    snapshot_download(**kept, cache_dir=tmp_path / "cache", ignore_patterns=["original/*"])
    for source in ("local", "cache"):
        done = fetcher.run(**{"from": "directory", "source": str(tmp_path / source)})
        assert done.code == 0, done.output
        whole(fetcher, hub)
        fetcher.snapshot.rename(tmp_path / f"{source}-done")
    damaged = tmp_path / "local" / SHARD
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    assert fetcher.run(source=str(tmp_path / "local")).error["code"] == "weights-corrupt"


def test_a_directory_that_tells_no_hashes(fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text("{}")
    error = fetcher.run(**{"from": "directory", "source": str(tmp_path / "bare")}).error
    assert error["code"] == "source-unverifiable"
    assert "hf download toy/model" in error["fix"]
