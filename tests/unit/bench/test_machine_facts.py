# SPDX-License-Identifier: Apache-2.0
"""What a result says of machine and server: without a secret, and enough to see that the server is another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import machine_facts


def test_of_the_environment_only_what_can_explain_a_difference_and_no_secret() -> None:
    found = machine_facts.environment(
        [
            "NCCL_P2P_LEVEL=SYS",
            "SGLANG_API_KEY=hunter2hunter2",
            "HOME=/root",
            "TORCH_PROXY=http://joe:hunter2hunter2@proxy:8080",
            "no assignment",
        ]
    )
    assert found == {"NCCL_P2P_LEVEL": "SYS", "SGLANG_API_KEY": "***", "TORCH_PROXY": "http://***@proxy:8080"}


def test_a_digest_tells_units_apart_but_not_keys() -> None:
    unit = "[Service]\nEnvironment=A=1\nExecStart=python -m sglang --api-key {key} --max-total-tokens {tokens}\n"

    def digest(key: str, tokens: int) -> str | None:
        return machine_facts.digest(unit.format(key=key, tokens=tokens))

    assert digest("one", 5) == digest("two", 5)
    assert digest("one", 5) != digest("one", 6)
    assert machine_facts.digest('HF_TOKEN="a"\nB=1') == machine_facts.digest('HF_TOKEN="b"\nB=1')
    assert machine_facts.digest(None) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30", "570.133.20"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build", "595.58.03"),
        ("", None),
    ],
)
def test_the_drivers_version(text: str, version: str | None) -> None:
    assert machine_facts.driver(text) == version


def test_facts_of_a_machine_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "releases/abc").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/abc")
    found = machine_facts.facts({"MainPID": "0"}, str(tmp_path), str(tmp_path / "no.service"), str(tmp_path / "no.env"))
    assert (found["schema"], found["server_release"], found["unit_sha256"]) == ("rackwell.bench_facts/1", "abc", None)
    assert found["kernel"]
    assert found["server_environment"] == {}


def test_differences_name_what_changed_and_leave_out_what_was_not_known() -> None:
    then = {"driver": "570.1", "kernel": "6.8", "server_release": "a" * 64, "unit_sha256": None, "boot_id": "x"}
    now = {"driver": "570.1", "kernel": "6.9", "server_release": "b" * 64, "unit_sha256": "c", "boot_id": "y"}
    assert machine_facts.differences(now, then) == [
        f"server_release: {'a' * 12} then, {'b' * 12} now",
        "kernel: 6.8 then, 6.9 now",
    ]
