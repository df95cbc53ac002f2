# SPDX-License-Identifier: Apache-2.0
"""The stand-ins `pct` and `pvesh` print and exit like the real ones, and rewrite the file like PVE."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from labpve import config, schema
from labpve.containers import Containers
from pvestandin import Standin

CONF = """arch: amd64
dev0: /dev/nvidiactl,mode=0666
features: nesting=1
hostname: glm5-01
memory: 512
net0: name=eth0,bridge=lo,hwaddr=BC:24:11:00:00:01,ip=10.0.0.5/24,type=veth
ostype: debian
rootfs: local:200/vm-200-disk-0.raw,size=4G
swap: 0
unprivileged: 1
"""


def test_the_file_is_rewritten_in_pves_order() -> None:
    text = (
        "memory: 512\nlxc.prlimit.memlock = unlimited\n# BEGIN ANSIBLE MANAGED BLOCK\narch: amd64\n"
        "lxc.cap.drop: sys_time\n\n[before]\nmemory: 256\n\n[pve:pending]\nmemory: 1024\ndelete: dev1\n"
    )
    conf = config.parse(text)
    assert conf.pending == {"memory": "1024"}
    assert conf.deleted == ["dev1"]
    assert conf.write() == (
        "# BEGIN ANSIBLE MANAGED BLOCK\narch: amd64\nmemory: 512\nlxc.prlimit.memlock: unlimited\n"
        "lxc.cap.drop: sys_time\n\n[pve:pending]\ndelete: dev1\nmemory: 1024\n\n[before]\nmemory: 256\n"
    )


def test_a_description_is_encoded_at_the_top() -> None:
    conf = config.Config()
    conf.set_description("50 %: ä\nnext")
    assert conf.write() == "#50 %25%3A %C3%A4\n#next\n"
    assert config.parse(conf.write()).main.all_keys()["description"] == "50 %: ä\nnext"


def test_list_prints_nothing_without_containers(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    assert standin.pct("list") == 0
    assert capsys.readouterr().out == ""


def test_list_is_in_columns_with_an_empty_lock(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, CONF, running=True)
    assert standin.pct("list") == 0
    assert capsys.readouterr().out == (
        "VMID       Status     Lock         Name                \n"
        "200        running                 glm5-01             \n"
    )


def test_status(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, CONF)
    assert standin.pct("status", "200") == 0
    assert capsys.readouterr().out == "status: stopped\n"
    standin.pct("status", "200", "--verbose")
    lines = capsys.readouterr().out.splitlines()
    assert lines == sorted(lines)
    assert "maxmem: 536870912" in lines


def test_config_is_sorted_with_raw_lines_last(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, "# a: b\nlxc.cap.drop = sys_time\n" + CONF)
    assert standin.pct("config", "200") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["arch: amd64", "description:  a%3A b", "dev0: /dev/nvidiactl,mode=0666"]
    assert lines[-1] == "lxc.cap.drop: sys_time"
    assert not any(line.startswith("digest") for line in lines)


def test_pending_shows_current_new_and_deleted(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, CONF, running=True)
    assert standin.pct("set", "200", "--features", "nesting=1,keyctl=1", "--memory", "1024", "--delete", "dev0") == 0
    standin.pct("pending", "200")
    lines = capsys.readouterr().out.splitlines()
    assert "del dev0: /dev/nvidiactl,mode=0666" in lines
    assert lines[lines.index("cur features: nesting=1") + 1] == "new features: keyctl=1,nesting=1"
    assert "cur memory: 1024" in lines
    assert "\n[pve:pending]\ndelete: dev0\nfeatures: keyctl=1,nesting=1\n" in standin.conf(200)
    assert standin.pct("reboot", "200") == 0
    assert "dev0" not in standin.conf(200)
    assert "pve:pending" not in standin.conf(200)


def test_a_stopped_container_takes_everything_at_once(standin: Standin) -> None:
    standin.put(200, CONF)
    assert standin.pct("set", "200", "--features", "keyctl=1,nesting=1", "--delete", "dev0") == 0
    assert "pve:pending" not in standin.conf(200)
    assert "features: keyctl=1,nesting=1\n" in standin.conf(200)


def test_a_running_container_takes_new_devices_and_mounts_but_no_edited_ones(standin: Standin) -> None:
    standin.put(200, CONF, running=True)
    words = ["--dev1", "/dev/nvidia0,mode=0666", "--mp0", "/srv/m,mp=/m", "--dev0", "/dev/nvidiactl,mode=0660"]
    assert standin.pct("set", "200", *words) == 0
    assert sorted(standin.lxc.plugged) == ["/dev/nvidia0", "/m"]
    assert "[pve:pending]\ndev0: /dev/nvidiactl,mode=0660\n" in standin.conf(200)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["status", "999"], 2, "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        (["exec", "999", "--", "true"], 2, "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        (["exec", "200", "--", "true"], 255, "container '200' not running!"),
        (["stop", "200"], 255, "CT 200 not running"),
        (["reboot", "200"], 255, "VM 200 not running"),
        (["set", "200", "--foo", "1"], 255, "Unknown option: foo\n400 unable to parse option"),
        (["set", "200", "--dev300", "/dev/a"], 255, "Unknown option: dev300"),
        (["set", "200"], 255, "no options specified"),
        (["set", "200", "--unprivileged", "0"], 255, "unable to modify read-only option: 'unprivileged'"),
        (["set", "200", "--delete", "memory"], 255, "unable to delete required option 'memory'"),
        (["set", "200", "--delete", "unprivileged"], 255, "unable to delete read-only option: 'unprivileged'"),
        (["set", "200", "--memory", "abc"], 255, "memory: type check ('integer') failed - got 'abc'"),
        (["set", "200", "--memory", "8"], 255, "memory: value must have a minimum value of 16"),
        (["set", "200", "--dev1", "/dev/a,mode=666"], 255, "mode: value does not match the regex pattern"),
        (["set", "200", "--dev1", "/dev/../a"], 255, "dev1"),
        (["set", "200", "--dev1", "/dev/a,optional=1"], 255, "optional: property is not defined in schema"),
        (["set", "200", "--net0", "bridge=lo"], 255, "name: property is missing and it is not optional"),
        (["set", "200", "--hostname", "under_score"], 255, "value does not look like a valid DNS name"),
        (["create", "200", "local:vztmpl/a.tar.zst"], 255, "CT 200 already exists on node 'pve1'"),
        (["create", "201", "local:vztmpl/a.tar.zst"], 255, "volume 'local:vztmpl/a.tar.zst' does not exist"),
        (["create", "99", "local:vztmpl/a.tar.zst"], 255, "vmid: value must have a minimum value of 100"),
        (["frobnicate"], 255, "unknown command 'pct frobnicate'"),
    ],
)
def test_errors_have_pves_text_and_code(
    standin: Standin, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    standin.put(200, CONF)
    assert standin.pct(*words) == code
    assert text in capsys.readouterr().err
    assert standin.conf(200) == CONF


def test_a_locked_or_protected_container_is_refused(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, CONF + "lock: backup\n")
    assert standin.pct("start", "200") == 255
    assert "CT is locked (backup)" in capsys.readouterr().err
    assert standin.pct("unlock", "200") == 0
    standin.put(200, CONF + "protection: 1\n")
    assert standin.pct("destroy", "200") == 255
    assert "protection mode enabled" in capsys.readouterr().err


def test_a_running_container_is_not_destroyed(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, CONF, running=True)
    assert standin.pct("destroy", "200") == 255
    assert "container is running" in capsys.readouterr().err
    standin.pct("stop", "200")
    assert standin.pct("destroy", "200") == 0
    assert standin.host.vmids() == []


def test_the_mac_address_is_made_and_kept_only_when_given(standin: Standin) -> None:
    standin.put(200, CONF)
    assert standin.pct("set", "200", "--net0", "name=eth0,bridge=lo,ip=10.0.0.6/24") == 0
    line = next(line for line in standin.conf(200).splitlines() if line.startswith("net0"))
    assert line.startswith("net0: name=eth0,bridge=lo,hwaddr=BC:24:11:")
    assert line.endswith(",ip=10.0.0.6/24,type=veth")
    assert "BC:24:11:00:00:01" not in line


def test_a_missing_device_node_is_refused_in_pves_words(
    standin: Standin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    standin.host.require_root = lambda: None  # type: ignore[method-assign]
    standin.put(200, CONF.replace("/dev/nvidiactl", "/dev/null"))
    assert standin.pct("set", "200", "--dev1", "/dev/rackwell-absent") == 255
    assert capsys.readouterr().err == "Device /dev/rackwell-absent does not exist\n"
    assert standin.pct("set", "200", "--dev1", "/dev/shm") == 255
    assert capsys.readouterr().err == "/dev/shm is not a device\n"


def test_pvesh_prints_json_with_numbers_where_the_schema_says_so(
    standin: Standin, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.put(200, CONF)
    assert standin.pvesh("get", "/nodes/pve1/lxc/200/config", "--output-format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["memory"], found["unprivileged"], found["hostname"]) == (512, 1, "glm5-01")
    assert len(found["digest"]) == 40
    assert standin.pvesh("get", "/nodes/pve1/lxc/200/status/current", "--output-format", "json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "stopped"
    assert standin.pvesh("get", "/cluster/resources", "--type", "vm", "--output-format", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "lxc/200"
    assert standin.pvesh("get", "/version", "--output-format", "json") == 0
    assert json.loads(capsys.readouterr().out)["version"].startswith("9.")


def test_pvesh_config_shows_pending_values_unless_current_is_asked(
    standin: Standin, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.put(200, CONF, running=True)
    standin.pvesh("set", "/nodes/pve1/lxc/200/config", "--features", "keyctl=1,nesting=1")
    capsys.readouterr()
    standin.pvesh("get", "/nodes/pve1/lxc/200/config", "--output-format", "json")
    assert json.loads(capsys.readouterr().out)["features"] == "keyctl=1,nesting=1"
    standin.pvesh("get", "/nodes/pve1/lxc/200/config", "--current", "1", "--output-format", "json")
    assert json.loads(capsys.readouterr().out)["features"] == "nesting=1"
    standin.pvesh("get", "/nodes/pve1/lxc/200/pending", "--output-format", "json")
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["features"] == {"key": "features", "value": "nesting=1", "pending": "keyctl=1,nesting=1"}


def test_pvesh_refuses_a_stale_digest(standin: Standin, capsys: pytest.CaptureFixture[str]) -> None:
    standin.put(200, CONF)
    assert standin.pvesh("set", "/nodes/pve1/lxc/200/config", "--memory", "1024", "--digest", "0" * 40) == 255
    assert "detected modified configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["get", "/nope"], "No 'get' handler defined for '/nope'"),
        (["get", "/nodes/pve9/version"], "No 'get' handler defined"),
        (["get", "/nodes/pve9/lxc"], "hostname lookup 'pve9' failed"),
        (["get", "/nodes/pve1/lxc/999/config"], "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        (["set", "/nodes/pve1/lxc/200/config", "--foo", "1"], "Unknown option: foo"),
    ],
)
def test_pvesh_errors(standin: Standin, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    standin.put(200, CONF)
    assert standin.pvesh(*words) != 0
    assert text in capsys.readouterr().err


def test_options_come_from_the_api_schema(standin: Standin) -> None:
    properties = standin.containers.tables["set"]
    assert schema.find(properties, "dev255")
    assert schema.find(properties, "dev256") is None
    assert schema.find(properties, "net32") is None
    assert schema.find(properties, "dev[n]") is None
    # raw LXC keys can be written into the file only
    assert schema.find(properties, "lxc.idmap") is None


@pytest.fixture
def template(standin: Standin, tmp_path: Path) -> str:
    """A root filesystem of three files as a template of the host."""
    root = tmp_path / "root"
    for name in ("etc", "sbin", "dev"):
        (root / name).mkdir(parents=True)
    (root / "etc/debian_version").write_text("12.12\n")
    archive = standin.host.root / "var/lib/vz/template/cache/debian-12-tiny_amd64.tar.zst"
    subprocess.run(["tar", "--zstd", "-C", str(root), "-cf", str(archive), "."], check=True)
    return f"local:vztmpl/{archive.name}"


def test_create_unpacks_the_template_and_writes_pves_file(
    standin: Standin, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--unprivileged",
        "0",
        "--rootfs",
        "local:4",
        "--hostname",
        "tiny",
        "--features",
        "nesting=yes",
        "--tags",
        "B,a",
    ]
    assert standin.pct("create", "200", template, *words) == 0
    assert "extracting archive" in capsys.readouterr().out
    assert (standin.lxc.directory(200) / "rootfs/etc/debian_version").read_text() == "12.12\n"
    assert standin.conf(200) == (
        "arch: amd64\nfeatures: nesting=1\nhostname: tiny\nmemory: 512\nostype: debian\n"
        "rootfs: local:200/vm-200-disk-0.raw,size=4G\nswap: 512\ntags: a;b\nunprivileged: 0\n"
    )


def test_a_new_container_is_unprivileged_unless_told_otherwise(
    standin: Standin, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Containers, "_unpack", lambda *_: None)
    assert standin.pct("create", "200", template) == 0
    assert "unprivileged: 1\n" in standin.conf(200)
    assert "hostname: CT200\n" in standin.conf(200)


def test_a_create_that_fails_removes_what_it_made(
    standin: Standin, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = standin.host.template(template)
    archive.write_bytes(archive.read_bytes()[:40])
    assert standin.pct("create", "200", template, "--unprivileged", "0") == 255
    assert "unable to create CT 200 - command 'tar" in capsys.readouterr().err
    assert standin.host.vmids() == []
    assert not standin.lxc.directory(200).exists()


@pytest.mark.parametrize("name", ["pct", "pvesh"])
def test_the_programs_say_what_they_are_and_want_the_schema(name: str) -> None:
    tool = Path(__file__).resolve().parents[2] / "lab/pve/bin" / name
    assert "STAND-IN" in tool.read_text().splitlines()[2]
    done = subprocess.run([sys.executable, str(tool), "list"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "api_schema.json is missing" in done.stderr
