# SPDX-License-Identifier: Apache-2.0
"""verify, status and baseline where they are about GPUs, with made-up machines and reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import samples
from cli_rig import CONTAINER, DIGEST, HOST, SERVER, Rig, release

Event = tuple[str, str, str, dict[str, Any]]
HELD = {"code": "gate-held", "what": "the boot gate holds the server back", "where": "", "why": "", "fix": ""}


def gpus(report: dict[str, Any]) -> Event:
    """What gpu_check says of it: a failure only where the verdict is fail."""
    if report["verdict"] != "fail":
        return ("ok", "glm5-01", "gpu_probe", {"rackwell_result": report})
    problems = report["problems"]
    error = {"rackwell_error": problems[0], "problems": problems, "rackwell_result": report, "rescued": True}
    return ("failed", "glm5-01", "gpu_probe", error)


def verified(rig: Rig, report: dict[str, Any], *more: Event) -> None:
    rig.machines.on(
        "verify",
        ("ok", "pve1", "pve_host", {"rackwell_result": dict(HOST)}),
        ("ok", "glm5-01", "pve_container", {"rackwell_result": dict(CONTAINER)}),
        gpus(report),
        *more,
        ("ok", "glm5-01", "", {"rackwell_result": release(DIGEST)}),
        ("ok", "glm5-01", "inference_server", {"rackwell_result": dict(SERVER)}),
    )
    if report["verdict"] == "fail" or any(kind == "failed" for kind, *_ in more):
        told = ("failed", "glm5-01", "", {"msg": "not so", "task": "Tell the verdict"})
        rig.machines.plays["verify"].append(told)


def row(out: str, item: str) -> str:
    return next(line for line in out.splitlines() if line.split()[:1] == [item])


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_verify_shows_every_kind_of_report(rig: Rig, name: str) -> None:
    report = samples.ALL[name]()
    verified(rig, report)
    assert rig.at_site("verify", "glm5-01") == (1 if report["verdict"] == "fail" else 0)
    for check in report["checks"]:
        item = "gpu-host" if check["id"] == "host" else check["id"]
        shown = row(rig.out, item)
        assert check["verdict"].replace("-", " ") in shown
        assert check["summary"] in shown
    for finding in report["findings"]:
        for part in ("code", "what", "why", "fix"):
            assert finding[part] in rig.out
        # told once in full: stderr has one line of it
        assert (rig.err.count(finding["what"]) == 1) == (finding["verdict"] == "fail")
    assert ("DEGRADED" in rig.out) == (report["verdict"] == "degraded")


def test_verify_keeps_the_report_and_its_page(rig: Rig, tmp_path: Path) -> None:
    report = {**samples.healthy(), "of_a_later_version": [1]}
    verified(rig, report)
    envelope = rig.json("verify", "glm5-01", "--page", str(tmp_path / "page.html"))
    result = envelope["result"]
    assert (result["verdict"], result["gate"]) == ("pass", None)
    kept = json.loads(Path(result["report"]).read_text())
    assert kept == report
    assert result["page"] == str(tmp_path / "page.html")
    assert Path(result["report"]).with_name("gpu.html").read_text() == (tmp_path / "page.html").read_text()
    assert json.loads((rig.site.root / ".rackwell" / "gpu" / "glm5-01.json").read_text()) == report
    verified(rig, report)
    assert rig.at_site("verify", "glm5-01") == 0
    page = Path(re.findall(r"^page (\S+)$", rig.out, re.MULTILINE)[0])
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_verify_refuses_a_page_that_has_no_place(rig: Rig, tmp_path: Path) -> None:
    envelope = rig.json("verify", "glm5-01", "--page", str(tmp_path / "nowhere" / "page.html"))
    assert (envelope["exit_code"], rig.codes(envelope), rig.machines.calls) == (2, ["no-directory"], [])
    verified(rig, samples.healthy())
    envelope = rig.json("verify", "glm5-01", "--page", str(tmp_path))
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["cannot-write"])
    assert Path(envelope["result"]["report"]).exists()


def test_quick(rig: Rig) -> None:
    verified(rig, samples.quick())
    assert rig.at_site("verify", "glm5-01", "--quick") == 0
    assert rig.machines.calls[0][1]["extra"] == {"gpu_probe_mode": "quick", "release_verify": False}
    assert rig.json("verify", "glm5-01", "--quick", "--release-gate")["exit_code"] == 2
    assert len(rig.machines.calls) == 1


def test_a_degraded_machine_is_told_loudly_and_ends_with_0(rig: Rig) -> None:
    verified(rig, samples.below_baseline())
    envelope = rig.json("verify", "glm5-01")
    assert (envelope["ok"], envelope["problems"], envelope["result"]["verdict"]) == (True, [], "degraded")
    found = {check["item"]: check for check in envelope["result"]["checks"]}["baseline"]
    assert found["code"] == "link-below-baseline"
    assert (found["measured"], found["expected"], found["unit"], found["basis"]) == (47.1, 51.2, "GB/s", "baseline")


def test_a_report_that_is_none_is_told_and_hides_nothing_else(rig: Rig) -> None:
    verified(rig, {"schema": "rackwell.gpu/1", "verdict": "splendid"})
    envelope = rig.json("verify", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["not-such-a-document"])
    told = {check["item"]: check["verdict"] for check in envelope["result"]["checks"]}
    assert (told["host"], told["gpus"], told["server"]) == ("pass", "unknown", "pass")


def held_gate(report: dict[str, Any]) -> Event:
    verdict = {**samples.gate(report), "state": "held", "report": None}
    error = {"rackwell_error": HELD, "problems": report["problems"], "held": True, "rackwell_result": verdict}
    return ("failed", "glm5-01", "gpu_probe", {**error, "rescued": True})


def test_a_gate_that_holds_the_server_is_exit_4_and_tells_its_cause_once(rig: Rig) -> None:
    report = samples.corrupt_one_way()
    verified(rig, report, held_gate(report))
    envelope = rig.json("verify", "glm5-01")
    assert envelope["exit_code"] == 4
    assert rig.codes(envelope) == ["gate-held", "p2p-corrupt-one-way"]
    assert "rackwell verify glm5-01 -i " in envelope["problems"][0]["fix"]
    assert envelope["problems"][0]["fix"].endswith("--release-gate")
    assert envelope["problems"][0]["why"].startswith("p2p-corrupt-one-way: ")
    assert {check["item"]: check["verdict"] for check in envelope["result"]["checks"]}["gate"] == "fail"
    assert envelope["result"]["gate"]["held"] is True


@pytest.mark.parametrize("state", ["absent", "other-boot", "interrupted"])
def test_a_boot_without_a_verdict_is_held_too(rig: Rig, state: str) -> None:
    old = {**samples.gate(), "report": None} if state == "other-boot" else {"schema": "rackwell.gate/1"}
    absent = {**old, "state": state}
    error = {"rackwell_error": HELD, "held": True, "rackwell_result": absent, "rescued": True}
    verified(rig, samples.healthy(), ("failed", "glm5-01", "gpu_probe", error))
    envelope = rig.json("verify", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (4, ["gate-held"])
    told = {check["item"]: check["evidence"] for check in envelope["result"]["checks"]}
    assert state in told["gate"]


def test_release_gate_runs_the_gate_and_shows_its_report(rig: Rig) -> None:
    rig.machines.on(
        "gate",
        ("ok", "glm5-01", "gpu_probe", {"rackwell_result": samples.gate()}),
        ("ok", "glm5-01", "inference_server", {"rackwell_result": dict(SERVER)}),
    )
    envelope = rig.json("verify", "glm5-01", "--release-gate")
    assert (envelope["exit_code"], [name for name, _ in rig.machines.calls]) == (0, ["gate"])
    told = {check["item"]: check["verdict"] for check in envelope["result"]["checks"]}
    assert (told["p2p.data"], told["gate"], told["server"]) == ("pass", "pass", "pass")
    assert not {"host", "container", "release"} & set(told)
    assert Path(envelope["result"]["page"]).exists()


def test_a_gate_that_fails_again_still_holds(rig: Rig) -> None:
    report = samples.slow_pair()
    error = {"rackwell_error": HELD, "problems": report["problems"], "held": True}
    rig.machines.on("gate", ("failed", "glm5-01", "gpu_probe", {**error, "rackwell_result": samples.gate(report)}))
    envelope = rig.json("verify", "glm5-01", "--release-gate")
    assert (envelope["exit_code"], rig.codes(envelope)) == (4, ["gate-held"])
    assert envelope["problems"][0]["fix"].count("--release-gate") == 1
    assert {check["item"]: check["verdict"] for check in envelope["result"]["checks"]}["p2p.bandwidth"] == "fail"


def looked(rig: Rig, **fields: Any) -> dict[str, Any]:
    seen = {"schema": "rackwell.container_status/1", "reachable": True, "host_reachable": True, "unit": "inactive"}
    seen |= {"container": "status: running", "slot": f"releases/{DIGEST}", "restarts": "0"}
    driver = {"schema": "rackwell.host_status/1", "reachable": True, "driver": "595.58.03"}
    rig.machines.on(
        "status",
        ("ok", "pve1", "", {"ansible_facts": {"rackwell_result": driver}}),
        ("ok", "glm5-01", "", {"ansible_facts": {"rackwell_result": {**seen, **fields}}}),
    )
    return rig.json("status")


def test_status_tells_the_gate(rig: Rig) -> None:
    passed = {**samples.gate(), "report": None}
    held = {**samples.gate(samples.uvm_missing()), "report": None}
    for fields, cell in (
        ({}, "-"),
        ({"gate": ""}, "-"),
        ({"gate": passed}, "pass"),
        ({"gate": json.dumps(passed)}, "pass"),
        ({"gate": {**passed, "state": "passed"}}, "pass"),
        ({"gate": {**passed, "state": "other-boot"}}, "other-boot"),
        ({"gate": "", "gate_partial": True}, "running"),
        ({"gate": {"schema": "rackwell.gate/1", "state": "absent"}}, "-"),
        ({"gate": {"schema": "rackwell.gate/1", "state": "interrupted"}, "gate_partial": True}, "interrupted"),
    ):
        envelope = looked(rig, **fields)
        assert (envelope["exit_code"], envelope["result"]["containers"][0]["gate"]) == (0, cell), fields
    envelope = looked(rig, gate=held)
    assert envelope["result"]["containers"][0]["gate"] == "held: uvm-node-missing"
    assert (envelope["exit_code"], rig.codes(envelope)) == (4, ["gate-held"])
    assert "uvm-node-missing: /dev/nvidia-uvm is missing" in envelope["problems"][0]["why"]


def recorded(rig: Rig, document: dict[str, Any]) -> dict[str, Any]:
    rig.machines.on("baseline", ("ok", "glm5-01", "gpu_probe", {"rackwell_result": document}))
    return rig.json("baseline", "record", "glm5-01", "--runs", "3")


def test_baseline_is_recorded_kept_and_shown(rig: Rig) -> None:
    document = samples.baseline()
    envelope = recorded(rig, document)
    assert envelope["exit_code"] == 0
    assert rig.machines.calls[0][1]["extra"] == {"rackwell_baseline_runs": 3, "rackwell_baseline_stop_server": False}
    file = rig.site.root / ".rackwell" / "baselines" / "glm5-01.json"
    assert json.loads(file.read_text()) == document
    assert envelope["result"]["file"] == str(file)
    assert rig.at_site("baseline", "show", "glm5-01") == 0
    assert "595.58.03" in rig.out
    assert "GPU 7" in rig.out
    assert rig.json("baseline", "show", "glm5-01")["result"]["digest"] == document["digest"]


def test_a_server_that_runs_is_not_stopped_without_consent(rig: Rig) -> None:
    error = {"code": "server-running", "what": "a server runs", "where": "", "why": "", "fix": "-e x"}
    rig.machines.on("baseline", ("failed", "glm5-01", "gpu_probe", {"rackwell_error": error}))
    envelope = rig.json("baseline", "record", "glm5-01")
    assert envelope["exit_code"] == 4
    assert envelope["problems"][0]["fix"].endswith("--allow-stop-server")
    rig.json("baseline", "record", "glm5-01", "--allow-stop-server")
    assert rig.machines.calls[1][1]["extra"]["rackwell_baseline_stop_server"] is True


def test_a_machine_that_fails_gets_no_baseline(rig: Rig) -> None:
    report = samples.slow_pair()
    error = {"rackwell_error": report["problems"][0], "problems": report["problems"]}
    rig.machines.on("baseline", ("failed", "glm5-01", "gpu_probe", error))
    envelope = rig.json("baseline", "record", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["p2p-slow-pair"])
    assert rig.json("baseline", "show", "glm5-01")["exit_code"] == 2


def test_diff_against_the_newest_report(rig: Rig) -> None:
    recorded(rig, samples.baseline())
    assert rig.codes(rig.json("baseline", "diff", "glm5-01")) == ["no-report"]
    verified(rig, samples.healthy(seed=2))
    rig.json("verify", "glm5-01")
    envelope = rig.json("baseline", "diff", "glm5-01")
    assert (envelope["exit_code"], envelope["result"]["held"][0]["verdict"]) == (0, "pass")
    verified(rig, samples.below_baseline())
    rig.json("verify", "glm5-01")
    envelope = rig.json("baseline", "diff", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["p2p-below-baseline"])
    worse = {delta["name"] for delta in envelope["result"]["held"][0]["deltas"] if delta["worse"]}
    assert {"GPU 4 sends", "GPU 4 receives"} <= worse
    assert not {"GPU 3 sends", "GPU 5 receives"} & worse
    assert rig.at_site("baseline", "diff", "glm5-01") == 1
    assert "GPU 4 sends" in rig.out


def test_diff_of_files_without_a_site(rig: Rig, tmp_path: Path) -> None:
    files = {"base": samples.baseline(), "good": samples.healthy(seed=3), "bad": samples.link_generation()}
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
    code = rig.run("baseline", "diff", *(str(tmp_path / name) for name in files))
    assert code == 1
    assert rig.out.index("good: pass") < rig.out.index("bad: degraded")
    assert rig.run("baseline", "diff", str(tmp_path / "base"), str(tmp_path / "base")) == 2
    assert "no report of GPUs" in rig.err


def test_a_baseline_that_does_not_fit_is_refused_with_the_fact(rig: Rig) -> None:
    document = samples.baseline()
    document["machine"]["driver_version"] = "590.48.01"
    recorded(rig, samples.sealed(document))
    verified(rig, samples.healthy())
    rig.json("verify", "glm5-01")
    envelope = rig.json("baseline", "diff", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["baseline-outdated"])
    assert "driver_version: 590.48.01 then, 595.58.03 now" in envelope["problems"][0]["why"]
    assert envelope["result"]["held"][0]["deltas"] == []


def test_a_baseline_that_was_edited_is_refused(rig: Rig) -> None:
    recorded(rig, samples.baseline())
    file = rig.site.root / ".rackwell" / "baselines" / "glm5-01.json"
    file.write_text(file.read_text().replace('"runs": 5', '"runs": 6'))
    assert rig.codes(rig.json("baseline", "show", "glm5-01")) == ["baseline-damaged"]
