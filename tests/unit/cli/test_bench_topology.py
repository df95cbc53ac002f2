# SPDX-License-Identifier: Apache-2.0
"""The figures of the GPUs beside a benchmark: the newest that there are, also when the newest report has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import samples

from rackwell.provision import topologies


def kept(state: Path, run: str, report: dict[str, Any], *, latest: bool = False) -> None:
    """As `rackwell verify` leaves a report."""
    for path in (state / "runs" / run / "gpu.json", *([state / "gpu/glm5-01.json"] if latest else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))


def test_a_full_report_gives_its_figures(tmp_path: Path) -> None:
    report = samples.healthy()
    kept(tmp_path, "1-verify-a", report, latest=True)
    found = topologies.newest(tmp_path, "glm5-01")
    assert found is not None
    assert (found.verdict, found.boot_id) == ("pass", report["boot_id"])
    points = report["measurements"]["collectives"]["points"]
    assert found.allreduce_us == {one["bytes"]: one["us"] for one in points}
    assert len(found.p2p_gb_per_s) == 8
    assert found.p2p_gb_per_s[0][0] is None
    assert found.p2p_gb_per_s[0][1] is not None
    assert found.p2p_latency_us is not None


def test_beside_a_server_the_figures_are_those_of_the_report_before(tmp_path: Path) -> None:
    before, after = samples.healthy(), samples.beside_server()
    kept(tmp_path, "1-verify-a", before)
    kept(tmp_path, "2-verify-b", after, latest=True)
    found = topologies.newest(tmp_path, "glm5-01")
    assert found is not None
    assert found.date_utc == after["started"]
    assert found.allreduce_us
    # of another machine they would be a lie
    for gpu in before["gpus"]:
        gpu["uuid"] += "-other"
    kept(tmp_path, "1-verify-a", before)
    found = topologies.newest(tmp_path, "glm5-01")
    assert found is not None
    assert found.allreduce_us == {}


def test_without_a_report_the_baseline_gives_what_it_has(tmp_path: Path) -> None:
    assert topologies.newest(tmp_path, "glm5-01") is None
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines/glm5-01.json").write_text(json.dumps(samples.baseline()))
    found = topologies.newest(tmp_path, "glm5-01")
    assert found is not None
    assert found.verdict is None
    assert len(found.p2p_gb_per_s) == 8
    # 256 MiB at a bus bandwidth of about 40 GB/s over 8 GPUs: 2 x 7/8 of the bytes over each link
    assert 11_000 < found.allreduce_us[268435456] < 12_500
