# SPDX-License-Identifier: Apache-2.0
"""The server's unit: its sandbox where it runs, its secrets in no artefact, and check mode that tells what comes.

The site of these tests is a copy of the laboratory's with a key for the engine, a token, a password of sudo and a key
for a client of the proxy (which test_8_proxy installs), all in a vaulted file. Afterwards the container is as the
laboratory's own site says.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Ended, inside, lab, more, rackwell

SERVER = "rackwell-inference.service"
SECRETS = "/etc/rackwell/inference.secrets"
DROP_IN = f"/etc/systemd/system/{SERVER}.d"
MARKS = {
    "api_key": "marked-API-key.7Qz1~kd83+w=",
    "token": "hf_markedMODELtoken8sKd72hBq",
    "become": 'marked-BECOME\'s-$pw-"4t"-%n',
    "proxy": "marked-PROXY-key-Zx83kd92ms71",
    "vault": "marked-VAULT-pw-9f3k2",
}


def encodings(mark: str) -> set[bytes]:
    """A secret as it may stand in a file: plain, quoted, escaped, in base64 at each of the three offsets, in URLs."""
    plain = mark.encode()
    found = {plain, json.dumps(mark)[1:-1].encode(), repr(mark)[1:-1].encode(), urllib.parse.quote(mark, "").encode()}
    found.add(mark.replace("'", "'\"'\"'").encode())
    for offset in range(3):
        # without the letters that its neighbours have a part in
        found.add(base64.b64encode(b"x" * offset + plain).rstrip(b"=")[4 if offset else 0 : -2])
    found.add(plain.hex().encode())
    return found


NEEDLES = {form: name for name, mark in MARKS.items() for form in encodings(mark)}


def leaks(text: bytes) -> set[str]:
    return {name for form, name in NEEDLES.items() if form in text}


def search(folder: Path, *, but: Callable[[Path], bool] = lambda _: False) -> dict[str, set[str]]:
    """Files below `folder` in which a mark stands."""
    found = {}
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink() or but(path) or path.stat().st_size > 30_000_000:
            continue
        if marks := leaks(path.read_bytes()):
            found[str(path)] = marks
    return found


class Sampler:
    """Reads command lines and environments of all processes of this machine, containers among them, again and again.

    Not of this process and what leads to it, which has the marks in its memory and nowhere else.
    """

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}
        self.processes: set[int] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.1):
            for process in Path("/proc").iterdir():
                if not process.name.isdigit():
                    continue
                for name in ("cmdline", "environ"):
                    try:
                        text = (process / name).read_bytes()
                    except OSError:
                        continue
                    self.processes.add(int(process.name))
                    if marks := leaks(text):
                        self.found.setdefault(f"{name} of {text[:200]!r}", set()).update(marks)


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vault") / "password"
    path.write_text(MARKS["vault"] + "\n")
    path.chmod(0o600)
    return path


def seal(path: Path, vault: Path, variables: dict[str, Any]) -> None:
    """Write a vaulted file of variables."""
    path.write_text(json.dumps(variables))
    program = Path(sys.executable).with_name("ansible-vault")
    # a second password, of the environment, would be one too many
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_VAULT_PASSWORD_FILE"}
    command = [program, "encrypt", "--vault-password-file", vault, path]
    subprocess.run(command, check=True, capture_output=True, env=environment)


@pytest.fixture(scope="module")
def marked(site: Path, vault: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the site with marked secrets."""
    copy = tmp_path_factory.mktemp("marked") / "site"
    shutil.copytree(site, copy, symlinks=True, ignore=shutil.ignore_patterns(".rackwell"))
    (copy / ".rackwell").symlink_to(site / ".rackwell")
    folder = copy / "group_vars" / "gpu_containers"
    folder.mkdir()
    (copy / "group_vars" / "gpu_containers.yml").rename(folder / "main.yml")
    seal(folder / "vault.yml", vault, secrets())
    profile = copy / "profiles" / "glm5-lab.yml"
    profile.write_text(re.sub(r"(?m)^flags:", 'flags:\n  api-key: "{{ vault_api_key }}"', profile.read_text()))
    return copy


def secrets(**changes: str) -> dict[str, Any]:
    return {
        "vault_api_key": MARKS["api_key"],
        "model_weights_token": MARKS["token"],
        "ansible_become_password": MARKS["become"],
        "vault_proxy_key": MARKS["proxy"],
        **changes,
    }


@pytest.fixture
def run(marked: Path, vault: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """A command on the marked site."""
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(vault))
    return lambda *arguments: rackwell(*arguments, "-i", marked)


