# SPDX-License-Identifier: Apache-2.0
"""`rackwell adopt` and `drift` through Ansible itself, on a host whose `pct` and `pvesh` are the stand-ins.

No container runs: what LXC would say is made up. /etc and /var are overlays in a mount namespace of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
PVE = REPOSITORY / "tests/lab/pve"
CONF = """\
#Geh%C3%B6rt der Abteilung
arch: amd64
dev0: /dev/null,mode=0666
dev4: /dev/zero,gid=44
features: nesting=1,keyctl=1
hostname: alt-01
memory: 2048
mp0: /usr,mp=/srv/models,backup=0,ro=1
net0: name=eth0,bridge=lo,firewall=1,hwaddr=BC:24:11:00:00:09,ip=192.0.2.22/24,type=veth
net1: name=eth1,bridge=lo,hwaddr=BC:24:11:00:00:0A,ip=dhcp,type=veth
onboot: 1
ostype: debian
rootfs: local:250/vm-250-disk-0.raw,size=4G
startup: order=2
tags: abteilung
unprivileged: 1
lxc.prlimit.memlock = unlimited
lxc.cap.drop: sys_rawio

[vor-dem-update]
arch: amd64
hostname: alt-01
memory: 1024
snaptime: 1760000000
"""
SITE = {
    "hosts.yml": "all:\n  children:\n    pve:\n      hosts:\n        pve1:\n          ansible_connection: local\n"
    "          ansible_python_interpreter: {python}\n    gpu_containers:\n      hosts:\n",
    "group_vars/pve.yml": 'pve_host_driver_version: "595.58.03"\n',
    "group_vars/gpu_containers.yml": "ansible_host: \"{{{{ pve_container_ip | split('/') | first }}}}\"\n"
    'pve_container_template: local:vztmpl/debian-12.tar.zst\npve_container_ssh_public_key_file: "{site}/key.pub"\n',
    "key.pub": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e test\n",
}
TOOLS = {
    **{name: f'exec {sys.executable} {{pve}}/bin/{name} "$@"' for name in ("pct", "pvesh")},
    "lxc-info": "echo 1",
    "lxc-attach": 'case "$*" in *is-system-running*) echo running;; *authorized_keys*) cat {site}/key.pub;;\n'
    "*ssh_host*) cat {site}/key.pub;; esac",
}
SCRIPT = """\
set -e
mount -t tmpfs none {work}
for top in etc var; do
    mkdir -p {work}/$top/up {work}/$top/work
    mount -t overlay none -o lowerdir=/$top,upperdir={work}/$top/up,workdir={work}/$top/work /$top || exit 77
done
mount -t tmpfs none /run/lock
mkdir -p /etc/pve/lxc /var/lib/lxc/250/rootfs
cp {tmp}/250.conf /etc/pve/lxc/250.conf
set +e
{rackwell} adopt pve1 250 -i {site} --json > {tmp}/adopt.json
cp /etc/pve/lxc/250.conf {tmp}/after.conf
printf '\\nlxc.prlimit.nofile: 1024\\n' >> /etc/pve/lxc/250.conf
sed -i s/,firewall=1// /etc/pve/lxc/250.conf
{rackwell} drift alt-01 -i {site} --json > {tmp}/drift.json
exit 0
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What both commands told, and the container's file after the first of them."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounts need root and unshare")
    site, work, tools = tmp_path / "site", tmp_path / "work", tmp_path / "bin"
    for folder in (site / "group_vars", site / "host_vars", work, tools):
        folder.mkdir(parents=True)
    for name, text in SITE.items():
        (site / name).write_text(text.format(site=site, python=sys.executable))
    for name, text in TOOLS.items():
        (tools / name).write_text("#!/bin/sh\n" + text.format(site=site, pve=tmp_path / "pve") + "\n")
        (tools / name).chmod(0o755)
    (tmp_path / "250.conf").write_text(CONF)
    program = f'{sys.executable} -c "from rackwell.cli.main import run; run()"'
    script = SCRIPT.format(tmp=tmp_path, site=site, work=work, rackwell=program)
    _stand_ins(tmp_path / "pve")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"this machine does not let mount: {done.stderr[-200:]}")
    found = {name: json.loads((tmp_path / f"{name}.json").read_text() or "{}") for name in ("adopt", "drift")}
    return {**found, "conf": (tmp_path / "after.conf").read_text(), "site": site, "stderr": done.stderr}


def _stand_ins(place: Path) -> None:
    """The laboratory's tools, with the schema that they look for beside them."""
    shutil.copytree(PVE, place, ignore=shutil.ignore_patterns("__pycache__"))
    program = "import json, sys; sys.path.insert(0, sys.argv[1]); from labpve import extract_schema; "
    program += "open(sys.argv[1] + '/api_schema.json', 'w').write(json.dumps(extract_schema.extract()))"
    subprocess.run([sys.executable, "-c", program, str(place / "lib")], check=True)


def test_a_container_is_declared_and_a_run_of_the_role_changes_nothing(told: dict[str, Any]) -> None:
    result = told["adopt"].get("result") or {}
    assert result.get("proved") is True, told["stderr"]
    assert told["conf"] == CONF
    assert result["drift"]["counts"] == {"error": 0, "warning": 0, "note": 1}
    # what it is for is not declared yet
    assert {problem["code"] for problem in told["adopt"]["problems"]} <= {
        "missing-variable",
        "file-missing",
        "too-few-gpus",
    }
    assert "192.0.2.22 ssh-ed25519" in (told["site"] / "known_hosts").read_text()
    drift = told["drift"]
    assert drift["exit_code"] == 1
    assert [(one["severity"], one["key"], one["where"].rpartition(":")[2]) for one in drift["result"]["drift"][:2]] == [
        ("error", "net0", "9"),
        ("warning", "lxc.prlimit.nofile", "26"),
    ]
