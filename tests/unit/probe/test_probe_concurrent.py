# SPDX-License-Identifier: Apache-2.0
"""Many copies at once: which flows a pattern has, and what is told of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rackwell.probe.p2p import concurrent, pairs

Order = Callable[..., None]
# two switches with two GPUs each on a socket; each switch has a root port of its own
SWITCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]
ROOTS = {str(index): f"0000:{index // 2}0:01.1" for index in range(8)}


def measure(deadline: float = 60, **arguments: Any) -> dict[str, Any]:
    return concurrent.measure({"size": 1 << 16, **arguments}, deadline)


def test_patterns_of_eight_gpus() -> None:
    found = concurrent.patterns(8, SWITCHES, ROOTS)
    count = {name: sum(pattern.name == name for pattern in found) for name in concurrent.PATTERNS}
    # one entry a GPU and op, one for all, one a switch
    assert count == {"one-to-all": 16, "all-to-one": 16, "all-to-all": 2, "switch-writes": 4, "switch-reads": 4}
    assert all(pattern.op == "write" for pattern in found if pattern.name == "switch-writes")
    assert {len(pattern.routes) for pattern in found if pattern.name == "all-to-all"} == {56}


def test_writes_of_a_switch_go_to_different_root_ports() -> None:
    for pattern in concurrent.patterns(8, SWITCHES, ROOTS):
        if pattern.name.startswith("switch-"):
            sources, targets = zip(*pattern.routes, strict=True)
            assert len(set(sources)) == len(sources) == 2
            assert len({ROOTS[str(target)] for target in targets}) == 2
            assert not {ROOTS[str(target)] for target in targets} & {ROOTS[str(source)] for source in sources}


def test_one_other_root_port_still_gives_each_its_own_target() -> None:
    roots = {"0": "a", "1": "a", "2": "b", "3": "b"}
    assert concurrent.across_roots([0, 1], range(4), roots) == ((0, 2), (1, 3))


@pytest.mark.parametrize("roots", [{}, dict.fromkeys("0123", "a"), {"0": "a", "1": "a", "2": "b"}])
def test_no_pattern_of_a_switch_without_two_ways_out(roots: dict[str, str]) -> None:
    names = {pattern.name for pattern in concurrent.patterns(4, [[0, 1]], roots)}
    assert names == {"one-to-all", "all-to-one", "all-to-all"}


def test_all_patterns_are_measured_and_verified(fake_cuda: Order) -> None:
    fake_cuda(gpus=4)
    found = measure(switches=[[0, 1], [2, 3]], roots={"0": "a", "1": "a", "2": "b", "3": "b"})
    assert (found["state"], found["errors"], found["data"]) == ("done", [], [])
    assert {entry["pattern"] for entry in found["concurrent"]} == set(concurrent.PATTERNS)
    assert all(entry["verified"] for entry in found["concurrent"])
    everyone = next(e for e in found["concurrent"] if (e["pattern"], e["op"]) == ("all-to-all", "read"))
    assert len(everyone["flows"]) == 12
    assert everyone["flow_gb_per_s"] == pytest.approx([50] * 12)
    assert everyone["gb_per_s"] == pytest.approx(600)
    assert len(everyone["samples"]) == 3


def test_the_slowest_flow_says_when_all_is_there(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, gb_per_s={"default": 50, "1>2": 5})
    found = measure(patterns=["one-to-all"])
    totals = {(e["flows"][0][0], e["op"]): e["gb_per_s"] for e in found["concurrent"]}
    assert totals == pytest.approx({(s, op): 10 if s == 1 else 100 for s in range(3) for op in ("write", "read")})


def test_a_flow_that_brings_wrong_bytes(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, corrupt={"2>1": "drop"})
    found = measure(patterns=["all-to-all", "all-to-one"])
    spoiled = [entry for entry in found["concurrent"] if not entry["verified"]]
    assert spoiled
    assert all([2, 1] in entry["flows"] for entry in spoiled)
    assert {(row["src"], row["dst"], row["kind"], row["source_intact"]) for row in found["data"]} == {
        (2, 1, "dropped", True)
    }


def test_a_hang_names_the_pattern(fake_cuda: Order) -> None:
    fake_cuda(gpus=3, hang="cuMemcpyAsync@2>1")
    found = measure(deadline=5, patterns=["all-to-all"])
    assert (found["state"], found["at"]) == ("hung", {"pair": None, "step": "all-to-all write"})


@pytest.mark.parametrize(
    ("count", "groups"),
    [(8, SWITCHES), (8, []), (8, [[0, 1, 2, 3], [4, 5, 6, 7]]), (2, []), (3, [[0, 1]]), (5, [[0, 1, 2]])],
)
def test_a_choice_of_pairs_has_each_gpu_send_and_receive_within_and_beyond(count: int, groups: list[list[int]]) -> None:
    for seed in range(50):
        chosen = pairs.sample(count, groups, random.Random(seed))
        assert len(set(chosen)) == len(chosen)
        for one in range(count):
            own = next((group for group in groups if one in group), [one])
            for others in ([i for i in own if i != one], [i for i in range(count) if i not in own]):
                if others:
                    assert any((one, other) in chosen for other in others)
                    assert any((other, one) in chosen for other in others)


def test_choices_differ() -> None:
    assert len({tuple(pairs.sample(8, SWITCHES, random.Random(seed))) for seed in range(20)}) > 10


def test_one_gpu_has_no_pairs() -> None:
    assert pairs.sample(1, [[0]], random.Random(0)) == []


def test_more_gpus_than_can_all_talk_at_once(fake_cuda: Order) -> None:
    fake_cuda(gpus=10)
    found = measure(patterns=["all-to-all"])
    assert found["errors"] == []
    assert {len(entry["flows"]) for entry in found["concurrent"]} == {72}  # nine of them: each has eight peers
    assert all(entry["verified"] for entry in found["concurrent"])