ROLE = "inference_server_agent,inference_server_profile,inference_server_serve"
GATE = "gpu_probe_gate"


@dataclasses.dataclass(frozen=True)
class Played:
    """What a part of the provision said: the tasks that changed or would, and all of its text."""

    code: int
    changed: list[str]
    text: str


@pytest.fixture
def part(marked: Path, vault: Path, container: str) -> Callable[..., Played]:
    """``part(ROLE, "--check")``: the tasks with these tags of the playbook that `rackwell provision` plays."""

    def play(tags: str, *options: str) -> Played:
        program = Path(sys.executable).with_name("ansible-playbook")
        command: list[str | Path] = [
            program,
            "rackwell.gpu.provision",
            "-i",
            marked / "hosts.yml",
            "--limit",
            container,
            "--tags",
            tags,
        ]
        environment = {**os.environ, "ANSIBLE_VAULT_PASSWORD_FILE": str(vault), "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
        text = done.stdout + done.stderr
        tasks = re.findall(r"(?m)^TASK \[(.*?)\] \**\n((?:(?!TASK|PLAY).*\n?)*)", text)
        return Played(done.returncode, [name for name, said in tasks if re.search(r"(?m)^changed: ", said)], text)

    return play


@pytest.fixture(scope="module", autouse=True)
def as_declared(site: Path, container: str) -> Iterator[None]:
    """The container as the laboratory's own site has it, however these tests end."""
    yield
    if inside(container, f"ls {SECRETS} 2>/dev/null || true"):
        rackwell("provision", container, "-i", site, "--no-bench")


def score(container: str, unit: str) -> float:
    told = inside(container, f"systemd-analyze security --no-pager {unit} | tail -n 1")
    return float(re.search(r": ([\d.]+)", told).group(1))  # type: ignore[union-attr]


def test_the_units_are_as_safe_as_the_record_says_and_reach_their_gpus(container: str) -> None:
    record = json.loads(inside(container, "cat", "/var/lib/rackwell/sandbox.json"))
    assert (record["form"], record["dropped"], record["credentials"]) == ("full", [], True)
    assert record["exposure"] <= 4.0
    assert score(container, SERVER) == record["exposure"]
    assert score(container, "rackwell-gpu-gate.service") <= 4.0
    unit = inside(container, "cat", f"/etc/systemd/system/{SERVER}")
    assert [line for line in record["options"] if line not in unit.splitlines()] == []

    # as the running server sees it
    process = inside(container, f"systemctl show -P MainPID {SERVER}")
    seen = f"/proc/{process}/root"
    nodes = inside(container, "cd /dev; ls -d nvidia*")
    assert inside(container, f"cd {seen}/dev; ls -d nvidia*") == nodes
    assert "ro," in inside(container, f"grep ' / ' /proc/{process}/mounts")
    assert "rw," in inside(container, f"grep ' /var/cache/rackwell ' /proc/{process}/mounts")
    assert inside(container, "find /var/cache/rackwell/$(basename $(readlink /opt/rackwell/current)) -type f | head -1")


def shown(run: Callable[..., Ended], container: str) -> dict[str, str]:
    """The container's line of `rackwell status`."""
    found: dict[str, str] = next(row for row in run("status").result["containers"] if row["container"] == container)
    return found


ASK = """\
import sys, urllib.error, urllib.request
ask = urllib.request.Request("http://127.0.0.1:30000/v1/models", headers={"Authorization": "Bearer " + sys.argv[1]})
try:
    print(urllib.request.urlopen(ask).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def status_of(container: str, key: str) -> str:
    """What the engine answers a client with this key."""
    return inside(container, f"python3 -c {shlex.quote(ASK)} {shlex.quote(key)}")


@more
def test_a_full_run_leaves_no_secret_anywhere(
    run: Callable[..., Ended], marked: Path, site: Path, container: str, host: str, tmp_path: Path
) -> None:
    since = int(time.time())
    state = site / ".rackwell"
    texts: dict[str, bytes] = {}
    bundle = tmp_path / "bundle.tar.gz"
    with Sampler() as sampler:
        for name, arguments in {
            "build": ("build", "--all"),
            "provision": ("provision", container, "--no-bench", "--diff"),
            "verify": ("verify", container, "--quick"),
            "status": ("status",),
            "diagnose": ("diagnose", "--container", container, "--bundle", bundle),
            "roll": ("roll", "lab", "--limit", container, "--plan"),
        }.items():
            done = run(*arguments)
            assert done.code in ({0, 1} if name in {"diagnose", "verify"} else {0}), (name, done.json["problems"])
            texts[name] = json.dumps(done.json).encode() + json.dumps(done.json, ensure_ascii=False).encode()
            texts[name] += done.stderr.encode()
    assert len(sampler.processes) > 50
    assert sampler.found == {}
    assert {name: leaks(text) for name, text in texts.items() if leaks(text)} == {}

    # the engine has its key, and asks for it
    assert status_of(container, "wrong") == "401"
    assert status_of(container, MARKS["api_key"]) == "200"

    # on the controller: all runs, events, results; and what Ansible and this machine keep for later
    assert search(state, but=lambda path: "blobs" in path.parts or "releases" in path.parts) == {}
    assert search(marked, but=lambda path: ".rackwell" in path.parts) == {}
    assert search(Path.home() / ".ansible") == {}
    with_bundle = tmp_path / "unpacked"
    shutil.unpack_archive(bundle, with_bundle)
    assert list(with_bundle.rglob("*"))
    assert search(with_bundle) == {}

    # in the container and on the host: journals, and files that others than root can read, or that nobody needs
    for machine in (container, host):
        journal = inside(machine, f"journalctl --no-pager --all -o json --since @{since}")
        assert "server_args=" in journal or machine == host
        assert leaks(journal.encode()) == set()
        words = " ".join(f"-e {shlex.quote(form.decode())}" for form in sorted(NEEDLES))
        places = "/etc /root /tmp /run /usr/local/lib/rackwell /var/lib/rackwell /var/log /var/tmp /var/cache/rackwell"
        files = inside(machine, f"grep -rlsF {words} -- {places} | xargs -r stat -c '%a %U %n' || true").splitlines()
        # the engine's key and the client's are on the machine that asks for them, in files that are nobody else's
        assert [line for line in files if not re.match(r"[0-7]?[46]00 (root|rackwell) ", line)] == []
        assert (f"600 root {SECRETS}" in files) == (machine == container)


@more
def test_faults_of_the_unit_are_told_with_their_remedy(
    run: Callable[..., Ended], part: Callable[..., Played], marked: Path, vault: Path, container: str
) -> None:
    assert part(ROLE).code == 0
    inside(container, f"mkdir -p {DROP_IN}; printf '[Service]\\nBindPaths=/no/such\\n' >{DROP_IN}/10-mine.conf")
    inside(container, f"systemctl daemon-reload; systemctl restart {SERVER} || true")
    told = shown(run, container)
    assert "mount namespaces" in told["why"], told
    assert "missing path" in told["fix"], told
    kept = part(ROLE)
    assert kept.code != 0
    assert all(word in kept.text for word in ('"unit-sandbox"', "226/NAMESPACE", "10-mine.conf", "drop-in")), kept.text
    inside(container, f"rm -r {DROP_IN}; systemctl daemon-reload")

    # the file of the secrets is gone: told while the server is down, and repaired
    inside(container, f"rm -f {SECRETS}; systemctl restart {SERVER} || true")
    told = shown(run, container)
    assert "redential" in told["why"], told
    assert told["fix"], told
    assert part(ROLE).code == 0

    # it is empty: the launcher says so, and nothing is served without a key
    inside(container, f": >{SECRETS}; systemctl restart {SERVER} || true")
    inside(container, f"timeout 60 sh -c 'while systemctl is-active -q {SERVER}; do sleep 0.2; done'")
    told = shown(run, container)
    assert "empty" in told["why"], told
    assert told["fix"], told
    seal(marked / "group_vars/gpu_containers/vault.yml", vault, secrets(vault_api_key=""))
    try:
        refused = part(ROLE)
        assert refused.code != 0
        assert '"credential-empty"' in refused.text, refused.text
        assert "active" not in inside(container, f"systemctl is-active {SERVER} || true").split()
    finally:
        seal(marked / "group_vars/gpu_containers/vault.yml", vault, secrets())
    assert part(ROLE).code == 0
    assert status_of(container, MARKS["api_key"]) == "200"


SECCOMP = "/etc/rackwell-no-mounts.seccomp"


@pytest.fixture
def without_nesting(container: str, host: str) -> Iterator[None]:
    """The container as AppArmor has it without nesting: no mount may become a private one."""
    vmid = {"glm5-01": "201", "glm5-02": "202", "glm5-03": "203"}[container]
    conf = f"/etc/pve/lxc/{vmid}.conf"
    # MS_SLAVE, with which systemd begins each mount namespace
    inside(host, f"printf '2\\ndenylist\\nmount errno 13 [3,524288,SCMP_CMP_MASKED_EQ,524288]\\n' >{SECCOMP}")
    inside(host, f"echo 'lxc.seccomp.profile: {SECCOMP}' >>{conf}; pct reboot {vmid}")
    inside(container, "systemctl is-system-running --wait || true")
    yield
    inside(host, f"sed -i '/lxc.seccomp.profile/d' {conf}; rm {SECCOMP}; pct reboot {vmid}")
    inside(container, "systemctl is-system-running --wait || true")


@more
@pytest.mark.usefixtures("without_nesting")
def test_without_mount_namespaces_the_reduced_form_serves_and_is_told(
    run: Callable[..., Ended], part: Callable[..., Played], container: str
) -> None:
    # the gate's unit cannot run either, and holds the server
    assert "mount namespaces" in shown(run, container)["why"]
    done = part(f"{GATE},{ROLE}")
    assert done.code == 0, done.text
    record = json.loads(inside(container, "cat /var/lib/rackwell/sandbox.json"))
    assert record["form"] == "reduced"
    assert record["exposure"] == score(container, SERVER)
    assert 4.0 < score(container, SERVER) <= 5.0
    rows = {row["item"]: row for row in run("verify", container, "--quick").result["checks"]}
    assert rows["sandbox"]["verdict"] == "degraded"
    assert "exposure" in rows["sandbox"]["evidence"]
    assert "nesting" in rows["sandbox"]["evidence"]


def changes(done: Ended) -> list[tuple[str, str]]:
    return [(one["host"], one["task"]) for one in done.result["changes"]]


@more
def test_check_mode_tells_each_thing_that_was_broken_by_hand(
    part: Callable[..., Played], marked: Path, vault: Path, container: str
) -> None:
    def predicted_and_done() -> list[str]:
        """What check mode says will change; the same must change, and nothing more the next time."""
        before, after, again = part(f"{GATE},{ROLE}", "--check"), part(f"{GATE},{ROLE}"), part(f"{GATE},{ROLE}")
        assert (before.code, after.code, again.code) == (0, 0, 0), (before.text, after.text, again.text)
        assert after.changed == before.changed
        assert again.changed == []
        return after.changed

    serve = "rackwell.gpu.inference_server : Serve the model, or return to what ran before"
    assert part(f"{GATE},{ROLE}").code == 0
    before = inside(container, f"systemctl show -P InvocationID {SERVER}")
    inside(container, "chmod 0644 /etc/rackwell/inference.env")
    # a mode is mended without a restart
    assert predicted_and_done() == [serve]
    assert inside(container, f"systemctl show -P InvocationID {SERVER}") == before
    assert inside(container, "stat -c %a /etc/rackwell/inference.env") == "600"

    profile = marked / "profiles" / "glm5-lab.yml"
    kept = profile.read_text()
    profile.write_text(kept.replace("max-running-requests: 1024", "max-running-requests: 512"))
    seal(marked / "group_vars/gpu_containers/vault.yml", vault, secrets(vault_api_key=MARKS["api_key"] + "2"))
    inside(container, f"sed -i 's/^NoNewPrivileges=yes/NoNewPrivileges=no/' /etc/systemd/system/{SERVER}")
    inside(container, "sed -i '/^PrivateTmp=yes/d' /etc/systemd/system/rackwell-gpu-gate.service")
    inside(container, "rm /usr/local/lib/rackwell/serve.py /var/lib/rackwell/sandbox.json")
    try:
        assert predicted_and_done() == [
            "rackwell.gpu.gpu_probe : Have the boot gate, passed in this boot",
            "rackwell.gpu.inference_server : Have the host's own side of a roll",
            "rackwell.gpu.inference_server : Try systemd's sandbox",
            serve,
        ]
        assert status_of(container, MARKS["api_key"] + "2") == "200"
    finally:
        profile.write_text(kept)
        seal(marked / "group_vars/gpu_containers/vault.yml", vault, secrets())
    assert part(f"{GATE},{ROLE}").code == 0


@more
def test_check_mode_tells_all_that_a_fresh_container_needs(site: Path, container: str) -> None:
    lab("destroy", container)
    before = rackwell("provision", container, "-i", site, "--no-bench", "--check")
    assert before.code == 0, before.json["problems"]
    after = rackwell("provision", container, "-i", site, "--no-bench")
    assert after.code == 0, after.json["problems"]
    told, came = changes(before), changes(after)
    # what is inside of a container that is not there is not looked into, and check mode says so
    outside = [one for one in came if "pve_" in one[1]]
    assert [one for one in told if "pve_" in one[1]] == [
        one for one in outside if one in told or "host keys" not in one[1]
    ]
    assert changes(rackwell("provision", container, "-i", site, "--no-bench")) == []
