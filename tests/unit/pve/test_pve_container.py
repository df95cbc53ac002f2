# SPDX-License-Identifier: Apache-2.0
"""The whole of pve_container against the stand-in host: created, compared, changed, restarted, refused, set back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_cli
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError
from ansible_collections.rackwell.gpu.plugins.modules import pve_container, pve_host
from labpve.containers import Containers
from labpve.errors import PveError as PctError
from pverig import KEY, Module, converge, diff_lines, refusal

REPO = Path(__file__).resolve().parents[3]


def test_a_new_container_is_created_started_and_opened(host: Module) -> None:
    out = converge(host)
    conf = host.standin.conf(201)
    assert out.changed
    assert out.result["created"]
    assert out.result["exists"]
    assert out.result["systemd"] == "running"
    assert out.result["host_keys"] == ["ecdsa-sha2-nistp256 AAAAother", "ssh-ed25519 AAAAhost"]
    assert host.authorized == KEY + "\n"
    assert "dev0: /dev/null,mode=0666\n" in conf
    assert "tags: rackwell\n" in conf
    assert "onboot: 1\n" in conf
    assert 201 in host.standin.lxc.up
    assert out.diffs[0]["before"] == ""
    assert "dev1: /dev/zero,mode=0666\n" in out.diffs[0]["after"]


def test_a_second_run_changes_nothing(host: Module) -> None:
    converge(host)
    before = host.standin.conf(201)
    out = converge(host)
    assert not out.changed
    assert (out.diffs, out.result["changed_keys"], host.changing()) == ([], [], [])
    assert host.standin.conf(201) == before


def test_check_mode_of_a_new_container_touches_nothing(host: Module) -> None:
    out = converge(host, check_mode=True)
    assert out.changed
    assert not out.result["exists"]
    assert host.changing() == []
    assert host.standin.host.vmids() == []


def test_changed_memory_is_taken_without_a_restart(host: Module) -> None:
    converge(host)
    out = converge(host, memory=16384)
    (command,) = host.changing()
    assert command[:-1] == ["pct", "set", "201", "--memory", "16384", "--digest"]
    assert (out.changed, out.result["changed_keys"], out.result["restart_required"]) == (True, ["memory"], False)
    assert "-memory: 8192" in diff_lines(out)
    assert "+memory: 16384" in diff_lines(out)


def test_a_new_device_is_plugged_in_without_a_restart(host: Module) -> None:
    converge(host)
    converge(host, devices=["/dev/null", "/dev/zero", "/dev/full"])
    assert host.standin.lxc.plugged == ["/dev/full"]
    assert "dev2: /dev/full,mode=0666\n" in host.standin.conf(201)


def test_a_removed_device_without_consent_is_refused_before_anything_is_touched(host: Module) -> None:
    converge(host)
    before = host.standin.conf(201)
    error = refusal(host, devices=["/dev/null"], memory=4096)
    assert error.finding.code == "restart-needed"
    assert "dev1" in error.finding.what
    assert "pve_container_allow_restart" in error.finding.fix
    assert error.extra["restart_required"] is True
    assert error.extra["diff"]
    assert (host.changing(), host.standin.conf(201)) == ([], before)


def test_check_mode_tells_the_restart_and_does_not_fail(host: Module) -> None:
    converge(host)
    out = converge(host, check_mode=True, devices=["/dev/null"])
    assert (out.changed, out.result["restart_required"]) == (True, True)
    assert "dev1" in out.warnings[0]
    assert diff_lines(out) == ["-dev1: /dev/zero,mode=0666"]
    assert host.changing() == []


def test_with_consent_the_change_is_made_and_the_container_restarted(host: Module) -> None:
    converge(host)
    out = converge(host, devices=["/dev/null"], allow_restart=True)
    assert [words[1] for words in host.changing()] == ["set", "reboot"]
    assert (out.result["restarted"], out.result["restart_required"], out.result["pending"]) == (True, False, [])
    assert "dev1" not in host.standin.conf(201)
    assert 201 in host.standin.lxc.up


def test_consent_alone_restarts_nothing(host: Module) -> None:
    converge(host)
    out = converge(host, allow_restart=True)
    assert (out.changed, host.changing()) == (False, [])


def test_what_somebody_left_pending_needs_the_restart_too(host: Module) -> None:
    converge(host)
    host.standin.pct("set", "201", "--features", "nesting=1,keyctl=1")
    assert refusal(host, features={"nesting": True, "keyctl": True}).finding.code == "restart-needed"
    out = converge(host, allow_restart=True)
    assert (out.result["restarted"], out.result["changed_keys"]) == (True, [])
    assert "pve:pending" not in host.standin.conf(201)


def test_a_stopped_container_is_changed_and_started_without_consent(host: Module) -> None:
    converge(host)
    host.standin.lxc.up.clear()
    out = converge(host, devices=["/dev/null"])
    assert [words[1] for words in host.changing()] == ["set", "start"]
    assert out.result["restart_required"] is False
    assert 201 in host.standin.lxc.up


def test_a_container_that_does_not_come_back_is_set_back(host: Module) -> None:
    converge(host)
    before = host.standin.conf(201)
    host.break_reboot = 1
    error = refusal(host, devices=["/dev/null"], memory=4096, allow_restart=True)
    assert error.finding.code == "start-failed"
    assert (error.extra["rolled_back"], error.extra["rollback_verified"]) == (True, True)
    assert host.standin.conf(201) == before
    assert 201 in host.standin.lxc.up


def test_a_container_that_stays_down_is_told_so(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    converge(host)

    def no_start(vmid: int, file: Path) -> None:
        raise PctError("startup for container '201' failed")

    monkeypatch.setattr(host.standin.lxc, "start", no_start)
    error = refusal(host, devices=["/dev/null"], allow_restart=True)
    assert (error.extra["rolled_back"], error.extra["rollback_verified"]) == (True, False)
    assert "needs a person" in error.finding.why


@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("hostname: web\narch: amd64\nostype: debian\nmemory: 512\n", False),
        ("hostname: glm5-01\narch: amd64\nostype: debian\nmemory: 512\n", True),
        ("hostname: web\narch: amd64\nostype: debian\nmemory: 512\ntags: rackwell\n", True),
    ],
    ids=["other", "no tag", "other hostname"],
)
def test_a_foreign_container_is_not_touched(host: Module, text: str, running: bool) -> None:
    host.standin.put(201, text, running)
    error = refusal(host, devices=["/dev/absent"])
    assert error.finding.code == "vmid-foreign"
    assert (host.changing(), host.standin.conf(201)) == ([], text)


def test_a_virtual_machine_of_that_number_is_foreign(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"vmid": 201, "type": "qemu", "node": "pve1", "id": "qemu/201", "name": "win"}
    monkeypatch.setattr(pve_cli.Pve, "get", lambda self, path, *_: [row])
    error = refusal(host)
    assert error.finding.code == "vmid-foreign"
    assert "'win'" in error.finding.why


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"devices": ["/dev/null", "/dev/nvidia-uvm-x"]}, "device-missing", "/dev/nvidia-uvm-x"),
        ({"devices": ["/dev/nvidia99"]}, "device-missing", "nvidia-modprobe -c 99"),
        ({"bridge": "vmbr77"}, "bridge-missing", "vmbr77"),
        ({"storage": "tank"}, "storage-missing", "it has: local"),
        ({"disk_size": 10**7}, "no-space", "10000000 GiB"),
        ({"template": "local:vztmpl/other.tar.zst"}, "template-missing", "debian-12-lab_amd64.tar.zst"),
        ({"mounts": [{"source": "/absent", "target": "/a", "read_only": True}]}, "mount-missing", "mkdir -p /absent"),
        ({"mounts": [{"source": "/a,mp=/etc", "target": "/a", "read_only": True}]}, "mount-invalid", "comma"),
        ({"mounts": [{"source": "/tmp", "target": "/a\nlxc.x: y", "read_only": True}]}, "mount-invalid", "line break"),
        ({"mounts": [{"source": "/tmp", "target": "a", "read_only": True}]}, "mount-invalid", "not absolute"),
        ({"ssh_public_key": "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n"}, "ssh-key-invalid", ".pub"),
        ({"gpus": ["0000:ff:00.0"]}, "gpu-missing", "0000:ff:00.0"),
    ],
)
def test_what_the_host_lacks_is_told_before_anything_is_made(
    host: Module, changed: dict[str, Any], code: str, words: str
) -> None:
    finding = refusal(host, **changed).finding
    assert finding.code == code
    assert words in " ".join(finding.as_dict().values())
    assert finding.fix
    assert (host.changing(), host.standin.host.vmids()) == ([], [])


@pytest.mark.parametrize("changed", [{"unprivileged": False}, {"ostype": "ubuntu"}, {"disk_size": 9}])
def test_a_read_only_option_is_refused(host: Module, changed: dict[str, Any]) -> None:
    converge(host)
    assert refusal(host, **changed).finding.code == "read-only-option"
    assert host.changing() == []


def failing_unpack(self: Containers, vmid: int, *_: Any) -> None:
    raise PctError("tar: ./usr: Cannot write: No space left on device")


def failing_start(vmid: int, file: Path) -> None:
    raise PctError("bridge down")


@pytest.mark.parametrize(("at", "code"), [("unpack", "no-space"), ("start", "start-failed")])
def test_a_creation_that_fails_leaves_nothing_behind(
    host: Module, monkeypatch: pytest.MonkeyPatch, at: str, code: str
) -> None:
    host.standin.put(100, "hostname: web\nmemory: 512\n", running=True)
    if at == "unpack":
        monkeypatch.setattr(Containers, "_unpack", failing_unpack)
    else:
        monkeypatch.setattr(host.standin.lxc, "start", failing_start)
    finding = refusal(host).finding
    assert finding.code == code
    assert finding.why.endswith(("nothing of it is left", "destroyed again"))
    assert host.standin.host.vmids() == [100]


@pytest.mark.parametrize("tags", ["", "tags: rackwell\n"], ids=["foreign", "another run of ours"])
def test_a_container_that_somebody_makes_meanwhile_is_not_destroyed(
    host: Module, monkeypatch: pytest.MonkeyPatch, tags: str
) -> None:
    text = f"hostname: glm5-01\nmemory: 512\n{tags}"
    create = pve_cli.Pve.create

    def too_late(self: pve_cli.Pve, vmid: int, *rest: Any) -> tuple[int, str]:
        host.standin.put(vmid, text, running=True)
        return create(self, vmid, *rest)

    monkeypatch.setattr(pve_cli.Pve, "create", too_late)
    finding = refusal(host).finding
    assert (finding.code, "already exists" in finding.why) == ("busy", True)
    assert host.standin.conf(201) == text
    assert not any(words[1] == "destroy" for words in host.changing())


def test_only_what_this_run_made_is_removed_after_a_failure(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(vmid: int, file: Path) -> None:
        host.standin.put(vmid, "hostname: web\nmemory: 512\n")
        raise PctError("bridge down")

    monkeypatch.setattr(host.standin.lxc, "start", replaced)
    finding = refusal(host).finding
    assert finding.why.endswith("somebody else's and was not touched")
    assert "hostname: web" in host.standin.conf(201)


def test_the_rest_of_an_interrupted_creation_is_replaced(host: Module) -> None:
    host.standin.put(201, "hostname: glm5-01\nlock: create\ntags: rackwell\nmemory: 512\n")
    out = converge(host)
    assert out.result["created"]
    assert "lock" not in host.standin.conf(201)


def test_the_rest_of_somebody_elses_creation_is_not_touched(host: Module) -> None:
    text = "hostname: web\nlock: create\nmemory: 512\n"
    host.standin.put(201, text)
    assert refusal(host).finding.code == "vmid-foreign"
    assert host.standin.conf(201) == text


def test_a_creation_that_goes_on_elsewhere_is_waited_for_and_then_told(
    host: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.standin.put(201, "hostname: glm5-01\nlock: create\ntags: rackwell\nmemory: 512\n")
    monkeypatch.setattr(pve_cli.Pve, "being_created", lambda self, vmid: 4711)
    finding = refusal(host, start_timeout=0).finding
    assert (finding.code, "4711" in finding.where) == ("busy", True)


def test_systemd_that_never_gets_ready_ends_the_wait(host: Module) -> None:
    host.states = ["starting"]
    finding = refusal(host, start_timeout=0).finding
    assert finding.code == "container-not-ready"
    assert "state 'starting'" in finding.why


def test_only_missing_keys_are_put_in(host: Module) -> None:
    converge(host)
    host.authorized = 'from="10.0.0.0/8" ssh-ed25519 AAAAC3Nza-test another comment\n'
    assert not converge(host).changed
    second = "ssh-rsa AAAAsecond two"
    out = converge(host, ssh_public_key=f"# mine\n{KEY}\n{second}\n")
    assert out.changed
    assert host.authorized.endswith(f"comment\n{second}\n")


def test_check_mode_tells_of_a_missing_key_and_does_not_put_it_in(host: Module) -> None:
    converge(host)
    before = host.authorized
    out = converge(host, check_mode=True, ssh_public_key=f"{KEY}\nssh-rsa AAAAsecond two\n")
    assert out.changed
    assert out.diffs[-1]["after"] == "ssh-rsa AAAAsecond two\n"
    assert host.authorized == before


def test_a_pvesh_that_does_not_answer_is_ended_and_told(host: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def silent(words: list[str], **_: Any) -> tuple[int, str, str]:
        asked.append(words)
        return 124, "", ""

    monkeypatch.setattr(host, "run_command", silent)
    finding = refusal(host).finding
    assert asked[0][0] == "timeout"
    assert (finding.code, "no answer in" in finding.why) == ("pvesh-failed", True)


def test_a_failed_pvesh_is_told_with_its_words(host: Module) -> None:
    with pytest.raises(PveError) as caught:
        pve_cli.Pve(host).get("/nope")
    assert caught.value.finding.code == "pvesh-failed"
    assert "No 'get' handler defined" in caught.value.finding.why


def options(name: str) -> dict[str, Any]:
    """Options of a role by their names without the role's."""
    file = REPO / "roles" / name / "meta/argument_specs.yml"
    found = yaml.safe_load(file.read_text())["argument_specs"]["main"]["options"]
    return {key.removeprefix(name + "_"): value for key, value in found.items()}


