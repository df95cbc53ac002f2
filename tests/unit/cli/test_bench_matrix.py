# SPDX-License-Identifier: Apache-2.0
"""A matrix: one change at a time, the declared profile first, last, and served at the end whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_rig import DIGEST, ERROR, Rig, point

SERVED = {"schema": "rackwell.inference_server/1", "invocation_id": "a" * 32, "release": DIGEST, "ready_seconds": 12.5}
RATES = {"declared": 1.0, "max-running-requests-256": 1.5, "no-moe-runner-backend": 0.5, "NCCL_P2P_LEVEL-PHB": 1.0}
OPTIONS = ("--set", "max-running-requests=256", "--unset", "moe-runner-backend", "--allow-restart")


def profile_of(options: dict[str, Any]) -> str:
    """The variant of a play, by its profile's file."""
    file = options["extra"].get("inference_server_profile_file", "")
    return Path(file).stem.partition("+")[2] or "declared"


def faster(rate: float, concurrency: int) -> dict[str, Any]:
    made = point(concurrency)
    made["throughput"] = {name: value * rate for name, value in made["throughput"].items()}
    return made


@pytest.fixture
def machines(rig: Rig) -> list[tuple[str, str]]:
    """Machines on which each variant has a speed of its own. Gives (play, variant) in order."""
    seen: list[tuple[str, str]] = []

    def during(name: str) -> None:
        variant = profile_of(rig.machines.calls[-1][1])
        seen.append((name, variant))
        for play in ("activate", "fresh"):
            rig.machines.on(play, ("ok", "glm5-01", "inference_server", {"rackwell_result": dict(SERVED)}))
        points = [faster(RATES[variant], streams) for streams in (4, 16)]
        rig.machines.on("bench", *(("ok", "glm5-01", "bench_client", {"rackwell_result": one}) for one in points))

    rig.machines.during = during
    rig.machines.seen = seen  # type: ignore[attr-defined]
    return seen


def test_each_variant_has_one_change_and_they_are_ranked(rig: Rig, machines: list[tuple[str, str]]) -> None:
    envelope = rig.json("bench", "matrix", "glm5-01", *OPTIONS)
    result = envelope["result"]
    assert envelope["exit_code"] == 0, envelope["problems"]
    variants = ["declared", "max-running-requests-256", "no-moe-runner-backend", "declared"]
    assert machines == [(play, variant) for variant in variants for play in ("activate", "bench")]
    assert [place["variant"] for place in result["ranking"]["places"]] == [
        "max-running-requests=256",
        "without moe-runner-backend",
    ]
    best, worst = result["ranking"]["places"]
    assert (round(best["ratio"], 2), round(worst["ratio"], 2)) == (1.5, 0.5)
    assert (best["verdict"], worst["verdict"]) == ("faster", "slower")
    assert result["ranking"]["drift"]["ratio"] == pytest.approx(1.0)
    assert (result["declared_profile_served"], result["done"]) == (True, True)
    # a variant's profile is the declared one with one change, and is nobody else's to read
    folder = Path(result["file"]).parent / "profiles"
    declared = yaml.safe_load((rig.site.root / "profiles/toy.yml").read_text())
    varied = yaml.safe_load((folder / "toy+max-running-requests-256.yml").read_text())
    assert varied == {**declared, "flags": {**declared["flags"], "max-running-requests": 256}}
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())
    assert "matrix: max-running-requests=256" in listed(rig)


def listed(rig: Rig) -> str:
    rig.at_site("bench", "list")
    return rig.out


def test_a_variant_that_does_not_start_is_a_result_and_the_rest_is_measured(
    rig: Rig, machines: list[tuple[str, str]]
) -> None:
    healthy = rig.machines.during

    def during(name: str) -> None:
        healthy(name)
        if machines[-1] == ("activate", "max-running-requests-256"):
            failed = {"rackwell_error": ERROR, "rolled_back": True, "rollback_verified": True}
            rig.machines.on("activate", ("failed", "glm5-01", "inference_server", failed))

    rig.machines.during = during
    result = rig.json("bench", "matrix", "glm5-01", *OPTIONS)["result"]
    assert [step["state"] for step in result["steps"]] == ["measured", "crashed", "measured", "measured"]
    assert result["steps"][1]["problems"][0]["code"] == "engine-died"
    assert result["ranking"]["places"][-1]["variant"] == "max-running-requests=256"
    assert result["done"]


def test_ctrl_c_leaves_the_declared_profile_served_and_the_matrix_goes_on(
    rig: Rig, machines: list[tuple[str, str]]
) -> None:
    healthy = rig.machines.during

    def during(name: str) -> None:
        healthy(name)
        if machines[-1] == ("bench", "max-running-requests-256"):
            rig.machines.interrupted = ["bench"]
            rig.machines.on("bench", ("ok", "glm5-01", "bench_client", {"rackwell_result": faster(1.5, 4)}))

    rig.machines.during = during
    envelope = rig.json("bench", "matrix", "glm5-01", *OPTIONS)
    assert envelope["exit_code"] == 130
    assert machines[-1] == ("activate", "declared")
    assert envelope["result"]["declared_profile_served"]
    first = envelope["result"]["id"]

    rig.machines.during = healthy
    before = len(machines)
    envelope = rig.json("bench", "matrix", "glm5-01", *OPTIONS)
    assert (envelope["exit_code"], envelope["result"]["id"]) == (0, first)
    assert machines[before:][:2] == [(play, "max-running-requests-256") for play in ("activate", "bench")]
    # the point that was measured before the interruption is not measured again
    plays = [options for name, options in rig.machines.calls if name == "bench"]
    assert [one["concurrency"] for one in plays[2]["extra"]["bench_client_points"]] == [16]
    # and the one that was cut off, which met the restart, is not taken up on the machine
    assert plays[2]["extra"]["bench_client_run_id"].startswith(plays[1]["extra"]["bench_client_run_id"] + ".")


def test_without_consent_nothing_is_touched(rig: Rig) -> None:
    envelope = rig.json("bench", "matrix", "glm5-01", *OPTIONS[:-1])
    assert (envelope["exit_code"], rig.codes(envelope), rig.machines.calls) == (4, ["restart-needed"], [])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "no-variants"),
        (["--set", "tp-size=8"], "variant-without-effect"),
        (["--unset", "no-such-flag"], "variant-without-effect"),
        (["--set", "port=1"], "wrong-variant"),
        (["--set", "Not_A_Flag=1"], "wrong-variant"),
    ],
)
def test_what_is_no_variant_is_refused(rig: Rig, options: list[str], code: str) -> None:
    envelope = rig.json("bench", "matrix", "glm5-01", *options, "--allow-restart")
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, [code])
    assert rig.machines.calls == []


def test_a_file_of_variants_is_complained_about_by_line(rig: Rig) -> None:
    file = rig.site.write(
        "variants.yml", "variants:\n  - set: {max-running-requests: 256}\n  - unset: a\n    set: {b: 1}\n"
    )
    envelope = rig.json("bench", "matrix", "glm5-01", "--vary", str(file), "--allow-restart")
    assert (envelope["exit_code"], envelope["problems"][0]["where"]) == (2, f"{file}:3")
