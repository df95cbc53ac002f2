# SPDX-License-Identifier: Apache-2.0
"""What the acceptance suite is told, how it is reached, and what its verdicts come to. It runs in tests/e2e."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_rig import Rig, make_rig

from rackwell.acceptance import expected, reaching, result, running
from rackwell.acceptance.result import Accepted, Check
from rackwell.ansible import ssh
from rackwell.ansible.ssh import Said
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import accepting
from rackwell.site import declaration

KEY, TOKEN = "sk-marked-0123456789abcdef", "hf_marked0123456789"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    return make_rig(tmp_path, monkeypatch, capsys)


@pytest.fixture
def told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``lost``: what ssh says, by address; ``wanted``: what the suite was told. All that it looks at is well."""
    told: dict[str, Any] = {"lost": {}, "wanted": None}

    def ask(connection: ssh.Connection, remote: list[str], **_: Any) -> Said:
        error = told["lost"].get(connection.host)
        return Said(ssh.LOST, "", error) if error else Said(0, "0\n", "")

    def run(wanted: Mapping[str, Any], folder: Path) -> Accepted:
        told["wanted"] = wanted
        return Accepted("glm5-01", "pve1", (made("release/owner", result.PASS),), 1.0)

    monkeypatch.setattr(ssh, "ask", ask)
    monkeypatch.setattr(running, "run", run)
    return told


def test_the_suite_uses_nothing_of_what_it_judges() -> None:
    for path in running.SUITE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            own = [name for name in names if name.split(".")[0] in {"rackwell", "ansible_collections", "ansible"}]
            assert all(name.startswith("rackwell.acceptance.suite") for name in own), (path, own)


def test_no_secret_of_the_profile_is_written_down(rig: Rig) -> None:
    profile = rig.site.root / "profiles/toy.yml"
    text = profile.read_text().replace("flags:\n", f"flags:\n  api-key: {KEY}\n")
    profile.write_text(f"{text}environment:\n  HF_TOKEN: {TOKEN}\n  NCCL_P2P_LEVEL: SYS\n")
    site = declaration.load(rig.site.root)
    container = site.container("glm5-01")
    pair = {"host": reaching.machine(site, site.hosts["pve1"]), "container": reaching.machine(site, container)}
    found = expected.expected(site, container, pair)
    assert KEY not in json.dumps(found)
    assert TOKEN not in json.dumps(found)
    assert (found["server"]["secret_flags"], found["server"]["secret_environment"]) == (["api-key"], ["HF_TOKEN"])
    assert found["server"]["environment"] == {"NCCL_P2P_LEVEL": "SYS"}
    assert found["server"]["flags"]["port"] == 30000


def test_no_setting_of_a_site_takes_away_the_check_of_host_keys(rig: Rig) -> None:
    rig.site.write("host_vars/pve1.yml", "ansible_ssh_extra_args: -o StrictHostKeyChecking=no\n")
    site = declaration.load(rig.site.root)
    words = reaching.machine(site, site.hosts["pve1"]).arguments
    assert words.index("StrictHostKeyChecking=yes") < words.index("StrictHostKeyChecking=no")


def test_a_connection_that_needs_ansible_is_told_with_its_line(rig: Rig) -> None:
    rig.site.write("host_vars/pve1.yml", "ansible_user: \"{{ lookup('ansible.builtin.pipe', 'whoami') }}\"\n")
    site = declaration.load(rig.site.root)
    with pytest.raises(RackwellError) as raised:
        reaching.machine(site, site.hosts["pve1"])
    assert raised.value.exit_code == ExitCode.INVALID
    assert raised.value.problems[0].where.endswith("pve1.yml:1")


def test_without_the_extra_it_says_what_to_install(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "testinfra" else found(name))
    envelope = rig.json("verify", "--acceptance")
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, ["extra-missing"])
    assert "rackwell[acceptance]" in envelope["problems"][0]["fix"]


LOST = Problem("ssh-refused", "pve1 is unreachable")


@pytest.mark.parametrize(
    ("checks", "lost", "code", "codes"),
    [
        ([("pass", False), ("not-declared", False)], [], 0, []),
        ([("pass", False), ("fail", False)], [], 1, ["not-accepted"]),
        ([("fail", True), ("fail", False)], [], 4, ["gate-held", "not-accepted"]),
        ([("pass", False), ("unknown", False)], [], 1, ["not-looked-at"]),
        # what did not run proves nothing
        ([("not-declared", False)], [], 1, []),
        ([("pass", False), ("unknown", False)], [LOST], 6, ["ssh-refused"]),
    ],
)
def test_verdicts_and_exit_codes(
    checks: list[tuple[str, bool]], lost: list[Problem], code: int, codes: list[str]
) -> None:
    found = Accepted("glm5-01", "pve1", tuple(made("a/b", *check) for check in checks), 1.0)
    assert accepting.judged([found], lost)[1] == code
    assert [problem.code for problem in accepting.judged([found], lost)[0]] == codes


def made(item: str, verdict: str, held: bool = False) -> Check:
    return Check(item, "it is so", "glm5-01", verdict, 0.1, "this", "that", "do it", "", held)


def test_a_host_that_is_not_reached_is_told_and_left_out(rig: Rig, told: dict[str, Any]) -> None:
    told["lost"] = {"192.0.2.10": "ssh: connect to host 192.0.2.10 port 22: Connection refused"}
    envelope = rig.json("verify", "--acceptance")
    assert (envelope["exit_code"], rig.codes(envelope)) == (6, ["ssh-refused"])
    assert envelope["schema"] == "rackwell.acceptance/1"
    (one,) = envelope["result"]["containers"]
    assert {"container", "host", "verdict", "counts", "seconds", "checks", "junit", "report", "log"} <= set(one)
    assert Path(envelope["result"]["report"]).is_file()
    assert [machine["down"] != "" for machine in told["wanted"]["machines"].values()] == [True, False]


def test_usage(rig: Rig) -> None:
    assert rig.at_site("verify") == 2
    assert rig.at_site("verify", "glm5-01", "--acceptance", "--quick") == 2


def test_a_suite_that_ends_badly_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_command", lambda junit: ["sh", "-c", "echo INTERNALERROR; exit 3"])
    done = running.run({"container": "c", "host": "h"}, tmp_path)
    assert (done.verdict, done.broken) == ("unknown", "pytest ended with 3: INTERNALERROR")
