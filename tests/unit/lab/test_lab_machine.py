# SPDX-License-Identifier: Apache-2.0
"""What a host of the laboratory says of itself, and how faults and restarts change it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rwlab import cli, faults, files, gpus, kernel, lab, machine, nodes, record, shown
from rwlab.errors import LabError
from rwlab.nodes import Node
from rwlab.paths import Cache, HostPaths, Instance

DEVICES = "Character devices:\n  1 mem\n203 cpu/cpuid\n\nBlock devices:\n  7 loop\n"


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    found = HostPaths(tmp_path / "pve1")
    kernel.prepare(found, "pve1")
    return found


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance that is down, with its host's stand-ins."""
    monkeypatch.setenv("RACKWELL_LAB_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(faults.hosts, "find", lambda *_: None)
    found = Instance.of("unit")
    record.save(found, record.Record(subnet=7, hosts=[record.Host("pve1", 11, "pve-0")]))
    kernel.prepare(found.host("pve1"), "pve1")
    return found


def change(instance: Instance, target: str, *changes: str, container: str | None = None) -> dict[str, Any]:
    """`set`, and the GPU state file after it."""
    lab_ = record.load(instance)
    assert lab_ is not None
    faults.change(instance, lab_, lab_.host("pve1"), target, list(changes), container)
    state: dict[str, Any] = files.read_json(kernel.state_file(instance.host("pve1")))
    return state


def file_of(instance: Instance, name: str) -> str:
    return (instance.host("pve1").kernel / name).read_text()


class TestMachine:
    def test_drivers_devices_stand_among_the_machines_own(self) -> None:
        loaded = dict.fromkeys(gpus.MODULES, True)
        text = machine.devices(DEVICES, gpus.majors({}, {511}, loaded))
        assert text == (
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n203 cpu/cpuid\n"
            "510 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
        )

    def test_a_module_that_is_not_loaded_has_no_device(self) -> None:
        loaded = {"nvidia": True, "nvidia_uvm": False, "nvidia_modeset": False}
        assert [name for _, name in gpus.majors({}, set(), loaded)] == ["nvidia", "nvidiactl"]

    @pytest.mark.parametrize(
        ("mode", "option", "kind"),
        [("off", "amd_iommu=off iommu=off", None), ("pt", "iommu=pt", "identity"), ("translated", None, "DMA-FQ")],
    )
    def test_iommu(self, mode: str, option: str | None, kind: str | None) -> None:
        state = gpus.healthy("pve1") | {"iommu": mode}
        line = machine.cmdline(state, kernel.defaults()["kernel"])
        assert option in line if option else "iommu" not in line
        kinds = {entry for name, entry in machine.iommu_groups(state).items() if name.endswith("/type")}
        assert kinds == ({shown.text(kind)} if kind else set())

    @pytest.mark.parametrize(
        ("cpus", "lists", "maps"),
        [
            (2, ["0", "1"], ["00000001", "00000002"]),
            (1, ["", "0"], ["00000000", "00000001"]),
            (80, ["0-39", "40-79"], ["000000ff,ffffffff", "0000ffff,ffffff00,00000000"]),
        ],
    )
    def test_sockets_share_the_machines_processors(
        self, tmp_path: Path, cpus: int, lists: list[str], maps: list[str]
    ) -> None:
        shown.show(tmp_path, machine.numa(gpus.healthy("pve1"), cpus, 1000))
        nodes_ = sorted(tmp_path.glob("node*"))
        assert [(node / "cpulist").read_text().strip() for node in nodes_] == lists
        assert [(node / "cpumap").read_text().strip() for node in nodes_] == maps
        assert [(node / "distance").read_text() for node in nodes_] == ["10 32\n", "32 10\n"]
        assert (tmp_path / "online").read_text() == "0-1\n"
        assert len(list(tmp_path.glob("node*/cpu[0-9]*"))) == cpus

    def test_classes_of_the_machine_stay_reachable(self) -> None:
        settings = kernel.defaults()["kernel"]
        wanted = machine.classes(gpus.healthy("pve1"), settings, ["dmi", "iommu", "net"])
        assert wanted["net"] == shown.Link("/dev/.lxc/sys/class/net")
        assert "dmi" not in wanted
        assert wanted["dmi/id/bios_version"] == shown.text(settings["dmi"]["bios_version"])

    def test_what_is_mounted_as_a_file_stays_the_same_file(self, paths: HostPaths) -> None:
        before = {name: (paths.kernel / name).stat().st_ino for name in ("devices", "cmdline", "osrelease")}
        settings = kernel.defaults()
        settings["kernel"] |= {"release": "6.8", "cmdline": "a=b"}
        kernel.change(paths, settings, gpus.healthy("pve1") | {"uvm_major": 240})
        assert {name: (paths.kernel / name).stat().st_ino for name in before} == before
        assert (paths.kernel / "osrelease").read_text() == "6.8\n"
        assert (paths.kernel / "cmdline").read_text().endswith("iommu=off a=b\n")
        assert "240 nvidia-uvm\n" in (paths.kernel / "devices").read_text()


class TestSet:
    def test_kernel(self, instance: Instance) -> None:
        change(instance, "kernel", "iommu=translated", "release=6.8.12-1-pve", "dmi.bios_version=1.1", "dmesg=Xid 79")
        change(instance, "kernel", 'params.RegistryDwords=""', "version=580.1.2", "loaded.nvidia_uvm=false")
        assert "iommu=off" not in file_of(instance, "cmdline")
        assert file_of(instance, "osrelease") == "6.8.12-1-pve\n"
        assert file_of(instance, "sys-class/dmi/id/bios_version") == "1.1\n"
        assert file_of(instance, "proc-driver/nvidia/rackwell-lab-dmesg").splitlines()[-1].endswith("] Xid 79")
        assert "RegistryDwords: \n" in file_of(instance, "proc-driver/nvidia/params")
        assert "nvidia-uvm" not in file_of(instance, "devices")
        change(instance, "kernel", "iommu=", "release=", "dmi.bios_version=", "dmesg=", "params.RegistryDwords=")
        assert "iommu=off" in file_of(instance, "cmdline")
        assert file_of(instance, "osrelease") == f"{machine.RELEASE}\n"
        assert "ForceP2P" in file_of(instance, "proc-driver/nvidia/params")

    @pytest.mark.parametrize(
        ("target", "text"),
        [
            ("kernel", "dmi.nothing=1"),
            ("kernel", "loaded.nouveau=true"),
            ("kernel", "iommu=half"),
            ("kernel", "params.=1"),
            ("gpu", "gpus.0.bus_id=11:00.0"),
            ("gpu", "gpus.0.uuid="),
            ("node", "nvidia9=false"),
            ("node", "nvidia3=gone"),
            ("node", 'nvidia3={"mode": "rw"}'),
            ("node", 'nvidia3={"owner": 1}'),
        ],
    )
    def test_what_cannot_be_changes_nothing(self, instance: Instance, target: str, text: str) -> None:
        before = {path: path.read_bytes() for path in instance.host("pve1").root.rglob("*") if path.is_file()}
        with pytest.raises(LabError) as caught:
            change(instance, target, text)
        assert caught.value.exit_code == 2
        after = {path: path.read_bytes() for path in instance.host("pve1").root.rglob("*") if path.is_file()}
        assert after == before

    def test_minors_stay_a_permutation(self, instance: Instance) -> None:
        before = [gpu["minor"] for gpu in gpus.healthy("pve1")["gpus"]]
        other = before[5]
        state = change(instance, "gpu", f"gpus.0.minor={other}")
        minors = [gpu["minor"] for gpu in state["gpus"]]
        assert (minors[0], minors[5]) == (other, before[0])
        assert sorted(minors) == sorted(before)
        bus_id = state["gpus"][5]["bus_id"]
        assert f"Device Minor: \t {before[0]}\n" in file_of(instance, f"proc-driver/nvidia/gpus/{bus_id}/information")

    def test_another_machine_has_other_gpus_in_the_same_slots(self, instance: Instance) -> None:
        own = gpus.healthy("pve1")["gpus"]
        swapped = change(instance, "kernel", "machine=other")["gpus"]
        assert not {gpu["uuid"] for gpu in own} & {gpu["uuid"] for gpu in swapped}
        assert [gpu["bus_id"] for gpu in own] == [gpu["bus_id"] for gpu in swapped]
        assert change(instance, "kernel", "machine=")["gpus"] == own

    def test_nodes(self, instance: Instance) -> None:
        change(instance, "node", "nvidia3=false", "/dev/nvidia-uvm=file", 'nvidiactl={"mode": "0660"}')
        found = kernel.wanted_nodes(instance.host("pve1"))
        assert "nvidia3" not in found
        assert found["nvidia-uvm"].plain
        assert found["nvidiactl"] == Node(195, 255, 0o660)
        assert files.read_json(instance.host("pve1").kernel / "proc-driver/nvidia" / gpus.NODES_FILE) == {
            "kept_away": ["nvidia3"]
        }
        change(instance, "node", "nvidia3=true", "nvidia-uvm=", "nvidiactl=true")
        assert kernel.settings(instance.host("pve1"))["nodes"] == {}

    def test_a_node_of_a_container_is_not_the_hosts(self, instance: Instance) -> None:
        change(instance, "node", "nvidia-uvm=file", container="glm5-01")
        assert not kernel.wanted_nodes(instance.host("pve1"))["nvidia-uvm"].plain
        assert kernel.settings(instance.host("pve1"))["containers"] == {"201": {"nvidia-uvm": "file"}}
        with pytest.raises(LabError) as caught:
            change(instance, "node", "nvidia-uvm=file", container="glm5-09")
        assert caught.value.code == "container-unknown"
        with pytest.raises(LabError):
            change(instance, "kernel", "hmm=true", container="glm5-01")

    def test_a_host_whose_unit_makes_the_nodes_starts_without(self, instance: Instance) -> None:
        change(instance, "node", "at_boot=false")
        assert kernel.nodes_at_boot(instance.host("pve1")) == {}
        assert "mknod" not in (instance.host("pve1").root / "make-nodes").read_text()
        change(instance, "node", "at_boot=true")
        assert "mknod" in (instance.host("pve1").root / "make-nodes").read_text()

    def test_reset_takes_all_of_it_back(self, instance: Instance) -> None:
        kept = {"devices", "cmdline", "osrelease"}
        before = {name: file_of(instance, name) for name in kept}
        change(instance, "kernel", "iommu=pt", "release=1", "dmi.board_name=x", "machine=other")
        change(instance, "gpu", "uvm_major=240", "acs.on=true")
        change(instance, "node", "nvidia3=false", "at_boot=false")
        lab_ = record.load(instance)
        assert lab_ is not None
        faults.reset(instance, lab_, lab_.host("pve1"))
        assert {name: file_of(instance, name) for name in kept} == before
        assert kernel.settings(instance.host("pve1")) == kernel.defaults()
        assert files.read_json(kernel.state_file(instance.host("pve1"))) == gpus.healthy("pve1")


class TestBoot:
    def test_a_gpu_that_fell_off_is_not_found_again(self, paths: HostPaths) -> None:
        state = gpus.healthy("pve1")
        lost = next(gpu for gpu in state["gpus"] if gpu["minor"] == 3)
        lost["fell_off"] = True
        kernel.change(paths, kernel.defaults(), state)
        assert (paths.kernel / "sys-bus-pci/devices" / lost["bus_id"]).exists()
        kernel.boot(paths)
        assert not (paths.kernel / "sys-bus-pci/devices" / lost["bus_id"]).is_symlink()
        assert not (paths.kernel / "proc-driver/nvidia/gpus" / lost["bus_id"]).exists()
        assert set(kernel.wanted_nodes(paths)) >= {f"nvidia{n}" for n in range(7)}
        assert "nvidia7" not in kernel.wanted_nodes(paths)
        after = {gpu["uuid"]: gpu["minor"] for gpu in files.read_json(kernel.state_file(paths))["gpus"]}
        # the others keep their order
        assert all(after[gpu["uuid"]] == gpu["minor"] - (gpu["minor"] > 3) for gpu in state["gpus"] if gpu is not lost)
        assert after[lost["uuid"]] == 7

    def test_a_second_start_changes_nothing_and_a_mended_gpu_comes_back(self, paths: HostPaths) -> None:
        state = gpus.healthy("pve1")
        state["gpus"][0]["fell_off"] = state["gpus"][6]["fell_off"] = True
        kernel.change(paths, kernel.defaults(), state)
        kernel.boot(paths)
        once = kernel.state_file(paths).read_text()
        kernel.boot(paths)
        assert kernel.state_file(paths).read_text() == once
        mended = files.read_json(kernel.state_file(paths))
        for gpu in mended["gpus"]:
            gpu.pop("fell_off", None)
        kernel.change(paths, kernel.settings(paths), mended)
        assert "nvidia7" not in kernel.wanted_nodes(paths)  # not without a start
        kernel.boot(paths)
        assert files.read_json(kernel.state_file(paths)) == gpus.healthy("pve1")
        assert "nvidia7" in kernel.wanted_nodes(paths)


class TestMending:
    """The shell that mends a running host's /dev, in a directory and with plain files for what needs no mknod."""

    @pytest.fixture
    def dev(self, tmp_path: Path) -> Path:
        (tmp_path / "dev").mkdir()
        return tmp_path / "dev"

    def run(self, dev: Path, wanted: dict[str, Node], *, only_existing: bool = False, named: str = "") -> None:
        script = nodes.mending(wanted, only_existing=only_existing, named={named} if named else set())
        files_only = script.replace("cd /dev", f"cd {dev}")
        faults.run(["sh", "-euc", files_only, "sh", " ".join(wanted)])

    def test_others_go_and_a_missing_one_is_made(self, dev: Path) -> None:
        (dev / "nvidia5").touch()
        (dev / "null").touch()
        self.run(dev, {"nvidia0": Node(195, 0, 0o640, plain=True)})
        assert sorted(path.name for path in dev.iterdir()) == ["null", "nvidia0"]
        assert (dev / "nvidia0").stat().st_mode & 0o777 == 0o640

    def test_what_the_hosts_unit_did_not_make_stays_away_unless_it_is_named(self, dev: Path) -> None:
        wanted = {"nvidia0": Node(195, 0, plain=True), "nvidia1": Node(195, 1, plain=True)}
        self.run(dev, wanted, only_existing=True, named="nvidia1")
        assert [path.name for path in dev.iterdir()] == ["nvidia1"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
    def test_a_node_of_another_number_or_mode_is_made_anew(self, dev: Path) -> None:
        self.run(dev, {"nvidia0": Node(1, 5, 0o660)})
        self.run(dev, {"nvidia0": Node(1, 3)})
        found = (dev / "nvidia0").stat()
        assert (os.major(found.st_rdev), os.minor(found.st_rdev), found.st_mode & 0o777) == (1, 3, 0o666)
        self.run(dev, {"nvidia0": Node(1, 3, plain=True)})
        assert (dev / "nvidia0").is_file()


def test_nccl_must_be_a_library_and_is_kept(instance: Instance, tmp_path: Path) -> None:
    given = tmp_path / "libnccl.so.2"
    for broken in (given, tmp_path):
        with pytest.raises(LabError) as caught:
            lab._nccl(instance, broken)
        assert caught.value.code == "nccl-invalid"
    assert lab._nccl(instance, None) is None
    given.write_bytes(b"\x7fELF and so on")
    kept = lab._nccl(instance, given)
    given.unlink()
    assert kept == lab._nccl(instance, None)
    assert kept is not None
    assert kept.read_bytes() == b"\x7fELF and so on"


def test_reboot_of_what_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RACKWELL_LAB_STATE", str(tmp_path))
    monkeypatch.setattr(lab, "require_root", lambda: None)
    assert cli.main(["reboot", "--name", "nowhere", "pve1"]) == 2
    assert "there is no laboratory" in capsys.readouterr().err


class TestHostUp:
    """What a host is started with, by whether its GPUs are real."""

    @pytest.fixture
    def started(self, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        found: dict[str, Any] = {}
        layer = tmp_path / "cache/layer/pve-0"
        layer.mkdir(parents=True)

        def start(*_: object, mounts: list[str], nodes: dict[str, Node]) -> None:
            found.update(mounts=mounts, nodes=nodes)

        def write_tree(*_: object, extra: dict[str, Any], **__: object) -> str:
            found["programs"] = {Path(name).name for name in extra if name.startswith("usr/bin/")}
            return "digest"

        monkeypatch.setattr(lab.hosts, "start", start)
        monkeypatch.setattr(lab.hosts, "write_tree", write_tree)
        monkeypatch.setattr(lab.standins, "pve_tools", lambda _: {})
        monkeypatch.setattr(lab.access, "public_key", lambda _: "")
        monkeypatch.setattr(lab.real, "mounts", lambda: ["libcuda usr/lib/libcuda.so.1 none bind,ro 0 0"])
        monkeypatch.setattr(lab.real, "nodes", lambda: {"nvidiactl": Node(195, 255)})
        return found

    def up(self, instance: Instance, tmp_path: Path, gpus_are: str) -> None:
        lab_ = record.load(instance)
        assert lab_ is not None
        lab_.gpus, lab_.suites = gpus_are, []
        lab._host_up(instance, lab_, lab_.host("pve1"), Cache(tmp_path / "cache"))

    def test_real_gpus_show_the_kernels_own_everywhere(
        self, instance: Instance, tmp_path: Path, started: dict[str, Any]
    ) -> None:
        self.up(instance, tmp_path, "real")
        assert started["mounts"] == ["libcuda usr/lib/libcuda.so.1 none bind,ro 0 0"]
        assert started["nodes"] == {"nvidiactl": Node(195, 255)}
        assert started["programs"] == {"nvidia-modprobe"}

    def test_stand_ins_take_the_place_of_all_of_it(
        self, instance: Instance, tmp_path: Path, started: dict[str, Any]
    ) -> None:
        change(instance, "gpu", "gpus.0.fell_off=true")
        self.up(instance, tmp_path, "stand-in")
        targets = {entry.split()[1] for entry in started["mounts"]}
        assert targets > {
            "proc/driver",
            "proc/devices",
            "proc/cmdline",
            "sys/module",
            "sys/bus/pci",
            "sys/devices/system/node",
        }
        assert all(Path(entry.split()[0]).exists() for entry in started["mounts"])
        # a start of the host is a start of its kernel
        assert "nvidia7" not in started["nodes"]
        assert started["programs"] == {"nvidia-modprobe", "dmesg"}


@pytest.mark.parametrize(("sysfs", "board"), [(True, True), (True, False), (False, False)])
def test_classes_are_replaced_only_where_they_are_known_and_have_no_board(
    paths: HostPaths, monkeypatch: pytest.MonkeyPatch, sysfs: bool, board: bool
) -> None:
    real_is_dir = Path.is_dir
    told = {Path("/sys/class"): sysfs, Path("/sys/devices/virtual/dmi/id"): board}
    monkeypatch.setattr(Path, "is_dir", lambda path, **kw: told[path] if path in told else real_is_dir(path, **kw))
    targets = {entry.split()[1] for entry in kernel.mounts(paths)}
    replaced = sysfs and not board
    assert ("sys/class" in targets) == replaced
    assert ("sys/devices/virtual/dmi/id" in targets) == (not replaced)
