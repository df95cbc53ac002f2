# SPDX-License-Identifier: Apache-2.0
"""A sweep that is interrupted, and in which the server dies: nothing is lost, and the rest is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Serving, inside, interrupt_at, rackwell

SWEEP = """\
concurrency: [2, 4, 8, 1]
input_tokens: 32
output_tokens: 16
prompts_per_stream: 2
warmup_requests: 1
point_timeout: 120
# CI runs other things beside, on two cores
tolerate: [bench-client-bound]
"""
ANSWERS = "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health')"
# the point that was under way when the sweep was interrupted ends by itself, and must not meet the restart
RESTART = f"""for _ in $(seq 300); do
  systemctl list-units --plain --no-legend 'rackwell-bench-*' | grep -q . || break; sleep 0.2
done
systemctl reset-failed rackwell-inference.service; systemctl restart rackwell-inference.service
for _ in $(seq 600); do python3 -c "{ANSWERS}" 2>/dev/null && exit 0; sleep 0.2; done; exit 1"""


@pytest.fixture(scope="module", autouse=True)
def _served(site: Path, container: str) -> Iterator[None]:
    """A container that serves, before and after; afterwards by a process that has no fault in it."""
    ended = rackwell("provision", container, "-i", site, "--no-bench")
    assert ended.code == 0, ended.json["problems"]
    yield
    inside(container, RESTART)


def test_an_interrupted_sweep_goes_on_and_a_crash_in_it_is_a_result(
    site: Path, container: str, faults: Callable[..., str], edited: Callable[..., Path], serving: Callable[[], Serving]
) -> None:
    copy = edited({})
    (copy / "bench/e2e.yml").write_text(SWEEP)
    before = serving()
    code, told = interrupt_at("output tok/s", "bench", container, "-i", copy, "--profile", "e2e")
    assert code == 130, told
    runs = rackwell("bench", "list", container, "-i", copy).result["runs"]
    first = next(run for run in runs if run["sweep"] == "e2e")
    assert not first["complete"]

    # of this start: known answers and warm-up, then in the midst of the point with eight streams
    faults("engine", "faults.crash_after_requests=9")
    inside(container, RESTART)
    ended = rackwell("bench", container, "-i", copy, "--profile", "e2e")
    assert (ended.code, ended.result["run_id"]) == (1, first["run"])
    result = json.loads(Path(ended.result["file"]).read_text())
    points = {point["concurrency"]: point for point in result["points"]}
    # one from before the interruption, one by the server that came back after the crash. That of four streams was
    # under way when the sweep was interrupted, and the restart since then may count against it
    states = {streams: (point["status"], point["valid"]) for streams, point in points.items()}
    assert states.pop(8) == ("crashed", False)
    assert (states[2], states[1]) == (("measured", True), ("measured", True))
    assert points[8]["lines"]
    assert len({point["seed"] for point in points.values()}) == 4
    assert (result["complete"], result["environment"]["server_release"]) == (True, before.release.rpartition("/")[2])
    raw = [path.name for path in (Path(ended.result["file"]).parent / "points").glob("*/client.jsonl.gz")]
    assert len(raw) >= 2
