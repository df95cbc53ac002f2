# SPDX-License-Identifier: Apache-2.0
"""Reports about hosts, drivers, containers, CUDA, P2P, memory, network, units and secrets: what is said first.

`data/host.jsonl` holds reports written after the rules, in other words than the rules' own examples: `expect` lists the
rules that may be first, ``normal`` when nothing may be raised, or ``unknown``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackwell.diagnose import Diagnoser, diagnoser

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "host.jsonl").read_text("utf-8").splitlines()]
SAMPLES = Path(__file__).parents[4] / "shared" / "samples"
AREAS = ["pve", "driver", "kernel-build", "cuda", "p2p", "memory", "network", "security", "systemd"]

#: Outputs of healthy machines; these lie beside the repository, and are not part of it.
HEALTHY = [
    "h200-x2/nvidia-smi-q.txt",
    "h200-x2/nvidia-smi-q.xml",
    "h200-x4/nvidia-smi-topo.txt",
    "rtx-pro-6000-x8/nvidia_smi_full.txt",
    "rtx-pro-6000-x8/lspci-vvv-bridges-gpus.txt",
    "rtx-pro-6000-x8/lscpu.txt",
    "rtx-pro-6000-x8/numa.txt",
    "nvbandwidth-h200-x2/device_to_device_memcpy_write_ce.json",
    "sglang-0.5.16/cold-start-tp1.log",
    "sglang-0.5.16/glm-dsa-tp2.log",
    "sglang-0.5.16/process-tree.txt",
]


@pytest.fixture(scope="module")
def rules() -> Diagnoser:
    return diagnoser()


def said(rules: Diagnoser, text: str | bytes) -> str:
    """The first finding's rule, ``normal`` if nothing is wrong, ``unknown`` if nothing is known."""
    told = rules.diagnose([("", text)])
    if not told.findings:
        return "unknown"
    return "normal" if told.findings[0].severity == "noise" else told.findings[0].id


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_cause_is_first(rules: Diagnoser, case: dict[str, Any]) -> None:
    assert said(rules, case["input"]) in case["expect"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_raises_nothing(rules: Diagnoser, name: str) -> None:
    if not (SAMPLES / name).is_file():
        pytest.skip("the samples are not here")
    told = rules.diagnose([("", (SAMPLES / name).read_bytes())])
    assert not [each.id for each in told.findings if each.severity != "noise" and each.area in AREAS]


@pytest.mark.parametrize("area", AREAS)
def test_each_rule_is_first_on_its_own_examples(rules: Diagnoser, area: str) -> None:
    from rackwell.diagnose import examples

    assert not [str(fault) for fault in examples.faults(rules, lambda rule: rule.area == area)]
