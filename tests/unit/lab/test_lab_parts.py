# SPDX-License-Identifier: Apache-2.0
"""The laboratory's logic that needs no container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rwlab import access, faults, files, gpus, kernel, mirror, net, proc, real, record, site
from rwlab.errors import LabError
from rwlab.nodes import Node
from rwlab.paths import Cache, HostPaths, Instance

# apt's targets: site, origin, label, codename, component
THIRD_PARTY = "https://tools.example.invalid|Example|Example|stable|main"
SECURITY = "http://mirror.example.invalid/debian-security|Debian|Debian-Security|bookworm-security|main"
DEBIAN = "http://mirror.example.invalid/debian|Debian|Debian|bookworm|main"


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    monkeypatch.setenv("RACKWELL_LAB_STATE", str(tmp_path / "state"))
    return Instance.of("unit")


def a_record(*suites: str) -> record.Record:
    hosts = [record.Host(f"pve{n}", 10 + n, "pve-0") for n in range(1, len(suites) + 1)]
    return record.Record(id="0a1b2c3d", subnet=7, suites=list(suites), hosts=hosts)


class TestMirror:
    def test_debian_itself_among_other_sources(self) -> None:
        found = mirror.pick(f"{THIRD_PARTY}\n{SECURITY}\n{DEBIAN}", "bookworm")
        assert found == "http://mirror.example.invalid/debian"

    def test_without_fetched_lists_the_place_tells(self) -> None:
        bare = ["http://a.example.invalid/tools|||bookworm|main", "http://b.example.invalid/debian/|||bookworm|main"]
        assert mirror.pick("\n".join(bare), "bookworm") == "http://b.example.invalid/debian/"

    def test_another_distribution_has_none(self) -> None:
        assert mirror.pick("http://a.example.invalid/ubuntu|Ubuntu|Ubuntu|noble|main", "noble") is None


class TestNetwork:
    def test_first_is_taken_when_free(self) -> None:
        assert net.free_subnet(9, ["10.0.0.0/8", "192.0.2.1/24", "10.213.10.0/24"]) == 9

    def test_overlap_of_any_width_counts(self) -> None:
        assert net.free_subnet(8, ["10.213.8.77/32", "10.213.9.0/25", "10.213.10.0/23"]) == 12

    def test_goes_round(self) -> None:
        assert net.free_subnet(254, ["10.213.254.0/24"]) == 1

    def test_none_left(self) -> None:
        assert net.free_subnet(1, ["10.213.0.0/16"]) is None

    def test_names_fit_the_kernel(self) -> None:
        # 15 characters at most
        assert len(a_record("bookworm").bridge) <= 15


class TestRecord:
    def test_comes_back_as_it_was(self, instance: Instance) -> None:
        before = a_record("bookworm", "trixie")
        record.save(instance, before)
        assert record.load(instance) == before

    def test_absent(self, instance: Instance) -> None:
        assert record.load(instance) is None

    @pytest.mark.parametrize(
        "text", ["{", '{"version": 99, "hosts": []}', '{"version": 1, "hosts": [{"no": 1}]}', "[]"]
    )
    def test_damaged_is_told(self, instance: Instance, text: str) -> None:
        files.write(instance.record, text)
        with pytest.raises(LabError) as caught:
            record.load(instance)
        assert caught.value.code == "record-damaged"
        assert "--purge" in caught.value.fix

    @pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-x", "a" * 21])
    def test_names_that_cannot_be(self, name: str) -> None:
        with pytest.raises(LabError) as caught:
            Instance.of(name)
        assert caught.value.exit_code == 2


class TestFiles:
    def test_same_content_keeps_its_time(self, tmp_path: Path) -> None:
        path = tmp_path / "a/b"
        assert files.write(path, "x", 0o600)
        os.utime(path, (1, 1))
        assert not files.write(path, "x", 0o600)
        assert path.stat().st_mtime == 1
        assert files.write(path, "x", 0o644)
        assert files.write(path, "y")
        assert path.read_text() == "y"
        assert [entry.name for entry in path.parent.iterdir()] == ["b"]

    def test_digest_sees_content_names_modes_and_links(self, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        files.write(tree / "a", "1")
        seen = [files.digest(tree)]
        for change in (
            lambda: files.write(tree / "a", "2"),
            lambda: (tree / "a").chmod(0o755),
            lambda: (tree / "a").rename(tree / "b"),
            lambda: files.link(tree / "c", "b"),
            lambda: files.link(tree / "c", "elsewhere"),
        ):
            change()
            seen.append(files.digest(tree))
        assert len(set(seen)) == len(seen)

    @pytest.fixture
    def blocked(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Set once somebody waits for a lock."""
        event = threading.Event()
        monkeypatch.setattr(files, "say", lambda *_: event.set())
        return event

    def test_lock_keeps_the_second_out(self, tmp_path: Path, blocked: threading.Event) -> None:
        order: list[str] = []

        def second() -> None:
            with files.locked(tmp_path / "lock", "second"):
                order.append("second")

        thread = threading.Thread(target=second)
        with files.locked(tmp_path / "lock", "first"):
            thread.start()
            assert blocked.wait(10)
            order.append("first")
        thread.join(timeout=10)
        assert order == ["first", "second"]

    def test_a_removed_lock_file_is_no_lock(self, tmp_path: Path, blocked: threading.Event) -> None:
        """A purge removes the file under the lock: whoever waited for it must take the new one."""
        path, holds, go = tmp_path / "lock", threading.Event(), threading.Event()

        def waiter() -> None:
            with files.locked(path, "waiter"):
                holds.set()
                go.wait(10)

        thread = threading.Thread(target=waiter)
        with files.locked(path, "purge"):
            thread.start()
            assert blocked.wait(10)
            path.unlink()
        assert holds.wait(10)
        probe = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        command = [sys.executable, "-c", probe, str(path)]
        assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode
        go.set()
        thread.join(timeout=10)


