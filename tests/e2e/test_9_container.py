# SPDX-License-Identifier: Apache-2.0
"""A container that a hand made is taken over, and what happens to a container's configuration afterwards.

Containers of its own, on a copy of the site that declares no other: those of the other tests are not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackwell.ansible import runner
from rackwell.ansible.results import PlayResult
from rackwell.ansible.runner import RunDirectory
from rackwell.errors import ExitCode

from .conftest import INSTANCE, REPOSITORY, Ended, inside, lab, more, rackwell

VMID, SECOND, FRESH = 291, 292, 293
NAME = "alt-01"
ROLE = "- hosts: gpu_containers\n  gather_facts: false\n  roles: [rackwell.gpu.pve_container]\n"
SNAPSHOT = "\n[vor-dem-update]\narch: amd64\nhostname: alt-01\nmemory: 1024\nsnaptime: 1760000000\n"
RAW = """\
lxc.prlimit.memlock = 4194304
lxc.cap.drop: sys_rawio
lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,mode=1777,size=64M 0 0
"""

# holds Proxmox VE's lock of a container; when another process has the lock's file open, changes the container
HOLDER = """\
import fcntl, os, sys, time
lock, conf = f"/run/lock/lxc/pve-config-{sys.argv[1]}.lock", f"/etc/pve/lxc/{sys.argv[1]}.conf"
def waits():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if int(pid) != os.getpid() and lock in fds:
            return True
with open(lock, "a") as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    open("/run/e2e-held", "w").close()
    while not waits():
        time.sleep(0.05)
    text = open(conf).read().replace("swap: 0", "swap: 16", 1)
    open(conf, "w").write(text)
"""


_OTHERS = ("gpu-shared", "no-tag")


@dataclasses.dataclass(frozen=True)
class Step:
    """One run of the role's first part, among others of one play.

    Attributes:
        before, after: scripts of the host's shell; what `after` prints is in the outcome. local: one of this machine's.
        check: in check mode. variables: of the role, without their prefix.
    """

    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    check: bool = False
    before: str = "true"
    after: str = "true"
    local: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a step: the module's own return, and the container's file before and after."""

    told: dict[str, Any]
    before: str
    after: str
    printed: str

    @property
    def code(self) -> str:
        """Of the refusal; empty when there was none."""
        return str((self.told.get("rackwell_error") or {}).get("code", ""))

    @property
    def text(self) -> str:
        error = self.told.get("rackwell_error") or {}
        return " ".join(str(error.get(part)) for part in ("what", "where", "why", "fix"))

    @property
    def drift(self) -> dict[str, dict[str, Any]]:
        """By code and key. Which other containers have GPUs is another test's concern."""
        found = (self.told.get("rackwell_result") or {}).get("drift") or []
        return {f"{one['code']} {one['key']}".strip(): one for one in found if one["code"] not in _OTHERS}

    @property
    def severe(self) -> list[str]:
        """What differs, or needs a person."""
        return sorted(key for key, one in self.drift.items() if one["severity"] != "note")


