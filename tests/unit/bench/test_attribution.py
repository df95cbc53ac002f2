# SPDX-License-Identifier: Apache-2.0
"""One part that differs is named, whichever it is; two are not; what is not known is said."""

from __future__ import annotations

from typing import Any

import pytest

from rackwell.bench.attribution import attribute
from rackwell.bench.result import BenchResult, Gpu, Hardware, Software, Topology

from . import story_runs as story


def base(**fields: Any) -> BenchResult:
    """A run with every part known."""
    return story.autotune().model_copy(update={"sweep": {"prompts_per_stream": 4, "concurrency": [1, 2]}, **fields})


def flags(**changed: Any) -> dict[str, Any]:
    kept = {**base().profile_content["flags"], **{key.replace("_", "-"): value for key, value in changed.items()}}
    return {"profile_content": {**base().profile_content, "flags": kept}}


def environment(**changed: Any) -> dict[str, Any]:
    return {"environment": {**base().environment, **changed}}


def release(**changed: Any) -> dict[str, Any]:
    found = base().release
    assert found
    return {"release": found.model_copy(update=changed)}


def hardware(limit: float = 600.0, name: str = story.GPU, count: int = 8, **fields: Any) -> dict[str, Any]:
    gpus = [Gpu(name=name, uuid=f"GPU-{i}", power_limit_w=limit) for i in range(count)]
    return {"hardware": Hardware(gpus=gpus, **{"driver_version": "595.58.03", **fields})}


@pytest.mark.parametrize(
    ("changed", "part", "text"),
    [
        (flags(num_continuous_decode_steps=8), "flag", "--num-continuous-decode-steps (default) -> 8"),
        (flags(max_running_requests=64), "flag", "--max-running-requests 1024 -> 64"),
        (flags(disable_cuda_graph=False), "flag", "--disable-cuda-graph on -> off"),
        (release(patches=[], digest="f" * 64), "patch", f"patch {story.AUTOTUNE} applied -> gone"),
        (
            release(sources={"sglang": "0.5.12", "flashinfer-python": "0.6.3"}, digest="f" * 64),
            "version",
            "sglang 0.5.9 -> 0.5.12",
        ),
        (
            release(sources={"sglang": "0.5.9", "flashinfer-python": "0.6.8"}),
            "version",
            "flashinfer-python 0.6.3 -> 0.6.8",
        ),
        (release(digest="f" * 64), "release", "content of the release 6175746f7475 -> ffffffffffff"),
        (
            environment(server_environment={"NCCL_P2P_LEVEL": "SYS"}),
            "variable",
            "NCCL_P2P_LEVEL (not set) -> SYS",
        ),
        (environment(kernel="6.18.1-1-pve"), "environment", "kernel 6.17.2-1-pve -> 6.18.1-1-pve"),
        (hardware(driver_version="600.1"), "driver", "driver 595.58.03 -> 600.1"),
        (hardware(limit=450.0), "power-limit", "power limit 600 W -> 450 W"),
        (hardware(count=4), "gpus", f"GPUs 8 x {story.GPU} -> 4 x {story.GPU}"),
        ({"host": "pve2"}, "host", "host pve1 -> pve2"),
        ({"container": "glm5-02"}, "container", "container glm5-01 -> glm5-02"),
        ({"client": Software(version="0.5.23")}, "client", None),
        ({"sweep": {"prompts_per_stream": 8}}, "sweep", "sweep prompts_per_stream 4 -> 8"),
    ],
)
def test_the_part_that_differs_is_named(changed: dict[str, Any], part: str, text: str | None) -> None:
    found = attribute(base(), base(**changed))
    assert found.verdict == "cause", found.text
    assert found.cause is not None
    assert found.cause.part == part
    if text:
        assert found.text == f"differs only in: {text}"


@pytest.mark.parametrize(
    "changed",
    [
        environment(boot_id="x", matrix={"id": 1}, unit_sha256="y", server_invocation="z"),
        {"sweep": {"prompts_per_stream": 4, "concurrency": [512], "point_timeout": 9}},
        {"run_id": "other", "date_utc": "2026-03-01T00:00:00Z", "points": []},
    ],
)
def test_an_occasion_is_no_cause(changed: dict[str, Any]) -> None:
    assert attribute(base(), base(**changed)).verdict == "none"


def test_two_parts_are_refused_and_listed() -> None:
    found = attribute(base(), base(**flags(max_running_requests=64), **hardware(limit=450.0)))
    assert found.verdict == "refused"
    assert found.cause is None
    assert found.text == "2 things changed: --max-running-requests 1024 -> 64; power limit 600 W -> 450 W"


def test_a_version_that_brings_a_patch_along_is_two_things() -> None:
    changed = release(sources={"sglang": "0.5.13", "flashinfer-python": "0.6.3"}, patches=[])
    assert attribute(base(), base(**changed)).text.startswith("2 things changed: sglang 0.5.9 -> 0.5.13; patch")


def test_another_host_has_its_own_gpus_and_processor() -> None:
    """They are that host's: one change. Another driver on it is a second."""
    gpus = [Gpu(name=story.GPU, uuid=f"GPU-x{i}", power_limit_w=600.0) for i in range(8)]
    there = {"host": "pve2", "hardware": Hardware(gpus=gpus, driver_version="595.58.03")}
    assert attribute(base(**environment(cpu="a")), base(**there, **environment(cpu="b"))).verdict == "cause"
    other = {**there, "hardware": Hardware(gpus=gpus, driver_version="600.1")}
    assert attribute(base(), base(**other)).text == "2 things changed: host pve1 -> pve2; driver 595.58.03 -> 600.1"
    # on one host other GPUs are a change of their own
    assert attribute(base(), base(hardware=there["hardware"])).text == (
        "differs only in: GPUs some of this host -> others of it"
    )


def test_a_worse_topology_is_a_difference() -> None:
    found = attribute(base(topology=Topology(verdict="ok")), base(topology=Topology(verdict="degraded")))
    assert found.text == "differs only in: verdict on the GPUs' links ok -> degraded"


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"release": None}, "release and patches (autotune)"),
        ({"profile": None, "profile_content": {}}, "profile (autotune)"),
        ({"environment": {}}, "kernel and variables (autotune)"),
        ({"hardware": Hardware(driver_version="595.58.03")}, "GPUs (autotune)"),
        ({"client": Software()}, "load generator (autotune)"),
        (environment(cpu="x"), "cpu (autotune)"),
    ],
)
def test_what_is_not_known_prevents_attribution(changed: dict[str, Any], missing: str) -> None:
    found = attribute(base(), base(**changed))
    assert found.verdict == "refused"
    assert missing in found.unknown
    assert found.text.startswith("nothing that both runs tell of differs; but not known: ")
    known = attribute(base(), base(**changed, container="glm5-02"))
    assert known.text.startswith("differs in: container glm5-01 -> glm5-02; but not known: ")


def test_neither_run_tells() -> None:
    bare = story.imported(base())
    assert "release and patches (neither run)" in attribute(bare, bare).unknown


def test_it_is_json() -> None:
    told = attribute(base(), base(**flags(max_running_requests=64))).as_dict()
    assert told["cause"] == {
        "part": "flag",
        "name": "--max-running-requests",
        "before": "1024",
        "after": "64",
        "text": "--max-running-requests 1024 -> 64",
    }