class TestProcesses:
    def test_start_tells_processes_apart(self) -> None:
        assert proc.start_time(os.getpid()) == proc.start_time(os.getpid())
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert proc.start_time(child.pid)
        child.communicate(b"\n")
        assert proc.start_time(child.pid) is None

    def test_a_zombie_has_ended(self) -> None:
        with subprocess.Popen(["true"]) as child:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert proc.start_time(child.pid) is None

    def test_failure_tells_the_end_of_the_output(self) -> None:
        with pytest.raises(LabError) as caught:
            proc.run(["sh", "-c", "echo the reason >&2; exit 3"])
        assert "ended with 3" in caught.value.what
        assert "the reason" in caught.value.why

    def test_long_command_keeps_its_log(self, tmp_path: Path) -> None:
        log = tmp_path / "logs/a.log"
        with pytest.raises(LabError) as caught:
            proc.run_long(["sh", "-c", "echo one; echo two >&2; exit 1"], log, "here", "doing")
        assert log.read_text() == "one\ntwo\n"
        assert caught.value.where == str(log)
        assert "two" in caught.value.why


class TestKernelStandIn:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> HostPaths:
        paths = HostPaths(tmp_path / "pve1")
        kernel.prepare(paths, "pve1")
        return paths

    def test_agrees_with_the_state_file(self, paths: HostPaths) -> None:
        state = json.loads(kernel.state_file(paths).read_text())
        driver = paths.kernel / "proc-driver/nvidia"
        assert real.version_in((driver / "version").read_text()) == state["driver_version"] == gpus.DRIVER_VERSION
        assert (paths.kernel / "sys-module/nvidia/version").read_text().strip() == gpus.DRIVER_VERSION
        assert (paths.kernel / "sys-module/nvidia_uvm/parameters/uvm_disable_hmm").read_text() == "Y\n"
        shown = {
            path.parent.name: dict(line.split(":", 1) for line in path.read_text().splitlines())
            for path in driver.glob("gpus/*/information")
        }
        assert len(shown) == 8
        for gpu in state["gpus"]:
            text = shown[gpu["bus_id"]]
            assert int(text["Device Minor"]) == gpu["minor"]
            assert text["GPU UUID"].strip() == gpu["uuid"]

    def test_minors_are_not_in_the_order_of_the_bus(self) -> None:
        minors = [gpu["minor"] for gpu in sorted(gpus.healthy("pve1")["gpus"], key=lambda gpu: str(gpu["bus_id"]))]
        assert sorted(minors) == list(range(8))
        assert minors != sorted(minors)

    def test_uuids_differ_between_hosts_and_stay(self) -> None:
        first, second = ({gpu["uuid"] for gpu in gpus.healthy(host)["gpus"]} for host in ("pve1", "pve2"))
        assert len(first | second) == 16
        assert second == {gpu["uuid"] for gpu in gpus.healthy("pve2")["gpus"]}

    def test_uvm_takes_a_major_that_is_nobodys(self) -> None:
        majors = gpus.character_majors("Character devices:\n  1 mem\n511 other\n510 x\n\nBlock devices:\n509 blk\n")
        assert majors == {1, 511, 510}
        nodes = gpus.nodes(gpus.healthy("pve1"), majors)
        assert nodes["nvidia-uvm"] == Node(509, 0)
        assert nodes["nvidia-uvm-tools"] == Node(509, 1)
        assert nodes["nvidiactl"] == Node(195, 255)
        assert {f"nvidia{n}" for n in range(8)} < set(nodes)

    def test_what_is_changed_stays_over_the_next_up(self, paths: HostPaths) -> None:
        state = gpus.healthy("pve1") | {"driver_version": "570.1.2"}
        settings = kernel.defaults()
        settings["kernel"] |= {"hmm": True, "loaded": {"nvidia": True, "nvidia_uvm": True, "nvidia_modeset": False}}
        kernel.change(paths, settings | {"nodes": {"nvidia3": False}}, state)
        kernel.prepare(paths, "pve1")
        modules = paths.kernel / "sys-module"
        assert (modules / "nvidia/version").read_text() == "570.1.2\n"
        assert (modules / "nvidia_uvm/parameters/uvm_disable_hmm").read_text() == "N\n"
        assert not (modules / "nvidia_modeset").exists()
        assert "nvidia3" not in kernel.nodes_at_boot(paths)
        assert "nvidia2" in kernel.nodes_at_boot(paths)

    def test_nodes_taken_away_under_an_earlier_version_stay_away(self, paths: HostPaths) -> None:
        files.write_json(paths.root / "kernel.json", {"kernel": {"hmm": True}, "missing": ["nvidia3"]})
        assert "nvidia3" not in kernel.wanted_nodes(paths)
        assert kernel.settings(paths)["kernel"]["hmm"]
        assert kernel.settings(paths)["kernel"]["release"]

    def test_unloaded_module_leaves_nothing_but_the_state(self, paths: HostPaths) -> None:
        settings = kernel.defaults()
        settings["kernel"]["loaded"] = dict.fromkeys(gpus.MODULES, False)
        kernel.change(paths, settings, gpus.healthy("pve1"))
        left = {path.name for path in (paths.kernel / "proc-driver/nvidia").iterdir()}
        assert left == {gpus.STATE_FILE, gpus.NODES_FILE, gpus.MESSAGES_FILE}
        assert "nvidia" not in (paths.kernel / "devices").read_text()
        assert list((paths.kernel / "sys-module").iterdir()) == []