@dataclasses.dataclass
class Place:
    """The site that the container is declared in, and its host."""

    site: Path
    host: str
    template: str
    network: str
    gateway: str
    folder: Path

    def on(self, script: str) -> str:
        """A script of the host's shell."""
        return inside(self.host, script)

    def conf(self, vmid: int = VMID) -> str:
        return self.on(f"cat /etc/pve/lxc/{vmid}.conf")

    def play(self, name: str = NAME, check: bool = False) -> PlayResult:
        """Run the role alone, as `rackwell provision` does with the others around it."""
        return self._run("role", ROLE, name, check)

    def _run(self, kind: str, text: str, name: str, check: bool) -> PlayResult:
        book = self.folder / f"{kind}.yml"
        book.write_text(text)
        run = RunDirectory.create(self.site / ".rackwell", "e2e")
        return runner.play(str(book), self.site, run, [name], listener=lambda _: None, check=check, diff=True)

    def steps(self, *steps: Step, name: str = NAME) -> list[Outcome]:
        """Run all of them, in one play: each takes a second or two then, and not the start of ansible as well."""
        tasks: list[dict[str, Any]] = []
        for number, step in enumerate(steps):
            vmid = step.variables.get("vmid", self.variables(name)["pve_container_vmid"])
            conf = f"cat /etc/pve/lxc/{vmid}.conf || true"
            role = {
                "ansible.builtin.include_role": {
                    "name": "rackwell.gpu.pve_container",
                    "tasks_from": "container",
                    "apply": {"check_mode": step.check},
                },
                "vars": {f"pve_container_{key}": value for key, value in step.variables.items()},
            }
            said = "'before': before.stdout, 'after': after.stdout, 'printed': printed.stdout"
            told = f"{{{{ told | combine({{{said}}}) }}}}"
            local = [{"ansible.builtin.shell": step.local, "delegate_to": "localhost"}] if step.local else []
            tasks += [
                *local,
                self._shell(step.before),
                self._shell(conf, "before"),
                {
                    "block": [role, self._fact("__pve_container_state")],
                    "rescue": [self._fact("ansible_failed_result")],
                },
                self._shell(conf, "after"),
                self._shell(step.after, "printed"),
                {
                    "ansible.builtin.copy": {"content": told, "dest": str(self.folder / f"step-{number}.json")},
                    "delegate_to": "localhost",
                },
            ]
        plays = [{"hosts": name, "gather_facts": False, "tasks": tasks}]
        played = self._run("steps", json.dumps(plays), name, False)
        assert played.exit_code == ExitCode.DONE, played.problems
        found = [json.loads((self.folder / f"step-{number}.json").read_text()) for number in range(len(steps))]
        return [Outcome(one["told"], one["before"], one["after"], one["printed"]) for one in found]

    def _shell(self, script: str, register: str = "ignored") -> dict[str, Any]:
        # raw blocks: a script is no template
        return {
            "ansible.builtin.shell": {"cmd": f"{{% raw %}}{script}{{% endraw %}}", "executable": "/bin/bash"},
            "delegate_to": self.host,
            "register": register,
        }

    def _fact(self, name: str) -> dict[str, Any]:
        return {"ansible.builtin.set_fact": {"told": {"told": f"{{{{ {name} }}}}"}}}

    def file(self, name: str = NAME) -> Path:
        return self.site / "host_vars" / f"{name}.yml"

    def variables(self, name: str = NAME) -> dict[str, Any]:
        known: dict[str, Any] = yaml.safe_load(self.file(name).read_text())
        return known

    def declare(self, name: str = NAME, **changed: Any) -> None:
        """What is declared of a container."""
        self.file(name).write_text(yaml.safe_dump({f"pve_container_{key}": value for key, value in changed.items()}))