def shape(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: spec.get(key) for key in ("type", "required", "default", "elements")}


def test_role_and_module_take_the_same_options() -> None:
    role = options("pve_container")
    assert role.pop("host")["required"]
    role["ssh_public_key"] = role.pop("ssh_public_key_file")
    assert {name: shape(spec) for name, spec in role.items()} == {
        name: shape(spec) for name, spec in pve_container.SPEC.items()
    }


@pytest.mark.parametrize("name", ["pve_host", "pve_container"])
def test_defaults_of_the_role_are_those_that_its_specification_tells(name: str) -> None:
    defaults = yaml.safe_load((REPO / "roles" / name / "defaults/main.yml").read_text())
    told = {f"{name}_{key}": spec["default"] for key, spec in options(name).items() if "default" in spec}
    assert defaults == told


@pytest.mark.parametrize("module", [pve_host, pve_container])
def test_documentation_is_yaml_and_tells_every_option(module: Any) -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert yaml.safe_load(module.EXAMPLES)
    assert yaml.safe_load(module.RETURN)
    if module is pve_container:
        assert {name: shape(spec) for name, spec in documented.items()} == {
            name: shape(spec) for name, spec in pve_container.SPEC.items()
        }


SHAPES = ["null", "5", '"x"', "{}", "[5]", "[[]]", "[{}]", '[{"vmid": "x"}]', '[{"vmid": null}]']


@pytest.mark.parametrize("answer", SHAPES)
def test_an_answer_of_another_shape_is_told(host: Module, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    pve = pve_cli.Pve(host)
    monkeypatch.setattr(pve, "run", lambda *_, **__: (0, answer, ""))

    def told(ask: Any) -> object:
        try:
            return ask(201)
        except PveError as error:
            return error.finding.code

    assert told(pve.conf) == "pvesh-failed"
    assert told(pve.exists) == (False if "vmid" in answer else "pvesh-failed")
    assert told(pve.running) == (False if answer == "{}" else "pvesh-failed")
