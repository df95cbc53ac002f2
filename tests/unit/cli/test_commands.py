# SPDX-License-Identifier: Apache-2.0
"""Commands from their arguments to their exit code and output, with made-up machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import samples
from cli_rig import CONTAINER, DIGEST, ERROR, GPUS, HOST, SERVER, Rig, point, release

from rackwell import shipped
from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult
from rackwell.cli.output import Terminal
from rackwell.provision import builds, plays
from rackwell.provision.lock import container_lock


def provisioned(rig: Rig, changed: bool = True) -> None:
    rig.machines.on(
        "provision",
        ("ok", "pve1", "pve_host", {"rackwell_result": dict(HOST)}),
        ("ok", "glm5-01", "release", {"changed": changed}),
        ("ok", "glm5-01", "inference_server", {"changed": changed, "rackwell_result": dict(SERVER)}),
    )


def test_provision_then_bench_then_report(rig: Rig) -> None:
    provisioned(rig)
    assert rig.at_site("provision", "glm5-01") == 0
    assert "2 changed" in rig.out
    assert "http://127.0.0.1:30000/v1" in rig.out
    assert "ssh -L 30000:127.0.0.1:30000 root@192.0.2.21" in rig.out
    report = Path(re.findall(r"report (\S+)", rig.out)[0])
    assert report.read_text().startswith("<!")
    assert [name for name, _ in rig.machines.calls] == ["provision", "bench"]
    options = rig.machines.calls[0][1]
    assert options["limit"] == ["glm5-01", "pve1"]
    assert options["extra"]["release_bundle"].endswith(DIGEST)


def test_a_second_provision_changes_nothing_and_measures_nothing(rig: Rig) -> None:
    provisioned(rig)
    rig.at_site("provision", "glm5-01")
    provisioned(rig, changed=False)
    rig.machines.calls.clear()
    envelope = rig.json("provision", "glm5-01")
    assert envelope["ok"]
    assert envelope["result"]["changed"] == 0
    assert envelope["result"]["bench"]["measured"] is False
    assert [name for name, _ in rig.machines.calls] == ["provision"]
    # --bench measures all the same, a changed profile too
    assert rig.json("provision", "glm5-01", "--bench")["result"]["bench"]["measured"] is True
    rig.site.edit("profiles/toy.yml", "tp-size: 8", "tp-size: 4")
    assert rig.json("provision", "glm5-01")["result"]["bench"]["measured"] is True


def test_an_edited_sweep_is_measured_anew(rig: Rig) -> None:
    provisioned(rig)
    rig.at_site("provision", "glm5-01")
    provisioned(rig, changed=False)
    rig.site.add("bench/quick.yml", "# a remark\nseed: 1\n")  # the default, written out
    assert rig.json("provision", "glm5-01")["result"]["bench"]["measured"] is False
    rig.site.edit("bench/quick.yml", "input_tokens: 128", "input_tokens: 256")
    bench = rig.json("provision", "glm5-01")["result"]["bench"]
    assert bench["measured"] is True
    assert len(json.loads(Path(bench["file"]).read_text())["bench_digest"]) == 64


def test_no_bench(rig: Rig) -> None:
    provisioned(rig)
    assert rig.json("provision", "glm5-01", "--no-bench")["result"]["bench"] is None
    assert len(rig.machines.calls) == 1


def test_check_mode_says_what_would_change_and_measures_nothing(rig: Rig) -> None:
    provisioned(rig)
    assert rig.at_site("provision", "glm5-01", "--check", "--diff") == 0
    assert "would change" in rig.out
    name, options = rig.machines.calls[0]
    assert (name, options["check"], options["diff"]) == ("provision", True, True)
    assert len(rig.machines.calls) == 1


def test_check_mode_tells_what_it_writes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rig.run("provision", "--help")
    said = " ".join(rig.out.split())
    for words in ("Touches no machine", "releases are made on this machine", "builds/*.lock"):
        assert words in said


def test_consent_to_a_restart(rig: Rig) -> None:
    rig.machines.on(
        "provision", ("failed", "glm5-01", "pve_container", {"rackwell_error": {**ERROR, "code": "restart-needed"}})
    )
    envelope = rig.json("provision", "glm5-01")
    assert envelope["exit_code"] == 4
    assert "--allow-restart" in envelope["problems"][0]["fix"]
    provisioned(rig)
    assert rig.json("provision", "glm5-01", "--allow-restart")["ok"]
    assert rig.machines.calls[1][1]["extra"]["pve_container_allow_restart"] is True


def test_an_invalid_declaration_touches_nothing(rig: Rig) -> None:
    rig.site.edit("profiles/toy.yml", "port: 30000", "port: none")
    envelope = rig.json("provision", "glm5-01")
    assert envelope["exit_code"] == 2
    assert envelope["problems"][0]["where"] == rig.site.line("profiles/toy.yml", "port")
    assert rig.machines.calls == []


@pytest.mark.parametrize(
    ("event", "extra", "code"),
    [
        ("failed", {}, 1),
        ("failed", {"rolled_back": True, "rollback_verified": True}, 3),
        ("failed", {"held": True}, 4),
        ("unreachable", {"msg": "Permission denied (publickey)."}, 6),
    ],
)
def test_what_fails_on_the_machines(rig: Rig, event: str, extra: dict[str, object], code: int) -> None:
    res = dict(extra) if event == "unreachable" else {"rackwell_error": ERROR, **extra}
    rig.machines.on("provision", (event, "glm5-01", "inference_server", res))
    assert rig.at_site("provision", "glm5-01") == code
    assert "error: " in rig.err
    log = Path(re.findall(r"log: (\S+)", rig.err)[0])
    assert log.exists()
    if code == 3:
        assert "what ran before runs again" in rig.err
    assert [name for name, _ in rig.machines.calls] == ["provision"]


def test_the_consequence_of_a_failed_host_is_not_told(rig: Rig) -> None:
    rig.machines.on(
        "provision",
        ("failed", "pve1", "pve_host", {"rackwell_error": ERROR}),
        ("failed", "glm5-01", "", {"msg": "pve1 is not ready", "task": plays.GUARD_TASK}),
    )
    assert rig.codes(rig.json("provision", "glm5-01")) == ["engine-died"]


def test_a_locked_container(rig: Rig) -> None:
    with container_lock(rig.site.root / ".rackwell", "glm5-01", "verify"):
        envelope = rig.json("provision", "glm5-01")
    assert envelope["exit_code"] == 5
    assert rig.machines.calls == []


def test_an_interrupt_while_building(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(builds, "make_all", interrupted)
    assert rig.at_site("provision", "glm5-01") == 130
    assert "no machine was touched" in rig.err


def test_an_interrupt_that_came_as_the_play_ended_still_ends_the_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    provisioned(rig)
    finished = rig.machines.play

    def too_late(*arguments: Any, **options: Any) -> PlayResult:
        result = finished(*arguments, **options)
        result.interrupted = True
        return result

    monkeypatch.setattr(runner, "play", too_late)
    envelope = rig.json("provision", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (130, ["interrupted"])
    assert "2 changes" in envelope["problems"][0]["why"]
    assert [name for name, _ in rig.machines.calls] == ["provision"]


def test_a_defect_is_one_line_and_a_log(rig: Rig) -> None:
    def breaks(name: str) -> None:
        raise ZeroDivisionError("oops")

    rig.machines.during = breaks
    envelope = rig.json("provision", "glm5-01")
    assert envelope["exit_code"] == 1
    assert "ZeroDivisionError: oops" in envelope["problems"][0]["what"]
    assert "Traceback" not in rig.err
    log = Path(re.findall(r"log: (\S+)", rig.err)[0])
    assert "Traceback" in log.read_text()


def test_a_sweep_with_a_point_that_does_not_count_is_stored_and_fails(rig: Rig) -> None:
    bad = {"rackwell_error": {**ERROR, "code": "requests-failed"}, "rackwell_result": point(16, valid=False)}
    rig.machines.on(
        "bench",
        ("ok", "glm5-01", "bench_client", {"rackwell_result": point(4)}),
        ("failed", "glm5-01", "bench_client", bad),
    )
    envelope = rig.json("bench", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["requests-failed"])
    assert envelope["result"]["valid"] is False
    assert Path(envelope["result"]["file"]).exists()


def test_bench_with_another_sweep_and_a_copy(rig: Rig, tmp_path: Path) -> None:
    rig.site.write("bench/full.yml", "concurrency: [1]\ninput_tokens: 1\noutput_tokens: 1\n")
    envelope = rig.json("bench", "glm5-01", "--profile", "full", "--out", str(tmp_path / "copy.json"))
    assert envelope["result"]["bench"] == "full"
    assert rig.machines.calls[0][1]["extra"]["bench_client_profile"] == "full"
    assert '"rackwell.bench/1"' in (tmp_path / "copy.json").read_text()


def test_bench_with_an_unknown_sweep(rig: Rig) -> None:
    assert rig.json("bench", "glm5-01", "--profile", "nope")["exit_code"] == 2
    assert rig.machines.calls == []


def test_report_of_the_latest_result_and_of_a_file(rig: Rig, tmp_path: Path) -> None:
    assert rig.codes(rig.json("report")) == ["no-result"]
    stored = rig.json("bench", "glm5-01")["result"]["file"]
    assert Path(rig.json("report", "glm5-01")["result"]["report"]).parent == Path(stored).parent
    target = tmp_path / "r.html"
    assert rig.at_site("report", stored, "--out", str(target)) == 0
    assert rig.out.strip() == str(target)
    assert target.exists()


def verified(rig: Rig, **replaced: tuple[str, str, str, dict[str, object]]) -> None:
    events = {
        "host": ("ok", "pve1", "pve_host", {"rackwell_result": dict(HOST)}),
        "container": ("ok", "glm5-01", "pve_container", {"rackwell_result": dict(CONTAINER)}),
        "gpus": ("ok", "glm5-01", "gpu_probe", {"rackwell_result": dict(GPUS)}),
        "release": ("ok", "glm5-01", "", {"rackwell_result": release(DIGEST)}),
        "server": ("ok", "glm5-01", "inference_server", {"rackwell_result": dict(SERVER)}),
    }
    rig.machines.on("verify", *{**events, **replaced}.values())


HOST_WITH_PROBLEM = {**HOST, "problems": [ERROR]}


def verdicts(envelope: dict[str, object]) -> dict[str, str]:
    return {item["item"]: item["verdict"] for item in envelope["result"]["checks"]}


def test_verify_passes(rig: Rig) -> None:
    verified(rig)
    assert rig.at_site("verify", "glm5-01") == 0
    assert len(re.findall(r"^\S+ +pass ", rig.out, re.MULTILINE)) == 4 + 14
    assert "p2p.data" in rig.out
    assert "56 of 56 pairs, 12.0 GB compared" in rig.out


def test_verify_tells_each_verdict_though_one_fails(rig: Rig) -> None:
    report = samples.slow_pair()
    bad = {"rackwell_error": ERROR, "problems": report["problems"], "rackwell_result": report, "rescued": True}
    verified(rig, gpus=("failed", "glm5-01", "gpu_probe", bad))
    rig.machines.plays["verify"].append(("failed", "glm5-01", "", {"msg": "not so", "task": "Tell the verdict"}))
    envelope = rig.json("verify", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["p2p-slow-pair"])
    assert envelope["result"]["verdict"] == "fail"
    told = verdicts(envelope)
    assert {name for name, verdict in told.items() if verdict != "pass"} == {"p2p.bandwidth"}
    assert {"host", "container", "gpu-host", "release", "server"} <= set(told)


@pytest.mark.parametrize(
    ("item", "event"),
    [
        ("release", ("ok", "glm5-01", "", {"rackwell_result": {**release(DIGEST), "slot_before": "f" * 64}})),
        ("release", ("ok", "glm5-01", "", {"rackwell_result": {**release(DIGEST), "staged_before": False}})),
        (
            "container",
            ("ok", "glm5-01", "pve_container", {"rackwell_result": {**CONTAINER, "changed_keys": ["memory"]}}),
        ),
        ("container", ("ok", "glm5-01", "pve_container", {"rackwell_result": {**CONTAINER, "systemd": None}})),
        ("server", ("ok", "glm5-01", "inference_server", {"rackwell_result": {**SERVER, "health": 503}})),
        ("host", ("failed", "pve1", "pve_host", {"rackwell_error": ERROR, "rackwell_result": HOST_WITH_PROBLEM})),
    ],
)
def test_verify_judges_what_the_modules_report(
    rig: Rig, item: str, event: tuple[str, str, str, dict[str, object]]
) -> None:
    verified(rig, **{item: event})
    envelope = rig.json("verify", "glm5-01")
    assert envelope["exit_code"] == 1
    assert [name for name, verdict in verdicts(envelope).items() if verdict != "pass"] == [item]


def test_verify_of_an_unreachable_container(rig: Rig) -> None:
    rig.machines.on(
        "verify",
        ("ok", "pve1", "pve_host", {"rackwell_result": dict(HOST)}),
        ("unreachable", "glm5-01", "", {"msg": "Connection refused"}),
    )
    envelope = rig.json("verify", "glm5-01")
    assert envelope["exit_code"] == 6
    assert verdicts(envelope)["host"] == "pass"
    assert verdicts(envelope)["server"] == "unknown"


def test_status_shows_the_living_beside_the_dead(rig: Rig) -> None:
    seen = {
        "schema": "rackwell.container_status/1",
        "reachable": True,
        "host_reachable": True,
        "container": "status: running",
        "slot": f"releases/{DIGEST}",
        "unit": "active",
        "restarts": "2",
    }
    rig.machines.on(
        "status",
        ("unreachable", "pve1", "", {"msg": "No route to host"}),
        ("ok", "glm5-01", "", {"ansible_facts": {"rackwell_result": seen}}),
    )
    envelope = rig.json("status")
    assert envelope["exit_code"] == 6
    row = envelope["result"]["containers"][0]
    assert (row["host_state"], row["state"], row["unit"]) == ("unreachable", "running", "active, 2 restarts")
    assert (row["release"], row["bench"], row["gate"]) == (DIGEST, "never", "-")


def test_status_fits_80_columns(rig: Rig) -> None:
    rig.json("bench", "glm5-01")
    seen = {"schema": "rackwell.container_status/1", "reachable": True, "host_reachable": True}
    seen |= {"container": "status: running", "slot": f"releases/{DIGEST}", "unit": "active", "restarts": "0"}
    driver = {"schema": "rackwell.host_status/1", "reachable": True, "driver": "595.58.03"}
    rig.machines.on(
        "status",
        ("ok", "pve1", "", {"ansible_facts": {"rackwell_result": driver}}),
        ("ok", "glm5-01", "", {"ansible_facts": {"rackwell_result": seen}}),
    )
    assert rig.at_site("status") == 0
    head, row = rig.out.splitlines()
    assert head.split() == ["container", "host", "driver", "state", "release", "server", "gate", "tok/s", "on"]
    assert row.split()[:6] == ["glm5-01", "pve1", "595.58.03", "running", DIGEST[:12], "active"]
    assert max(len(head), len(row)) <= 80


def test_report_says_when_it_is_the_name_or_the_site_that_is_wrong(rig: Rig, tmp_path: Path) -> None:
    assert rig.codes(rig.json("report", "nope")) == ["unknown-container"]
    assert rig.run("report", "-i", str(tmp_path / "nowhere")) == 2
    assert "there is no site here" in rig.err


def test_a_copy_of_a_benchmark_that_cannot_be_written(rig: Rig, tmp_path: Path) -> None:
    envelope = rig.json("bench", "glm5-01", "--out", str(tmp_path / "nope" / "copy.json"))
    assert (envelope["exit_code"], rig.codes(envelope), rig.machines.calls) == (2, ["no-directory"], [])
    envelope = rig.json("bench", "glm5-01", "--out", str(tmp_path))
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["cannot-write"])
    assert Path(envelope["result"]["file"]).exists()


def test_the_wheels_of_a_fetch_are_no_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal() as terminal:
        terminal.line("controller", "build x: fetching 2 wheels, 3 MB")
        terminal.detail("controller", "build x: 1/2 a.whl, 1 MB")
        assert "1/2 a.whl" in terminal._now().plain
        terminal.line("controller", "build x: release 0123 of x")
        assert terminal._now().plain == ""
    assert "a.whl" not in capsys.readouterr().err


def test_without_arguments_there_is_help_and_no_error(rig: Rig) -> None:
    assert rig.run() == 2
    assert rig.err.startswith("Usage: rackwell")
    assert rig.run("--version") == 0
    assert rig.out.startswith("rackwell ")


def test_check(rig: Rig) -> None:
    assert rig.at_site("check") == 0
    assert "the declaration holds" in rig.out
    rig.site.edit("builds/server.yml", "0.5.9", "five")
    rig.site.add("group_vars/gpu_containers.yml", "bench_client_build: nope\n")
    envelope = rig.json("check")
    assert envelope["exit_code"] == 2
    assert rig.site.line("builds/server.yml", "five") in [problem["where"] for problem in envelope["problems"]]
    assert rig.site.line("group_vars/gpu_containers.yml", "nope") in [p["where"] for p in envelope["problems"]]


def test_check_holds_patches_against_the_profile(rig: Rig) -> None:
    rig.site.add("builds/server.yml", "patches: [sglang/flashinfer-autotune-cutlass]\n")
    assert rig.json("check")["ok"]
    rig.site.edit("profiles/toy.yml", "flashinfer_cutlass", "triton")
    envelope = rig.json("check")
    assert rig.codes(envelope) == ["patch-without-effect"]
    assert envelope["problems"][0]["where"] == rig.site.line("profiles/toy.yml", "triton")


@pytest.mark.parametrize("name", ["profile", "bench", "build", "pve_container"])
def test_check_prints_schemas(rig: Rig, name: str) -> None:
    assert rig.run("check", "--schema", name) == 0
    assert f'"$id": "rackwell.{name}/1"' in rig.out
    assert rig.run("check", "--schema", "nope") == 2


def test_init_copies_and_never_overwrites(rig: Rig, tmp_path: Path) -> None:
    assert rig.run("init", str(tmp_path / "new")) == 0
    assert (tmp_path / "new" / "hosts.yml").exists()
    assert rig.run("init", str(tmp_path / "new")) == 2
    assert "not empty" in rig.err


def test_lab_outside_a_checkout(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "checkout", lambda: None)
    assert rig.run("lab", "up") == 2
    assert "checkout" in rig.err


@pytest.mark.parametrize("arguments", [["nope"], ["provision"], ["provision", "a", "--nope"], ["verify"]])
def test_usage_errors(rig: Rig, arguments: list[str]) -> None:
    assert rig.run(*arguments) == 2
    assert "error: " in rig.err
    assert "--help" in rig.err


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys\nfrom rackwell.cli.main import main\nmain(['--help'])\n"
        "print([m for m in ('pydantic', 'yaml', 'jinja2', 'ansible_runner', 'rackwell.site', 'rackwell.build', "
        "'rackwell.topology') if m in sys.modules], file=sys.stderr)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stderr.strip() == "[]"
    assert "provision" in answer.stdout