@pytest.fixture(scope="module")
def place(site: Path, container: str, host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A copy of the site without its containers, and a container on the host that was made by hand; it runs."""
    copy = tmp_path_factory.mktemp("container") / "site"
    shutil.copytree(site, copy, symlinks=True, ignore=shutil.ignore_patterns(".rackwell"))
    (copy / ".rackwell").symlink_to(site / ".rackwell")
    known = yaml.safe_load((copy / "host_vars" / f"{container}.yml").read_text())
    group = yaml.safe_load((copy / "group_vars/gpu_containers.yml").read_text())
    for file in (copy / "host_vars").glob("*.yml"):
        if file.stem != host:
            file.unlink()
    groups = {"pve": {"hosts": {host: None}}, "gpu_containers": {"hosts": None}}
    (copy / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    group["release_build"] = known["release_build"]
    (copy / "group_vars/gpu_containers.yml").write_text(yaml.safe_dump(group))
    network = known["pve_container_ip"].rpartition(".")[0]
    made = Place(copy, host, known["pve_container_template"], network, group["pve_container_gateway"], copy.parent)
    try:
        make(made, (copy / "id_ed25519.pub").read_text().strip(), group["model_weights_path"])
        yield made
    finally:
        numbers = f"{VMID} {SECOND} {FRESH}"
        made.on(f"for n in {numbers}; do pct unlock $n; pct destroy $n --force 1; done >/dev/null 2>&1; true")


def make(place: Place, key: str, model: str) -> None:
    """As somebody did it before there was a declaration: pct, and an editor for the raw lines."""
    nodes = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{n}" for n in range(8))]
    devices = " ".join(f"--dev{2 * n} /dev/{node},mode=0666" for n, node in enumerate(nodes))
    place.on(
        f"echo '{key}' > /tmp/e2e.pub; pct create {VMID} {place.template} --hostname {NAME} --memory 2048 --swap 0 "
        "--rootfs local:8 --unprivileged 1 --features keyctl=1,nesting=1 --onboot 1 --startup order=2,up=5 "
        f"--net0 name=eth0,bridge=vmbr0,firewall=1,ip={place.network}.91/24,gw={place.gateway} --tags abteilung "
        f"--mp3 {model},mp={model},ro=1 --description 'Fuer: 50 %' --ssh-public-keys /tmp/e2e.pub {devices} >/dev/null"
    )
    place.on(f"cat >> /etc/pve/lxc/{VMID}.conf <<'END'\n{RAW}{SNAPSHOT}END\npct start {VMID}")


@pytest.fixture(scope="module")
def by_hand(place: Place) -> str:
    """The container's file before anybody looked at it."""
    return place.conf()


@pytest.fixture(scope="module")
def adoption(place: Place, by_hand: str) -> Ended:
    """How `rackwell adopt` ended."""
    return rackwell("adopt", place.host, str(VMID), "-i", place.site)


@pytest.fixture(scope="module")
def adopted(place: Place, adoption: Ended) -> Place:
    """It is declared, and a run changes nothing. Each test leaves it so."""
    assert adoption.code in (0, 4), adoption.json["problems"]
    return place


@pytest.fixture
def alone(place: Place, container: str) -> None:
    """No other container that runs has the GPUs."""
    others = {line.split()[-1] for line in place.on("pct list").splitlines() if " running " in line} - {NAME}
    if others:
        pytest.skip(f"the GPUs of the host are those of {', '.join(sorted(others))}")


@more
def test_an_adopted_container_is_declared_as_it_is(by_hand: str, adoption: Ended, place: Place) -> None:
    """The declaration passes `check`, and a run of the role on it changes nothing: the file stays byte by byte."""
    assert adoption.result.get("drift"), adoption.json["problems"]
    drift = adoption.result["drift"]["drift"]
    assert {one["code"] for one in drift} <= {"no-tag", "gpu-shared"}, drift
    assert adoption.code == (4 if any(one["severity"] == "warning" for one in drift) else 0), adoption.json["problems"]
    known = place.variables()
    assert known == yaml.safe_load(adoption.result["text"])
    assert known["pve_container_memlock"] == "4194304"
    assert known["pve_container_shm_size"] == "64M"
    assert known["pve_container_raw"] == ["lxc.cap.drop: sys_rawio"]
    assert known["pve_container_net_options"] == {"firewall": True}
    assert len(known["pve_container_gpus"]) == 8
    checked = rackwell("check", "-i", place.site)
    assert (checked.code, checked.json["problems"]) == (0, [])
    for outcome in place.steps(Step(check=True), Step()):
        assert (outcome.code, outcome.told["changed"], outcome.severe) == ("", False, []), outcome.text
        assert outcome.after == by_hand.strip()


# rewritten by Proxmox VE; then parts taken away, lines added at the end and in [pve:pending], and a marker
HANDS = f"""pct set {VMID} --description 'neu: 1 %' && pct set {VMID} --timezone host
python3 - <<'END'
import re
file = "/etc/pve/lxc/{VMID}.conf"
text = open(file).read()
assert text.startswith("#neu%3A 1 %25\\narch:"), text
assert "[pve:pending]\\ntimezone: host\\n" in text, text
text = text.replace("timezone: host\\n", "timezone: host\\nlxc.prlimit.nofile: 1048576\\n")
text = text.replace(",firewall=1", "").replace("nvidia3,mode=0666", "nvidia3").replace(",ro=1", "")
text = text.replace("memory: 2048\\n", "# BEGIN ANSIBLE MANAGED BLOCK\\nmemory: 2048\\n", 1)
text = re.sub(r"lxc.prlimit.memlock.*\\n", "", text) + "\\nmemory: 4096\\nlxc.prlimit.memlock: 4194304\\n"
open(file, "w").write(text)
END"""


@more
def test_what_hands_do_to_the_file_is_told_with_its_lines_and_repaired(adopted: Place) -> None:
    allowed = {"allow_restart": True}
    rewritten, edited, refused, predicted, repaired, again = adopted.steps(
        Step(check=True, before=f"pct set {VMID} --description neu"),
        Step(check=True, before=HANDS),
        Step(),
        Step(allowed, check=True),
        Step(allowed),
        Step(after=f"pct set {VMID} --description neu"),
    )
    assert rewritten.before.startswith("#neu\narch:")
    assert (rewritten.told["changed"], rewritten.severe) == (False, [])
    misplaced = "conf-misplaced-line "
    assert edited.severe == sorted(
        [
            *("differs net0", "differs dev12", "differs mp3", "not-there lxc.prlimit.memlock", "pending timezone"),
            *(misplaced + "lxc.prlimit.nofile", misplaced + "memory", misplaced + "lxc.prlimit.memlock"),
            "conf-marker-line",
        ]
    )
    lines = edited.before.splitlines()
    for one in edited.drift.values():
        assert not one["line"] or lines[one["number"] - 1].strip() == one["line"]
    assert edited.drift[misplaced + "memory"]["line"] == "memory: 4096"
    assert "[vor-dem-update]" in edited.drift["not-there lxc.prlimit.memlock"]["what"]
    assert (refused.code, refused.after) == ("restart-needed", edited.before)
    assert (predicted.code, predicted.after) == ("", edited.before)
    assert repaired.code == "", repaired.text
    assert predicted.told["diff"] == repaired.told["diff"]
    # what stands in the snapshot is the snapshot's: no run touches it, and Proxmox VE has taken it in; the marker has
    # become a line of the description, which is a person's
    assert (again.told["changed"], again.severe) == (False, ["conf-marker-line"])
    assert again.before.splitlines()[1] == "# BEGIN ANSIBLE MANAGED BLOCK"
    main = again.after.partition("[vor-dem-update]")[0]
    assert all(
        line in main for line in ("lxc.prlimit.memlock: 4194304", "firewall=1", "memory: 2048", "timezone: host")
    )


@contextlib.contextmanager
def declared(place: Place, name: str, vmid: int, address: str, **variables: Any) -> Iterator[None]:
    """A further container of the site; nothing of it is left on the host afterwards."""
    standard = {"host": place.host, "vmid": vmid, "hostname": name, "template": place.template, "disk_size": 2}
    standard |= {"memory": 512, "ip": f"{place.network}{address}/24", "mounts": [], "onboot": False}
    hosts = place.site / "hosts.yml"
    before = hosts.read_text()
    known = yaml.safe_load(before)
    group = known["all"]["children"]["gpu_containers"]
    group["hosts"] = {**(group["hosts"] or {}), name: None}
    try:
        place.declare(name, **{**standard, **variables})
        hosts.write_text(yaml.safe_dump(known))
        yield
    finally:
        hosts.write_text(before)
        place.file(name).unlink()
        place.on(f"pct unlock {vmid} 2>/dev/null; pct destroy {vmid} --force 1 2>/dev/null; true")


@more
def test_check_mode_on_a_fresh_container_tells_what_a_run_then_does(place: Place) -> None:
    name, more_of_it = "fresh-01", {"memory": 1024, "shm_size": "32M", "features": {"nesting": True, "keyctl": True}}
    with declared(place, name, FRESH, ".93", gpus=[], devices=["/dev/nvidiactl"], memlock="4194304"):
        predicted = place.play(name, check=True)
        assert "does not exist" in place.on(f"pct config {FRESH} 2>&1 || true")
        played = place.play(name)
        assert (predicted.exit_code, played.exit_code) == (ExitCode.DONE, ExitCode.DONE), played.problems
        ((created, recorded), (really, written)) = predicted.changes, played.changes
        assert created == really
        assert (recorded.role, recorded.task) == (written.role, written.task)
        (told,) = predicted.payloads("rackwell.pve_container")
        (done,) = played.payloads("rackwell.pve_container")
        assert told["changed_keys"] == done["changed_keys"]
        # the file has what was told, and what Proxmox VE adds by itself
        said = {line[1:] for line in created.diff.splitlines() if re.match(r"\+[a-z]", line)}
        file = {line.partition(":")[0]: line for line in place.conf(FRESH).splitlines()}
        for line in said:
            if not line.startswith(("ssh-", "rootfs", "net0")):
                assert file[line.partition(":")[0]] == line
        assert set(file) - {line.partition(":")[0] for line in said} == {"arch"}
        # and one that exists
        would, does, again = place.steps(
            Step(more_of_it, check=True),
            Step({**more_of_it, "allow_restart": True}),
            Step(more_of_it),
            name=name,
        )
        assert does.code == "", does.text
        assert would.told["changed"]
        assert would.told["diff"] == does.told["diff"]
        assert would.told["rackwell_result"]["changed_keys"] == does.told["rackwell_result"]["changed_keys"]
        assert again.told["changed"] is False


HOLD = (
    f"cat > /tmp/e2e-holder.py <<'END'\n{HOLDER}END\n"
    f"rm -f /run/e2e-held; systemd-run --quiet --collect --unit=e2e-holder python3 /tmp/e2e-holder.py {VMID}; "
    "until [ -e /run/e2e-held ]; do sleep 0.1; done"
)
HELD = (
    "systemctl stop e2e-holder 2>/dev/null; rm -f /tmp/e2e-holder.py /run/e2e-held; "
    f"sed -i 's/^swap: 16/swap: 0/' /etc/pve/lxc/{VMID}.conf"
)
LOST = json.dumps({"nodename": "pve1", "cluster": {"name": "c", "nodes": 3, "quorate": 0}})
OTHER = {"vmid": FRESH, "hostname": "fresh-01", "gpus": [], "disk_size": 2, "adopted": False}
RAW_CHANGE = {"shm_size": "32M", "allow_restart": True}
# name -> (what is done, the code of the refusal, what its text tells)
REFUSALS = {
    **{
        lock: (
            Step({"memory": 1024}, False, f"sed -i '1i lock: {lock}' /etc/pve/lxc/{VMID}.conf", f"pct unlock {VMID}"),
            "locked",
            [lock, f"pct unlock {VMID}"],
        )
        for lock in ("backup", "snapshot", "migrate")
    },
    "no quorum": (
        Step({"memory": 1024}, False, f"echo '{LOST}' > /etc/pve/.members", "rm /etc/pve/.members"),
        "no-quorum",
        ["pvecm status"],
    ),
    # as while pmxcfs says that it is quorate, and refuses: found by the write itself
    "read-only": (
        Step(RAW_CHANGE, False, "mount --bind /etc/pve /etc/pve; mount -o remount,ro,bind /etc/pve", "umount /etc/pve"),
        "no-quorum",
        ["Read-only file system"],
    ),
    "full": (
        Step(
            RAW_CHANGE,
            False,
            "cp -a /etc/pve /tmp/e2e-pve; mount -t tmpfs -o size=64k tmpfs /etc/pve; cp -a /tmp/e2e-pve/. /etc/pve/; "
            "dd if=/dev/zero of=/etc/pve/full bs=4k 2>/dev/null; true",
            "umount /etc/pve; rm -rf /tmp/e2e-pve",
        ),
        "no-space",
        ["df -h"],
    ),
    # the other one holds Proxmox VE's lock; when the run waits for it, the file changes, and the lock is free
    "changed, pct set": (Step({"memory": 1024}, False, HOLD, HELD), "conf-changed", ["run again"]),
    "changed, raw line": (Step(RAW_CHANGE, False, HOLD, HELD), "conf-changed", ["run again"]),
    "template": (Step({**OTHER, "template_sha256": "0" * 64}), "template-checksum", ["pveam download", "0" * 64]),
    "storage": (Step({**OTHER, "disk_size": 900_000}), "no-space", ["pve_container_disk_size"]),
    "gpu": (
        Step({**OTHER, "gpus": "all", "vmid": SECOND, "hostname": "second-01"}),
        "gpu-shared",
        ["has /dev/nvidia", "pve_container_gpus"],
    ),
}


@pytest.fixture(scope="module")
def refusals(adopted: Place) -> dict[str, Outcome]:
    """All of them in one play."""
    return dict(zip(REFUSALS, adopted.steps(*(step for step, _, _ in REFUSALS.values())), strict=True))


@more
@pytest.mark.parametrize("fault", REFUSALS)
def test_a_fault_is_told_with_its_remedy_and_nothing_is_changed(refusals: dict[str, Outcome], fault: str) -> None:
    _, code, texts = REFUSALS[fault]
    outcome = refusals[fault]
    assert outcome.code == code, outcome.told
    for text in texts:
        assert text in outcome.text
    before = outcome.before
    if code == "conf-changed":  # by the other one
        before = before.replace("swap: 0", "swap: 16", 1)
    assert outcome.after == before


@more
def test_what_is_mended_by_a_run_or_by_its_remedy(adopted: Place) -> None:
    """Stopped; locked with nothing to change; limits that were changed inside."""
    up = f"until pct exec {VMID} -- systemctl is-system-running | grep -q running; do sleep 0.2; done"
    # /dev/shm is LXC's mount: the container's root may not make it smaller
    shrunk = f"pct exec {VMID} -- prlimit --pid 1 --memlock=65536:65536"
    down, started, locked, lost, back = adopted.steps(
        Step(check=True, before=f"pct stop {VMID}"),
        Step(after=f"pct status {VMID}"),
        Step(before=f"sed -i '1i lock: backup' /etc/pve/lxc/{VMID}.conf", after=f"pct unlock {VMID}"),
        Step(check=True, before=shrunk),
        Step(check=True, before=f"pct reboot {VMID}; {up}"),
    )
    assert (down.severe, down.told["changed"]) == (["stopped"], True)
    assert (started.code, started.printed) == ("", "status: running")
    assert (locked.code, locked.told["changed"], locked.severe) == ("", False, ["locked lock"])
    assert "pct unlock" in locked.drift["locked lock"]["fix"]
    assert lost.severe == ["not-in-effect lxc.prlimit.memlock"]
    assert lost.drift["not-in-effect lxc.prlimit.memlock"]["found"] == "64 KiB"
    assert lost.drift["not-in-effect lxc.prlimit.memlock"]["fix"].startswith("pct reboot VMID")
    assert back.severe == []


@more
@pytest.mark.usefixtures("alone")
def test_a_gpu_that_has_another_number_is_told_and_repaired(adopted: Place) -> None:
    """Two GPUs are declared; then the first is /dev/nvidia5, and the container starts with the entries that it has."""
    gpus = adopted.variables()["pve_container_gpus"]
    two, nodes = {"gpus": gpus[:2]}, f"pct exec {VMID} -- ls /dev"
    tool = f"{sys.executable} {REPOSITORY}/tests/lab/lab.py"
    moved = f"{tool} set --name {INSTANCE} --host {adopted.host} gpu gpus.0.minor=5"
    up = f"until pct exec {VMID} -- systemctl is-system-running | grep -q running; do sleep 0.2; done"
    try:
        first, told, refused, mended, again = adopted.steps(
            Step({**two, "allow_restart": True}, after=nodes),
            Step(two, check=True, local=moved, before=f"pct reboot {VMID}; {up}"),
            Step(two),
            Step({**two, "allow_restart": True}, after=nodes),
            Step(two, check=True),
        )
        was = {gpu["bus_id"]: gpu["node"] for gpu in first.told["rackwell_result"]["gpus"]}
        held = set(re.findall(r"\bnvidia\d+\b", first.printed))
        assert held == {node[5:] for node in was.values()}
        found = {one["code"]: one for one in told.drift.values() if one["severity"] != "note"}
        assert set(found) == {"not-there", "not-declared"}
        assert f"/dev/nvidia5 is GPU {gpus[0]} now" in found["not-there"]["what"]
        assert f"{was[gpus[0]]} is GPU" in found["not-declared"]["what"]
        assert refused.code == "restart-needed"
        assert mended.code == "", mended.text
        assert set(re.findall(r"\bnvidia\d+\b", mended.printed)) == {"nvidia5", was[gpus[1]][5:]}
        assert (again.told["changed"], again.severe) == (False, [])
    finally:
        lab("reset", "--host", adopted.host)
        (back,) = adopted.steps(Step({"allow_restart": True}))
    assert back.code == "", back.text


@more
@pytest.mark.usefixtures("alone")
def test_two_containers_share_a_host_without_sharing_anything(adopted: Place) -> None:
    """Disjoint GPUs, processors, limits: read back inside."""
    gpus = adopted.variables()["pve_container_gpus"]
    common = {"memlock": "4194304", "raw": "keep", "adopted": False, "disk_size": 2, "memory": 512, "onboot": False}
    common |= {"mounts": [], "options": {}, "net_options": {}, "features": {"nesting": True}}
    first = {"gpus": gpus[:2], "numa_nodes": [0], "shm_size": "48M", "hostname": "second-01", "vmid": SECOND}
    second = {"gpus": gpus[2:4], "cpuset": "1", "shm_size": "96M", "hostname": "fresh-01", "vmid": FRESH}
    first["ip"], second["ip"] = f"{adopted.network}.92/24", f"{adopted.network}.93/24"

    def read(vmid: int) -> str:
        into = f"pct exec {vmid} --"
        return (
            f"{into} ls /dev; {into} grep Cpus_allowed_list /proc/1/status; "
            f"{into} prlimit --pid 1 --memlock --output HARD --noheadings; {into} df --output=size -BM /dev/shm"
        )

    one, other, one_again, other_again, back = adopted.steps(
        Step({**common, **first}, before=f"pct stop {VMID}"),
        Step({**common, **second}),
        Step({**common, **first}, after=read(SECOND)),
        Step({**common, **second}, after=read(FRESH)),
        Step(before=f"pct destroy {SECOND} --force 1; pct destroy {FRESH} --force 1"),
    )
    seen = []
    for made, outcome in ((one, one_again), (other, other_again)):
        assert made.code == "", made.text
        # in effect, all of it; the GPUs of one that is stopped are a note
        assert (outcome.told["changed"], outcome.severe) == (False, [])
        nodes = set(re.findall(r"\bnvidia\d+\b", outcome.printed))
        assert nodes == {gpu["node"][5:] for gpu in outcome.told["rackwell_result"]["gpus"]}
        cpus = re.search(r"Cpus_allowed_list:\s*(\S+)", outcome.printed)
        seen.append((nodes, cpus and cpus.group(1), outcome.printed.split()[-3], outcome.printed.split()[-1]))
    assert not seen[0][0] & seen[1][0]
    assert [values[1:] for values in seen] == [("0", "4194304", "48M"), ("1", "4194304", "96M")]
    assert back.code == "", back.text


@more
def test_an_ssh_host_key_of_the_host_that_changed_is_told(adopted: Place) -> None:
    known = adopted.site / "known_hosts"
    before = known.read_text()
    lines = [line for line in before.splitlines() if not line.startswith(adopted.network)]
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(adopted.site.parent / "other")], check=True
    )
    other = (adopted.site.parent / "other.pub").read_text().split()[:2]
    lines += [
        f"{line.split()[0]} {' '.join(other)}" for line in before.splitlines() if line.startswith(adopted.network)
    ]
    try:
        known.write_text("\n".join(lines) + "\n")
        ended = rackwell("drift", NAME, "-i", adopted.site)
        assert (ended.code, ended.codes) == (6, ["host-key-changed"])
        assert "ssh-keygen" in ended.json["problems"][0]["fix"]
        assert str(known) in ended.json["problems"][0]["fix"]
    finally:
        known.write_text(before)