class TestFaults:
    def test_places(self) -> None:
        document = {"gpus": [{"minor": 1}], "hang": None}
        faults.assign(document, "gpus.0.errors.cuInit", 100)
        faults.assign(document, "hang.call", "cuInit")
        faults.assign(document, "p2p.corrupt_pairs", [[0, 1]])
        assert document == {
            "gpus": [{"minor": 1, "errors": {"cuInit": 100}}],
            "hang": {"call": "cuInit"},
            "p2p": {"corrupt_pairs": [[0, 1]]},
        }
        faults.assign(document, "gpus.0", None, remove=True)
        assert document["gpus"] == []

    @pytest.mark.parametrize("place", ["gpus.1.minor", "gpus.1", "gpus.x", "gpus.0.minor.deep"])
    def test_places_that_cannot_be(self, place: str) -> None:
        with pytest.raises(LabError) as caught:
            faults.assign({"gpus": [{"minor": 1}]}, place, 0)
        assert caught.value.exit_code == 2

    def test_values(self) -> None:
        assert faults.parse("a.b=[1, true]") == ("a.b", [1, True], False)
        assert faults.parse("a=595.58.03") == ("a", "595.58.03", False)
        assert faults.parse("a=") == ("a", None, True)
        with pytest.raises(LabError):
            faults.parse("a")


