# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rackwell.probe.errors import BY_CODE, DATA_MISMATCH_GPU, DATA_MISMATCH_PEER, HANG, choose, explain


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_code_has_an_unconditional_last_answer(code: int) -> None:
    assert not BY_CODE[code][-1].when
    assert all(entry.cause and entry.fix for entry in BY_CODE[code])
    assert all(entry.when for entry in BY_CODE[code][:-1])


@pytest.mark.parametrize("entries", [HANG, DATA_MISMATCH_GPU, DATA_MISMATCH_PEER])
def test_so_has_everything_without_a_code(entries: tuple[object, ...]) -> None:
    assert choose(entries).fix  # type: ignore[arg-type]


def test_code_3_names_hmm_only_as_far_as_it_is_known() -> None:
    assert "uvm_disable_hmm=1" in explain(3, {"hmm-on"}).fix
    assert explain(3, {"hmm-on"}).cause.startswith("HMM is on")
    assert explain(3).cause.startswith("the driver could not start")
    # a missing node is certain, HMM is only likely
    assert "/dev/nvidia-uvm is not in this container" in explain(3, {"hmm-on", "uvm-node-missing"}).cause


@pytest.mark.parametrize(
    ("finding", "node"),
    [
        ("uvm-node-missing", "/dev/nvidia-uvm"),
        ("uvm-node-denied", "/dev/nvidia-uvm"),
        ("gpu-node-denied", "/dev/nvidia0"),
        ("ctl-node-missing", "/dev/nvidiactl"),
    ],
)
def test_no_device_names_the_node_in_the_way(finding: str, node: str) -> None:
    assert f"{node},mode=0666" in explain(100, {finding}).fix


def test_an_unknown_code_still_says_where_to_look() -> None:
    assert "dmesg" in explain(98765).fix
