# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import lspci_tree
import pytest
from pci_tree import eight_gpus
from simulated import PLACES, uuid

from rackwell.probe import sysfs
from rackwell.probe.topology import Gpu, Port, Topology

REAL = Path(__file__).parents[4] / "shared/samples/rtx-pro-6000-x8/lspci-vvv-bridges-gpus.txt"


@pytest.fixture
def eight(tmp_path: Path) -> Topology:
    return sysfs.read(eight_gpus(tmp_path))


def test_two_sockets_with_the_right_pairs_under_each_switch(eight: Topology) -> None:
    sockets = eight.sockets()
    assert [socket["numa"] for socket in sockets] == [0, 1]
    switches = [
        [(switch["switch"], switch["gpus"]) for root in socket["roots"] for switch in root["switches"]]
        for socket in sockets
    ]
    assert switches == [
        [("0000:01:00.0", [0, 1]), ("0000:71:00.0", [2, 3])],
        [("0000:81:00.0", [4, 5]), ("0000:f1:00.0", [6, 7])],
    ]
    assert eight.switch_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_classes_of_the_eight(eight: Topology) -> None:
    assert eight.link_class(0, 1) == "same-switch"
    assert eight.link_class(0, 2) == "same-root-complex"
    assert eight.link_class(3, 4) == "cross-socket"
    assert eight.classes()[0] == [
        None,
        "same-switch",
        "same-root-complex",
        "same-root-complex",
        "cross-socket",
        "cross-socket",
        "cross-socket",
        "cross-socket",
    ]
    assert not eight.crosses_root(0, 1)
    assert eight.crosses_root(0, 2)


@pytest.mark.skipif(not REAL.is_file(), reason="the real machine's lspci is not here")
def test_the_real_machine(tmp_path: Path) -> None:
    """8x RTX PRO 6000 on ESC8000A-E13P, as its lspci shows it."""
    lspci_tree.build(tmp_path, REAL.read_text())
    tree = sysfs.read(tmp_path)
    assert [gpu.bus_id[5:7] for gpu in tree.gpus] == ["06", "07", "75", "76", "84", "85", "f4", "f5"]
    assert [socket["numa"] for socket in tree.sockets()] == [0, 1]
    assert tree.switch_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [tree.link_class(0, other) for other in range(1, 8)] == [
        "same-switch",
        *["same-root-complex"] * 2,
        *["cross-socket"] * 4,
    ]
    assert {port.acs["ctl"] for port in tree.ports.values() if port.acs} == {0x11}


def test_minors_are_nobodys_order(eight: Topology) -> None:
    """The real machine has minors 2 3 0 1 6 7 4 5 in the order of its bus ids: nothing here looks at them."""
    identities = [{"index": i, "bus_id": place[0].upper(), "uuid": uuid(i)} for i, place in enumerate(PLACES)]
    chosen = eight.select(identities)
    assert [gpu.uuid for gpu in chosen.gpus] == [uuid(i) for i in range(8)]
    assert chosen.classes() == eight.classes()


def test_a_selection_has_cudas_indices(eight: Topology) -> None:
    chosen = eight.select(
        [{"index": 0, "bus_id": "0000:f5:00.0", "uuid": None}, {"index": 1, "bus_id": "0000:f4:00.0", "uuid": None}]
    )
    assert chosen.gpu(0).bus_id == "0000:f5:00.0"
    assert chosen.link_class(0, 1) == "same-switch"


def test_a_gpu_outside_the_tree_is_of_no_class(eight: Topology) -> None:
    chosen = eight.select([{"index": 0, "bus_id": "0000:06:00.0"}, {"index": 1, "bus_id": "0000:99:00.0"}])
    assert chosen.link_class(0, 1) == "unknown"


def test_nvlink_goes_before_everything(eight: Topology) -> None:
    linked = eight.with_nvlinks({("0000:06:00.0", "0000:84:00.0"): 18})
    assert linked.link_class(0, 4) == "nvlink"
    assert linked.link_class(4, 0) == "nvlink"
    assert linked.link_class(0, 5) == "cross-socket"
    assert linked.nvlink_matrix()[4][0] == 18
    assert not linked.crosses_root(0, 4)


def test_two_levels_of_switches() -> None:
    trunk = ("r", "top-up", "top-down-0")
    gpus = (
        Gpu(0, "a", (*trunk, "low-up-0", "low-down-0", "a"), 0),
        Gpu(1, "b", (*trunk, "low-up-0", "low-down-1", "b"), 0),
        Gpu(2, "c", ("r", "top-up", "top-down-1", "low-up-1", "low-down-2", "c"), 0),
    )
    topology = Topology(gpus, numa_nodes=2)
    assert [gpu.switch for gpu in gpus] == ["low-up-0", "low-up-0", "low-up-1"]
    assert topology.link_class(0, 2) == "same-switch"
    assert topology.switch_groups() == [[0, 1]]


@pytest.mark.parametrize(
    ("numa", "nodes", "expected"),
    [
        ((0, 1), 2, "cross-socket"),
        ((0, 0), 2, "same-root-complex"),
        ((None, None), 1, "same-root-complex"),  # a machine with one socket says -1
        ((None, None), 2, "unknown"),
        ((None, 0), 2, "unknown"),
    ],
)
def test_directly_attached_gpus(numa: tuple[int | None, int | None], nodes: int, expected: str) -> None:
    topology = Topology((Gpu(0, "a", ("r0", "a"), numa[0]), Gpu(1, "b", ("r1", "b"), numa[1])), numa_nodes=nodes)
    assert topology.link_class(0, 1) == expected


def test_the_host_may_tell_the_nodes() -> None:
    topology = Topology((Gpu(0, "a", ("r0", "a")), Gpu(1, "b", ("r1", "b"))), numa_nodes=2)
    assert topology.with_numa({"a": 0, "b": 1}).link_class(0, 1) == "cross-socket"


def test_the_host_may_tell_the_paths() -> None:
    topology = Topology((Gpu(0, "a", ("a",), 0), Gpu(1, "b", ("r1", "b"), 0)), numa_nodes=2)
    placed = topology.with_paths({"a": ["r0", "up", "down", "a"], "b": ["r9", "b"]})
    assert placed.gpu(0).switch == "up"
    assert placed.gpu(1).root == "r1"  # what is seen here goes before what was told
    assert topology.with_paths({"a": ["r0", "other"]}).gpu(0).root is None


def test_the_narrowest_link_of_a_path_counts(eight: Topology) -> None:
    assert eight.pcie_gb_per_s(0) == pytest.approx(63.0, abs=0.1)
    ports = {**eight.ports, "0000:02:03.0": Port("0000:02:03.0", "downstream", 32.0, 8, 32.0, 8)}
    assert Topology(eight.gpus, ports).pcie_gb_per_s(0) == pytest.approx(31.5, abs=0.1)
    assert Topology(eight.gpus).pcie_gb_per_s(0) is None