class TestSite:
    def test_placeholders_only(self) -> None:
        text = 'x: @NAME@\ny: "{{ inventory_dir }}/a@b"\n'
        assert site.fill(text, {"NAME": "v"}, Path("t")) == 'x: v\ny: "{{ inventory_dir }}/a@b"\n'
        with pytest.raises(LabError):
            site.fill("@OTHER@", {"NAME": "v"}, Path("t"))

    def test_suites_are_dealt_out_to_hosts(self) -> None:
        found = site.declared(a_record("bookworm", "trixie"))
        assert [(c.name, c.host, c.vmid, c.octet, c.suite) for c in found] == [
            ("glm5-01", "pve1", 201, 21, "bookworm"),
            ("glm5-02", "pve2", 202, 22, "trixie"),
        ]

    def test_render_is_whole_and_repeatable(
        self, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(site.standins, "engine_wheel", lambda _cache: None)
        driver = tmp_path / "NVIDIA.run"
        driver.write_bytes(b"driver")
        cache = Cache(tmp_path / "cache")
        site.render(instance, a_record("bookworm", "trixie"), cache, driver)
        texts = {path: path.read_text() for path in instance.site.rglob("*.yml")}
        assert {path.name for path in texts} >= {"hosts.yml", "lab.yml", "lab-313.yml", "glm5-02.yml", "pve2.yml"}
        # other projects' files may have an @ of their own; the laboratory's placeholders are all filled
        assert not [path for path, text in texts.items() if site._PLACEHOLDER.search(text)]
        assert "10.213.7.22/24" in (instance.site / "host_vars/glm5-02.yml").read_text()

        for path in texts:
            os.utime(path, (1, 1))
        foreign = instance.site / ".rackwell/kept"
        files.write(foreign, "kept")
        site.render(instance, a_record("bookworm", "trixie"), cache, driver)
        assert {path.stat().st_mtime for path in texts} == {1}
        assert foreign.read_text() == "kept"

    def test_a_change_by_hand_is_kept_aside(
        self, instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(site.standins, "engine_wheel", lambda _cache: None)
        cache = Cache(tmp_path / "cache")
        site.render(instance, a_record("bookworm"), cache, None)
        profile = instance.site / "profiles/glm5-lab.yml"
        rendered = profile.read_text()
        profile.write_text("mine\n")
        site.render(instance, a_record("bookworm"), cache, None)
        assert profile.read_text() == rendered
        assert profile.with_name("glm5-lab.yml.changed").read_text() == "mine\n"

    def test_known_hosts_keeps_what_others_added(self, instance: Instance) -> None:
        lab = a_record("bookworm")
        files.write(instance.host("pve1").tree / "etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 NEW root@pve1\n")
        known = instance.site / "known_hosts"
        files.write(known, "10.213.7.11 ssh-ed25519 OLD\n10.213.7.21 ssh-ed25519 CONTAINER\n")
        access.know_hosts(instance, lab)
        assert set(known.read_text().splitlines()) == {
            "10.213.7.11 ssh-ed25519 NEW",
            "10.213.7.21 ssh-ed25519 CONTAINER",
        }
        access.forget(instance, "10.213.7.21")
        assert known.read_text() == "10.213.7.11 ssh-ed25519 NEW\n"


class TestRealDriver:
    @pytest.mark.parametrize(
        "text",
        [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.58.03  Tue Mar 3 00:00:00 UTC 2026\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build  (x@y)\n",
        ],
    )
    def test_version_of_both_flavours(self, text: str) -> None:
        assert real.version_in(text) == "595.58.03"

    def test_no_version(self) -> None:
        with pytest.raises(LabError):
            real.version_in("something else\n")

    def test_packed_installer_holds_the_machines_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library, tool = tmp_path / "libcuda.so.580.1.2", tmp_path / "nvidia-smi"
        library.write_bytes(b"\x7fELF library")
        tool.write_text("tool")
        monkeypatch.setattr(real, "version", lambda: "580.1.2")
        monkeypatch.setattr(real, "user_space", lambda: [library, tool])
        packed = real.driver(Cache(tmp_path / "cache"))
        assert packed.name == "NVIDIA-Linux-x86_64-580.1.2.run"
        subprocess.run(["sh", str(packed), "--check"], check=True, capture_output=True)
        unpacked = tmp_path / "unpacked"
        subprocess.run(["sh", str(packed), "-x", f"--target={unpacked}"], check=True, capture_output=True)
        assert (unpacked / library.name).read_bytes() == library.read_bytes()
        assert os.access(unpacked / "nvidia-smi", os.X_OK)
        assert "version=580.1.2" in (unpacked / "nvidia-installer").read_text()
