# SPDX-License-Identifier: Apache-2.0
"""Outputs of other tools, in own fixtures of the same form."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rackwell.cli.main import main
from rackwell.topology import foreign
from rackwell.topology.foreign import bandwidth, host, lspci, machine, smi_query, smi_topo, text
from rackwell.topology.foreign.results import Majors, Nodes, Params, TopoMatrix
from rackwell.topology.report import GpuReport

from . import outputs

EVERYTHING = {
    "lspci.txt": outputs.lspci(),
    "topo.txt": outputs.topo(),
    "p2p.txt": outputs.p2p("r") + outputs.p2p("w"),
    "q.txt": outputs.smi_text(),
    "q.xml": outputs.smi_xml(),
    "query.csv": outputs.smi_csv(),
    "numa.txt": outputs.NUMACTL,
    "lscpu.txt": outputs.LSCPU,
    "cmdline": outputs.CMDLINE.format("iommu=pt"),
    "driver.txt": outputs.DRIVER.format(511),
    "nvbandwidth.json": outputs.nvbandwidth(
        "d2d_write", "GPU(row) <- GPU(column) (GB/s)", [["N/A", "1"], ["2", "N/A"]]
    ),
    "p2ptest.txt": outputs.P2P_TEST,
}


def build(*texts: str) -> GpuReport:
    return machine.build([result for each in texts for result in foreign.find(each)])


def codes(*texts: str) -> list[str]:
    return [finding.code for finding in build(*texts).findings]


def switches(report: GpuReport) -> list[tuple[int | None, str, str, list[int]]]:
    return [
        (socket.numa, root.root, switch.switch, switch.gpus)
        for socket in report.topology.sockets
        for root in socket.roots
        for switch in root.switches
    ]


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_each_output_is_known_by_its_content_only_as_what_it_is(name: str) -> None:
    found = {type(result).__name__ for result in foreign.find(EVERYTHING[name])}
    assert (
        found
        == {
            "lspci.txt": {"Lspci"},
            "topo.txt": {"TopoMatrix"},
            "p2p.txt": {"P2pStatus"},
            "q.txt": {"SmiLog"},
            "q.xml": {"SmiLog"},
            "query.csv": {"SmiLog"},
            "numa.txt": {"Numa"},
            "lscpu.txt": {"Cpus"},
            "cmdline": {"Cmdline"},
            "driver.txt": {"Majors", "Nodes", "Params", "DriverVersion"},
            "nvbandwidth.json": {"Bandwidths"},
            "p2ptest.txt": {"Bandwidths"},
        }[name]
    )


def test_the_tree_comes_from_the_buses() -> None:
    report = build(outputs.lspci())
    assert switches(report) == [
        (0, "0000:00:01.1", "0000:01:00.0", [0, 1]),
        (1, "0000:90:01.1", "0000:91:00.0", [2, 3]),
    ]
    assert [gpu.bus_id for gpu in report.gpus] == outputs.GPUS
    assert report.gpus[3].path == ["0000:90:01.1", "0000:91:00.0", "0000:a0:01.0", "0000:a2:00.0"]
    assert report.topology.classes[0] == [None, "same-switch", "cross-socket", "cross-socket"]


def test_nvidia_smi_adds_names_and_minors_by_bus_id() -> None:
    for words in (outputs.smi_text(), outputs.smi_xml()):
        report = build(outputs.lspci(), words)
        assert [gpu.minor for gpu in report.gpus] == outputs.MINORS
        assert [gpu.uuid for gpu in report.gpus] == [outputs.uuid(i) for i in range(4)]
        assert report.driver_version == "595.58.03"


def test_without_lspci_labels_give_classes_and_no_switch() -> None:
    report = build(outputs.topo(), outputs.smi_csv())
    assert report.topology.classes[0] == [None, "same-switch", "cross-socket", "cross-socket"]
    assert switches(report) == []
    assert [socket.numa for socket in report.topology.sockets] == [0, 1]
    report = build(outputs.topo().replace("SYS", "NV18"))
    assert report.topology.classes[0][2] == "nvlink"
    assert report.topology.nvlink[0] == [0, 0, 18, 18]


def test_text_and_xml_say_the_same() -> None:
    (of_text,) = smi_query.find(outputs.smi_text())
    (of_xml,) = smi_query.find(outputs.smi_xml())
    assert of_text == of_xml
    gpu = of_text.gpus[0]
    assert (gpu.gen_now, gpu.gen_gpu_max, gpu.gen_host_max, gpu.width_now, gpu.replays) == (1, 5, None, 16, 7)
    assert (gpu.bar1_total, gpu.memory_total, gpu.ecc_uncorrected) == (131072 << 20, 97887 << 20, 0)


def test_xml_with_entities_is_not_expanded() -> None:
    bomb = outputs.smi_xml().replace("NVIDIA Sample", "&lol;")
    assert smi_query.find_xml('<!DOCTYPE x [<!ENTITY lol "lol">]>' + bomb) == []


def test_csv_below_its_own_command_is_read_once() -> None:
    (log,) = smi_query.find(outputs.smi_csv())
    assert [(gpu.index, gpu.bus_id) for gpu in log.gpus] == list(enumerate(outputs.GPUS))
    assert log.gpus[0].performance_state is None
    assert log.driver_version == "595.58.03"


def test_topo_with_nics_and_escapes() -> None:
    (found,) = smi_topo.find(outputs.topo(nic=True))
    assert isinstance(found, TopoMatrix)
    assert found.matrix[0] == ["X", "PIX", "SYS", "SYS"]
    assert (found.cpus[3], found.numa) == ("8-15", [0, 0, 1, 1])
    assert found.nics == {"NIC0": ["PHB", "PHB", "SYS", "SYS"]}


def test_peer_status_and_what_was_asked() -> None:
    found = smi_topo.find(outputs.p2p("w", bad=(1, 3)) + outputs.p2p("a"))
    assert [getattr(each, "kind", None) for each in found] == ["write", "atomics"]
    assert found[0].matrix[1] == ["OK", "X", "OK", "CNS"]
    (unasked,) = smi_topo.find(outputs.p2p("r").partition("\n")[2])
    assert getattr(unasked, "kind", None) == ""


@pytest.mark.parametrize(
    ("acs", "expected"), [(outputs.HARMLESS, []), (outputs.REDIRECTING, ["acs-on"])], ids=["harmless", "redirecting"]
)
def test_acs_counts_where_it_redirects(acs: str, expected: list[str]) -> None:
    report = build(outputs.lspci(acs))
    assert [finding.code for finding in report.findings] == expected
    if expected:
        assert report.findings[0].measured == 6
        assert "a0:01.0" in (report.findings[0].where or "")


def test_acs_is_not_known_to_a_user_who_is_not_root() -> None:
    assert lspci.find(outputs.lspci(root=False)) == []
    (seen,) = lspci.find(outputs.lspci())
    upstream = next(device for device in seen.devices if device.port == "upstream")
    assert (upstream.acs_ctl, upstream.errors) == (None, ["CESta:BadTLP"])


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("amd_iommu=off iommu=off", "off"),
        ("intel_iommu=off", "off"),
        ("amd_iommu=on iommu=pt", "pt"),
        ("intel_iommu=on,sm_on iommu.passthrough=1", "pt"),
        ("intel_iommu=on", "translated"),
        ("iommu.passthrough=0", "translated"),
        ("quiet", "unknown"),
    ],
)
def test_iommu_by_the_command_line(words: str, mode: str) -> None:
    (found,) = host.find_cmdline(outputs.CMDLINE.format(words))
    assert machine.iommu(found) == mode
    assert codes(outputs.CMDLINE.format(words)) == (["iommu-translated"] if mode == "translated" else [])


def test_what_else_is_in_the_way() -> None:
    assert codes(outputs.lspci(width=8)) == ["link-width"]
    assert codes(outputs.smi_text(bar1="256 MiB")) == ["bar1-small"]
    assert codes(outputs.smi_text(recovery="Drain and Reset")) == ["recovery-action"]
    assert codes(outputs.smi_text(ecc="3")) == ["ecc-uncorrected"]
    assert codes(outputs.DRIVER.format(510)) == ["uvm-node-stale"]
    assert codes(*EVERYTHING.values()) == []


def test_numa_cpus_and_the_driver() -> None:
    (numa,) = host.find_numa(outputs.NUMACTL)
    assert (numa.cpus[1], numa.memory[0], numa.distances) == (list(range(8, 16)), 1000 << 20, [[10, 32], [32, 10]])
    (cpus,) = host.find_cpus(outputs.LSCPU)
    assert (cpus.sockets, cpus.count, cpus.offline, cpus.numa[1]) == (2, 16, [15], list(range(8, 15)))
    found = list(host.find_driver(outputs.DRIVER.format(511)))
    assert next(each.majors for each in found if isinstance(each, Majors))["nvidia-uvm"] == 511
    assert next(each.nodes for each in found if isinstance(each, Nodes))["/dev/nvidia-uvm"] == (511, 0, "crw-rw-rw-")
    assert next(each.values for each in found if isinstance(each, Params))["RegistryDwords"] == "ForceP2P=0x11"


def test_nvbandwidth_is_turned_so_that_the_row_sends() -> None:
    rows = [["N/A", "10"], ["20", "N/A"]]
    (written,) = bandwidth.find(outputs.nvbandwidth("w", "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)", rows))
    (read,) = bandwidth.find(outputs.nvbandwidth("r", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)", rows))
    assert written.figures[0].matrix == [[None, 20.0], [10.0, None]]
    assert read.figures[0].matrix == [[None, 10.0], [20.0, None]]
    (late,) = bandwidth.find(outputs.nvbandwidth("l", "Latency SM GPU(row) <-> GPU(column) (ns)", [["N/A", "826.5"]]))
    assert (late.figures[0].unit, late.figures[0].matrix, late.figures[0].more_is_better) == (
        "us",
        [[None, 0.8265]],
        False,
    )
    (both,) = bandwidth.find(outputs.nvbandwidth("b", "GPU(row) <-> GPU(column) Total bandwidth (GB/s)", rows * 3))
    assert [figures.key for figures in both.figures] == ["b/0", "b/1", "b/2"]


def test_p2p_test_of_the_samples() -> None:
    (found,) = bandwidth.find(outputs.P2P_TEST)
    by_title = {figures.title: figures for figures in found.figures}
    writes = by_title["Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"]
    reads = by_title["Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)"]
    latency = by_title["P2P=Enabled Latency (P2P Writes) Matrix (us)"]
    assert writes.matrix == [[None, 56.57], [50.97, None]]
    assert reads.matrix == [[None, 42.0], [41.0, None]]
    assert (latency.matrix, latency.more_is_better) == ([[None, 0.45], [0.44, None]], False)
    assert found.gpus == ["NVIDIA Sample (0000:11:00.0)", "NVIDIA Sample (0000:a1:00.0)"]


@pytest.mark.parametrize(
    ("words", "bus"),
    [
        ("00000000:06:00.0", "0000:06:00.0"),
        ("F4:00.0", "0000:f4:00.0"),
        ("00000000:00:06", "0000:00:06.0"),
        ("N/A", ""),
    ],
)
def test_bus_ids_of_every_form(words: str, bus: str) -> None:
    assert text.bus_id(words) == bus


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_no_cut_and_no_scramble_raises(name: str) -> None:
    whole = EVERYTHING[name]
    dice = random.Random(name)
    for _ in range(20):
        end = dice.randrange(len(whole))
        lines = whole[:end].splitlines()
        dice.shuffle(lines)
        for broken in (whole[:end], whole[end:], "\n".join(lines), whole.replace(whole[end], "\0")):
            machine.build(foreign.find(broken))


def saved(folder: Path) -> Path:
    folder.mkdir()
    for name, words in EVERYTHING.items():
        (folder / name).write_text(words)
    return folder


def test_the_command_shows_tree_findings_and_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "one")
    (folder / "notes.txt").write_text("nothing that a tool said\n")
    (folder / "lspci.txt").write_text(outputs.lspci(outputs.REDIRECTING))
    assert main(["topology", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "notes.txt: not recognised" in out
    for words in (
        "switch 91:00.0",
        "/dev/nvidia2",
        "IOMMU    pt by",
        "redirects peer traffic on 6 of 6",
        "acs-on",
        "PIX",
        "50.97"[:4],
    ):
        assert words in out


def test_each_directory_is_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "one")
    saved(tmp_path / "two")
    assert main(["topology", "--json", str(tmp_path)]) == 0
    machines = json.loads(capsys.readouterr().out)["result"]["machines"]
    assert [(Path(each["place"]).name, len(each["gpus"])) for each in machines] == [("one", 4), ("two", 4)]
    files = [str(tmp_path / "one" / name) for name in ("topo.txt", "q.txt")]
    assert main(["topology", "--json", *files]) == 0
    (together,) = json.loads(capsys.readouterr().out)["result"]["machines"]
    assert [len(file["tools"]) for file in together["files"]] == [1, 1]


def test_nothing_known_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("hello")
    assert main(["topology", str(tmp_path)]) == 2
    assert "no output of a known tool" in capsys.readouterr().err
    assert main(["topology", str(tmp_path / "nowhere")]) == 2


SHARED = Path(__file__).parents[4] / "shared" / "samples"


@pytest.mark.skipif(not SHARED.is_dir(), reason="real outputs are not here; the fixtures above have their form")
def test_real_outputs() -> None:
    """What real machines printed, where it is at hand."""
    found = {each.file.relative_to(SHARED).as_posix(): each for one in foreign.read([SHARED]) for each in one.files}
    mine = {
        name: each for name, each in found.items() if not name.startswith("sglang") and not name.endswith("README.md")
    }
    assert mine
    assert [name for name, each in mine.items() if not each.results] == []
    eight = machine.build(r for name, each in mine.items() if name.startswith("rtx-pro-6000-x8/") for r in each.results)
    assert switches(eight) == [
        (0, "0000:00:01.1", "0000:01:00.0", [0, 1]),
        (0, "0000:70:01.1", "0000:71:00.0", [2, 3]),
        (1, "0000:80:01.1", "0000:81:00.0", [4, 5]),
        (1, "0000:f0:01.1", "0000:f1:00.0", [6, 7]),
    ]
    assert [gpu.minor for gpu in eight.gpus] == [2, 3, 0, 1, 6, 7, 4, 5]
    assert [finding.code for finding in eight.findings] == []
    writes = mine["nvbandwidth-h200-x2/device_to_device_memcpy_write_ce.json"].results[0]
    assert writes.figures[0].matrix == [[None, 396.178], [396.069, None]]
