# SPDX-License-Identifier: Apache-2.0
"""The story on one container: a slow build is taken back, a fast one is kept, a dead controller leaves nothing open.

The faults of a roll over several hosts are in tests/roll, which takes hours and is run by hand.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Serving, inside, lab, more, rackwell

#: every answer at its own time: a busy machine must not look like a slow build
EXACT = '{"ttft_ms": [30], "itl_ms": [10]}'
SWEEP = """\
concurrency: [4]
input_tokens: 32
output_tokens: 64
prompts_per_stream: 2
warmup_requests: 1
point_timeout: 120
# CI runs other things beside, on two cores
tolerate: [bench-client-bound]
"""
#: one short point tells no small loss from noise; the builds here differ by almost a half
GATE = ("--bench", "e2e-roll", "--min-effect", "0.25", "--confirm-within", "60")
CHANGE = "/var/lib/rackwell/rollout/change.json"
ANSWERS = "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health')"


@pytest.fixture(scope="module")
def copy(site: Path, container: str, host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A site with one more build, `plain`: what is declared, without the autotune patch. Ends as declared."""
    # from what an engine is like by itself: faster with the autotune patch
    lab("reset", "--host", host)
    lab("set", "--host", host, "engine", f"exact={EXACT}", "load_seconds=0.5")
    assert rackwell("provision", container, "-i", site, "--no-bench").code == 0
    place = tmp_path_factory.mktemp("roll") / "site"
    shutil.copytree(site, place, symlinks=True, ignore=shutil.ignore_patterns(".rackwell"))
    (place / ".rackwell").symlink_to(site / ".rackwell")
    declared = yaml.safe_load((place / "host_vars" / f"{container}.yml").read_text())["release_build"]
    build = yaml.safe_load((place / "builds" / f"{declared}.yml").read_text())
    build["patches"] = [patch for patch in build["patches"] if "autotune" not in patch]
    (place / "builds/plain.yml").write_text(yaml.safe_dump(build))
    # the same wheels
    (place / "builds/plain.lock").write_text((place / "builds" / f"{declared}.lock").read_text())
    (place / "bench/e2e-roll.yml").write_text(SWEEP)
    restart(container)
    yield place
    lab("reset", "--host", host)
    assert rackwell("provision", container, "-i", site, "--no-bench").code == 0
    restart(container)


def restart(container: str) -> None:
    """Have the engine read its behaviour anew, and wait until it serves."""
    inside(
        container,
        "systemctl restart rackwell-inference.service; "
        f'for n in $(seq 300); do python3 -c "{ANSWERS}" 2>/dev/null && exit 0; sleep 0.2; done; exit 1',
    )


@pytest.fixture(scope="module")
def declared(site: Path, container: str) -> str:
    """The name of the build that is declared, which has the autotune patch."""
    name: str = yaml.safe_load((site / "host_vars" / f"{container}.yml").read_text())["release_build"]
    return name


def change(container: str) -> dict[str, Any]:
    """What the host knows of its last change."""
    found: dict[str, Any] = json.loads(inside(container, f"cat {CHANGE}"))
    return found


def records(site: Path) -> list[dict[str, Any]]:
    """Of the newest roll's journal."""
    newest = max((site / ".rackwell/rolls").glob("*/journal.jsonl"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def is_measuring(journal: Path) -> bool:
    """Whether the new release is open, and its gate has begun."""
    return any('"step":"bench"' in line for line in journal.read_text().splitlines())


def test_a_slower_build_is_taken_back_by_its_benchmark(
    copy: Path, container: str, serving: Callable[[], Serving]
) -> None:
    before = serving()
    ended = rackwell("roll", "plain", "-i", copy, "--limit", container, *GATE)
    assert (ended.code, ended.codes) == (3, ["roll-returned"]), ended.json["problems"]
    host = ended.result["hosts"][0]
    assert (host["result"], host["verdict"]) == ("returned", "fail")
    # the very numbers: the autotune patch makes the laboratory's engine 1.8 times as fast
    bench = next(one for one in records(copy) if (one["kind"], one.get("step")) == ("end", "bench"))
    assert 0.45 < bench["data"]["ratio"] < 0.7
    after = serving()
    assert (after.release, after.unit) == (before.release, before.unit)
    told = change(container)
    assert (told["state"], told["run"]) == ("returned", ended.result["run"])
    inside(container, f'python3 -c "{ANSWERS}"')


def test_a_host_returns_by_itself_when_the_controller_is_killed(
    copy: Path, container: str, serving: Callable[[], Serving]
) -> None:
    before = serving()
    known = set((copy / ".rackwell/rolls").glob("*/journal.jsonl"))
    command = [sys.executable, "-c", "from rackwell.cli.main import run; run()", "roll", "plain", "-i", str(copy)]
    command += ["--limit", container, *GATE]
    roll = subprocess.Popen(
        [*command, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    while roll.poll() is None:
        journals = set((copy / ".rackwell/rolls").glob("*/journal.jsonl")) - known
        if any(is_measuring(path) for path in journals):
            break
        time.sleep(0.05)
    roll.send_signal(signal.SIGKILL)
    assert roll.wait() == -signal.SIGKILL
    released = serving().release
    assert released != before.release
    # nobody goes on with it: the host's own timer takes it back
    script = f'for n in $(seq 600); do grep -q \'"state": "returned"\' {CHANGE} && exit 0; sleep 0.2; done; exit 1'
    inside(container, script)
    assert serving().release == before.release
    assert "nobody confirmed it in time" in change(container)["why"]
    ended = rackwell("resume", "-i", copy)
    assert (ended.code, ended.result["hosts"][0]["result"]) == (3, "returned"), ended.json["problems"]
    assert not inside(container, "ls /var/lib/rackwell/rollout/lock.json 2>/dev/null || true")


@more
def test_the_faster_build_is_promoted_by_its_benchmark(
    copy: Path, container: str, declared: str, serving: Callable[[], Serving]
) -> None:
    before = serving()
    reason = "the story begins with what is slow"
    slow = rackwell("roll", "plain", "-i", copy, "--limit", container, "--skip-gate", "bench", "--reason", reason)
    assert slow.code == 0, slow.json["problems"]
    assert slow.result["skipped_gates"] == {"bench": reason}
    assert serving().release != before.release
    ended = rackwell("roll", declared, "-i", copy, "--limit", container, *GATE)
    assert ended.code == 0, ended.json["problems"]
    assert (ended.result["hosts"][0]["result"], ended.result["hosts"][0]["verdict"]) == ("promoted", "ok")
    bench = next(one for one in records(copy) if (one["kind"], one.get("step")) == ("end", "bench"))
    assert 1.4 < bench["data"]["ratio"] < 2.2
    assert serving().release == before.release
    assert change(container)["state"] == "promoted"