@more
def test_an_ssh_host_key_of_the_container_that_changed_is_told_and_recorded_anew(adopted: Place) -> None:
    adopted.on(
        f"pct exec {VMID} -- sh -c 'rm /etc/ssh/ssh_host_*; ssh-keygen -A >/dev/null; systemctl restart ssh' </dev/null"
    )
    ended = rackwell("drift", NAME, "-i", adopted.site)
    (one,) = [one for one in ended.result["drift"] if one["severity"] == "error"]
    assert (ended.code, one["code"]) == (1, "host-key-changed")
    line = (adopted.site / "known_hosts").read_text().splitlines()[int(one["where"].rpartition(":")[2]) - 1]
    assert line.startswith(f"{adopted.network}.91 ")
    played = adopted.play()
    assert (played.exit_code, len(played.changes)) == (ExitCode.DONE, 1), played.problems


@more
@pytest.mark.parametrize("become", [False, True], ids=["no sudo declared", "sudo wants a password"])
def test_a_user_without_rights_on_the_host_is_told(adopted: Place, become: bool) -> None:
    variables = adopted.site / "host_vars" / f"{adopted.host}.yml"
    before = variables.read_text()
    known = yaml.safe_load(before) or {}
    adopted.on(
        "useradd -m -s /bin/bash bediener 2>/dev/null; install -d -m 700 -o bediener ~bediener/.ssh; "
        "install -m 600 -o bediener ~root/.ssh/authorized_keys ~bediener/.ssh/authorized_keys"
    )
    try:
        variables.write_text(yaml.safe_dump({**known, "ansible_user": "bediener", "ansible_become": become}))
        ended = rackwell("drift", NAME, "-i", adopted.site)
        assert ended.code == 1, ended.json["problems"]
        (problem,) = ended.json["problems"]
        assert problem["code"] == ("become-failed" if become else "not-root")
        assert become or "bediener" in problem["what"]
        assert "ansible_become" in problem["fix"]
    finally:
        variables.write_text(before)
        adopted.on("userdel -r bediener 2>/dev/null; true")


