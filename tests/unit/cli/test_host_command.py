# SPDX-License-Identifier: Apache-2.0
"""``rackwell host`` and ``rackwell verify HOST``, with made-up machines."""

from __future__ import annotations

from typing import Any

from cli_rig import HOST, Rig

from rackwell.provision.lock import container_lock

ROLE = "pve_host"
ACS = {"code": "acs-on", "what": "ACS is on", "where": "0000:10:03.0", "why": "BIOS", "fix": "rackwell host pve1"}
CLOCK = {
    "schema": "rackwell.host_clock/1",
    "checks": [{"item": "clock", "verdict": "pass", "evidence": "within 1.0 s", "findings": []}],
}


def platform(verdict: str) -> dict[str, Any]:
    told = [] if verdict == "pass" else [{"verdict": verdict, **ACS}]
    row = {"item": "acs", "verdict": verdict, "evidence": "12 ports", "findings": told}
    return {"schema": "rackwell.pve_platform/1", "checks": [row]}


def looked(rig: Rig, verdict: str) -> None:
    result: dict[str, Any] = {"rackwell_result": platform(verdict)}
    kind = "ok"
    if verdict == "fail":
        kind, result = "failed", {**result, "rackwell_error": ACS, "problems": [ACS], "rescued": True}
    rig.machines.on(
        "host_verify",
        ("ok", "pve1", ROLE, {"rackwell_result": dict(CLOCK)}),
        (kind, "pve1", ROLE, result),
        ("ok", "pve1", ROLE, {"rackwell_result": {**HOST, "hmm_disabled": True, "modules": {"nvidia": True}}}),
    )
    if verdict == "fail":
        told = ("failed", "pve1", "", {"msg": "not so", "task": "Tell the verdict"})
        rig.machines.plays["host_verify"].append(told)


def test_verify_takes_a_host(rig: Rig) -> None:
    looked(rig, "pass")
    envelope = rig.json("verify", "pve1")
    assert (envelope["exit_code"], envelope["result"]["verdict"]) == (0, "pass")
    rows = {check["item"]: check["evidence"] for check in envelope["result"]["checks"]}
    assert rows["clock"] == "within 1.0 s"
    assert rows["gpus"].startswith("8 GPUs")
    assert rig.machines.calls[-1] == (
        "host_verify",
        {"limit": ["pve1"], "on_interrupt": rig.machines.calls[-1][1]["on_interrupt"]},
    )


def test_what_degrades_a_host_is_told_with_its_cure_and_what_fails_it_ends_with_1(rig: Rig) -> None:
    looked(rig, "degraded")
    assert rig.at_site("verify", "pve1") == 0
    assert "acs-on" in rig.out
    assert "rackwell host pve1" in rig.out
    looked(rig, "fail")
    envelope = rig.json("verify", "pve1")
    assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["acs-on"])
    assert envelope["problems"][0]["fix"] == "rackwell host pve1"


def test_what_was_not_looked_at_is_no_success(rig: Rig) -> None:
    rig.machines.on("host_verify", ("ok", "pve1", ROLE, {"rackwell_result": dict(CLOCK)}))
    envelope = rig.json("verify", "pve1")
    assert envelope["exit_code"] == 1
    unknown = [check["item"] for check in envelope["result"]["checks"] if check["verdict"] == "unknown"]
    assert unknown == ["platform", "driver"]


def test_a_container_s_verify_tells_its_host_s_platform_and_its_clock(rig: Rig) -> None:
    wrong = {"rackwell_result": platform("fail"), "rackwell_error": ACS, "problems": [ACS], "rescued": True}
    rig.machines.on(
        "verify",
        ("failed", "pve1", ROLE, wrong),
        ("ok", "pve1", ROLE, {"rackwell_result": dict(HOST)}),
        ("ok", "glm5-01", "", {"rackwell_result": dict(CLOCK)}),
    )
    envelope = rig.json("verify", "glm5-01")
    rows = {check["item"]: (check["verdict"], check["evidence"]) for check in envelope["result"]["checks"]}
    assert rows["platform"] == ("fail", "12 ports")
    assert rows["clock"] == ("pass", "within 1.0 s")
    assert "acs-on" in rig.codes(envelope)


def test_host_asks_for_consent_and_gives_it(rig: Rig) -> None:
    needed = {"code": "reboot-needed", "what": "a reboot", "where": "pve1", "why": "ends all", "fix": "--allow-reboot"}
    rig.machines.on("host", ("failed", "pve1", ROLE, {"rackwell_error": needed, "held": True}))
    envelope = rig.json("host", "pve1")
    assert (envelope["exit_code"], rig.codes(envelope)) == (4, ["reboot-needed"])
    assert rig.machines.calls[-1][1]["extra"] is None
    rig.machines.on("host", ("ok", "pve1", ROLE, {"changed": True, "rackwell_result": platform("pass")}))
    assert rig.json("host", "pve1", "--allow-reboot")["result"]["changed"] == 1
    assert rig.machines.calls[-1][1]["extra"] == {"pve_host_allow_reboot": True}


def test_a_host_whose_container_is_worked_on_is_left_alone(rig: Rig) -> None:
    with container_lock(rig.site.root / ".rackwell", "glm5-01", "provision"):
        envelope = rig.json("host", "pve1")
    assert (envelope["exit_code"], rig.codes(envelope)) == (5, ["locked"])


def test_a_container_is_no_host(rig: Rig) -> None:
    envelope = rig.json("host", "glm5-01")
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, ["unknown-host"])
    assert "pve1" in envelope["problems"][0]["fix"]
