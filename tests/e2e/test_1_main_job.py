# SPDX-License-Identifier: Apache-2.0
"""From a declaration to a served and benchmarked model, and again without a change."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .conftest import Ended, inside, lab, more, rackwell


@pytest.fixture(scope="module", autouse=True)
def _from_nothing(container: str) -> None:
    lab("destroy", container)


@pytest.fixture(scope="module")
def provisioned(site: Path, container: str) -> Ended:
    return rackwell("provision", container, "-i", site)


def test_the_declaration_holds(site: Path) -> None:
    checked = rackwell("check", "-i", site)
    assert (checked.code, checked.json["problems"]) == (0, [])


def test_check_mode_on_a_container_that_does_not_exist_touches_nothing(site: Path, container: str, host: str) -> None:
    before = inside(host, "pct", "list")
    asked = rackwell("provision", container, "-i", site, "--check")
    assert asked.code == 0, asked.json
    assert asked.result["changed"] > 0
    assert inside(host, "pct", "list") == before


def test_it_ends_with_a_served_and_measured_model(provisioned: Ended) -> None:
    assert provisioned.code == 0, provisioned.json["problems"]
    assert provisioned.result["changed"] > 0
    bench = json.loads((Path(provisioned.result["bench"]["file"])).read_text())
    assert [point["concurrency"] for point in bench["points"]] == [4, 16]
    assert all(point["valid"] for point in bench["points"]), bench["points"]


def test_the_report_is_one_page_that_needs_no_network(provisioned: Ended) -> None:
    page = Path(provisioned.result["bench"]["report"]).read_text()
    assert "<svg" in page
    assert 'src="http' not in page
    assert 'href="http' not in page


@pytest.mark.usefixtures("provisioned")
def test_a_second_run_changes_nothing(site: Path, container: str) -> None:
    again = rackwell("provision", container, "-i", site)
    assert again.code == 0, again.json["problems"]
    assert again.result["changed"] == 0, again.result["changes"]


@more
@pytest.mark.usefixtures("provisioned")
def test_the_playbook_runs_without_the_command_line_and_changes_nothing(site: Path, container: str, host: str) -> None:
    # the facts of the container's host and the collection are found by ansible itself
    done = subprocess.run(
        [
            "ansible-playbook",
            "rackwell.gpu.provision",
            "-i",
            str(site),
            "--limit",
            f"{container},{host}",
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    recap = done.stdout.partition("PLAY RECAP")[2]
    assert recap.count("changed=0") == 2, recap


@pytest.mark.usefixtures("provisioned")
def test_verify_proves_it(site: Path, container: str) -> None:
    verified = rackwell("verify", container, "-i", site)
    assert verified.code == 0, verified.json
    verdicts = {check["item"]: check["verdict"] for check in verified.result["checks"]}
    # beside the running server no figure is taken, and this machine has no baseline yet; all else is proved
    figures = {"p2p.bandwidth", "p2p.latency", "p2p.concurrent", "collectives", "baseline"}
    assert {item for item, verdict in verdicts.items() if verdict != "pass"} == figures, verdicts


@pytest.mark.usefixtures("provisioned")
def test_status_tells_what_runs(site: Path, container: str) -> None:
    told = rackwell("status", "-i", site)
    row = next(row for row in told.result["containers"] if row["container"] == container)
    assert row["release"] == inside(container, "readlink", "/opt/rackwell/current").rpartition("/")[2]


@pytest.mark.usefixtures("provisioned")
def test_the_server_runs_as_the_service_user_with_the_caches_of_its_release(container: str) -> None:
    pid = inside(container, "systemctl", "show", "-P", "MainPID", "rackwell-inference.service")
    assert inside(container, "stat", "-c", "%U", f"/proc/{pid}") == "rackwell"
    environment = inside(container, "cat", f"/proc/{pid}/environ").split("\0")
    release = inside(container, "readlink", "/opt/rackwell/current").rpartition("/")[2]
    caches = [line for line in environment if line.startswith("FLASHINFER_WORKSPACE_BASE=")]
    assert len(caches) == 1
    assert release in caches[0]
