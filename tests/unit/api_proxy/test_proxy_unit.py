# SPDX-License-Identifier: Apache-2.0
"""The drop-in of nginx.service, as Ansible writes it, by systemd's own judgement."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROLE = Path(__file__).parents[3] / "roles" / "api_proxy"
# what of Debian's own unit stays
DEBIAN = """\
[Unit]
Description=nginx
[Service]
Type=forking
ExecStartPre=/usr/sbin/nginx -t
ExecStart=/usr/sbin/nginx
ExecStop=-/sbin/start-stop-daemon --quiet --stop
"""


@pytest.fixture(scope="module")
def drop_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("unit")
    tasks = [{"ansible.builtin.include_role": {"name": "rackwell.gpu.api_proxy", "tasks_from": "install"}}]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    (folder / "play.json").write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "--check", "--diff"]
    given = f"__api_proxy_drop_in={folder}/none/drop-in.conf ansible_python_interpreter={sys.executable}"
    done = subprocess.run(
        [*command, str(folder / "play.json"), "-e", given],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    added = "".join(line[1:] + "\n" for line in done.stdout.splitlines() if re.match(r"\+(?!\+\+)", line))
    return added[added.index("# Written by rackwell") :]


def test_it_holds_by_systemd_and_scores(drop_in: str, tmp_path: Path) -> None:
    unit = tmp_path / "nginx.service"
    unit.write_text(DEBIAN + drop_in)
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True)
    # the program need not be here
    told = [line for line in said.stderr.splitlines() if str(unit.name) in line and "not executable" not in line]
    assert told == []
    score = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(unit)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert score.returncode == 0, score.stdout[-200:] + score.stderr


def test_nothing_of_debians_own_configuration_runs(drop_in: str) -> None:
    lines = drop_in.splitlines()
    for name in ("ExecStart", "ExecStartPre", "ExecStop", "ExecReload"):
        assert lines.count(f"{name}=") == 1, name
        first = next(line for line in lines if line.startswith(f"{name}="))
        assert first == f"{name}="
    programs = [line for line in lines if re.match(r"Exec\w+=/usr/sbin/nginx", line)]
    assert len(programs) == 3
    assert all("-c /etc/rackwell/api-proxy/live/nginx.conf" in line for line in programs)
    digest = re.search(r"ExecStartPre=/bin/sh -c 'echo ([0-9a-f]{64}) >/run/rackwell-api-proxy/unit'", drop_in)
    assert digest is not None
    assert (ROLE / "templates/drop-in.conf.j2").read_text().splitlines()[-1] in lines