@more
def test_a_root_file_system_that_was_moved_is_adopted(adopted: Place) -> None:
    """The commands of docs/adopt.md; in the place of the virtual machine stands a container, whose root is as good."""
    hosts = adopted.site / "hosts.yml"
    before = hosts.read_text()
    archive = "/var/lib/vz/template/cache/debian-moved_1_amd64.tar.gz"
    adopted.on(
        f"pct exec {VMID} -- tar --one-file-system --numeric-owner --exclude=./proc --exclude=./sys --exclude=./dev "
        f"--exclude=./run --exclude=./boot --exclude=./tmp -C / -cpf - . </dev/null | gzip -1 > {archive}"
    )
    try:
        adopted.on(
            f"pct create {FRESH} local:vztmpl/{archive.rpartition('/')[2]} --ostype debian --rootfs local:8 "
            "--hostname moved-01 --memory 512 --unprivileged 1 --features nesting=1 "
            f"--net0 name=eth0,bridge=vmbr0,ip={adopted.network}.93/24,gw={adopted.gateway} >/dev/null; "
            f"pct start {FRESH}"
        )
        adopted.on(f"until pct exec {FRESH} -- systemctl is-system-running | grep -q running; do sleep 0.2; done")
        identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
        adopted.on(
            f"pct exec {FRESH} -- sh -c 'rm -f /etc/machine-id /var/lib/dbus/machine-id /etc/ssh/ssh_host_*; "
            "systemd-machine-id-setup; ssh-keygen -A; systemctl restart ssh' </dev/null >/dev/null 2>&1"
        )
        assert not {*adopted.on(f"pct exec {FRESH} -- {identity}").splitlines()} & {
            *adopted.on(f"pct exec {VMID} -- {identity}").splitlines()
        }
        ended = rackwell("adopt", adopted.host, str(FRESH), "-i", adopted.site)
        assert ended.result["drift"]["changed"] is False
        assert {one["code"] for one in ended.result["drift"]["drift"]} <= {"no-tag"}
        # nothing of the declared GPUs is in it yet
        assert "it has no GPU by a dev entry" in str(ended.result["notes"])
    finally:
        hosts.write_text(before)
        adopted.file("moved-01").unlink(missing_ok=True)
        adopted.on(f"pct destroy {FRESH} --force 1; rm -f {archive}")
