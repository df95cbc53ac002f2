# SPDX-License-Identifier: Apache-2.0
"""Routers in a declaration: who is behind them, and what does not hold between them and the servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.rackwell.gpu.plugins.filter.router_worker import router_worker
from sitemaker import SiteMaker

SECOND = """\
pve_container_host: pve2
pve_container_vmid: 202
pve_container_hostname: glm5-02
pve_container_ip: 192.0.2.22/24
pve_container_mounts:
  - source: /srv/models/toy
    target: /srv/models/toy
"""


@pytest.fixture
def site(tmp_path: Path) -> SiteMaker:
    """Two containers, and a router on a machine of its own in front of both."""
    made = SiteMaker(tmp_path / "site")
    made.edit("hosts.yml", "        glm5-01:\n", "        glm5-01:\n        glm5-02:\n")
    made.edit("hosts.yml", "ansible_host: 192.0.2.10\n", "ansible_host: 192.0.2.10\n        pve2:\n")
    made.add("hosts.yml", "    routers:\n      hosts:\n        front:\n          ansible_host: 192.0.2.9\n")
    made.write("host_vars/glm5-02.yml", SECOND)
    made.edit("profiles/toy.yml", "server:\n", "server:\n  host: 0.0.0.0\n")
    return made


def test_all_containers_are_behind_it(site: SiteMaker) -> None:
    loaded = site.load()
    assert loaded.problems_of() == []
    assert loaded.workers_of(loaded.routers["front"]) == ["glm5-01", "glm5-02"]
    assert [router.name for router in loaded.routers_of("glm5-02")] == ["front"]
    assert loaded.routers["front"].value("router_port") == 30080


def test_only_those_that_it_names(site: SiteMaker) -> None:
    site.write("host_vars/front.yml", "router_workers: [glm5-02]\nrouter_policy: round_robin\n")
    loaded = site.load()
    assert loaded.problems_of() == []
    assert loaded.routers_of("glm5-01") == []


def test_a_container_may_be_the_router_of_all(site: SiteMaker) -> None:
    site.edit("hosts.yml", "        front:\n          ansible_host: 192.0.2.9\n", "        glm5-01:\n")
    loaded = site.load()
    assert loaded.problems_of() == []
    assert [router.name for router in loaded.routers_of("glm5-02")] == ["glm5-01"]


@pytest.mark.parametrize(
    ("variables", "code", "line", "says"),
    [
        ("router_workers: [glm5-01, glm5-20]", "unknown-container", "glm5-20", "glm5-02"),
        ("router_workers: [glm5-01, glm5-01]", "duplicate-worker", "glm5-01, glm5-01", "once"),
        ("router_worker: [glm5-01]", "unknown-variable", "router_worker", "router_workers"),
        ("router_port: 0", "wrong-value", "router_port", ""),
        ("router_port: 29000", "port-taken", "router_port", "another router_port"),
        ("router_policy: fair", "wrong-value", "router_policy", ""),
        ("router_flags: {policy: random}", "wrong-value", "router_flags", ""),
        ("router_drain_timeout: soon", "wrong-value", "router_drain_timeout", ""),
    ],
)
def test_what_does_not_hold_is_told_at_its_place(
    site: SiteMaker, variables: str, code: str, line: str, says: str
) -> None:
    site.write("host_vars/front.yml", f"{variables}\n")
    problems = site.problems()
    assert [problem.code for problem in problems][:1] == [code], problems
    assert problems[0].where == site.line("host_vars/front.yml", line)
    assert says in f"{problems[0].fix} {problems[0].why}"


def test_a_server_on_the_loopback_is_out_of_its_reach(site: SiteMaker) -> None:
    site.edit("profiles/toy.yml", "  host: 0.0.0.0\n", "  host: 127.0.0.1\n")
    problems = site.problems()
    assert {problem.code for problem in problems} == {"router-cannot-reach"}
    assert problems[0].where == site.line("profiles/toy.yml", "host:")
    # it concerns the container as well, which is not provisioned like this
    assert site.load().problems_of("glm5-02")


def test_different_models_do_not_go_behind_one_router(site: SiteMaker) -> None:
    text = (site.root / "profiles/toy.yml").read_text()
    site.write("profiles/other.yml", text.replace("glm-5", "kimi"))
    site.add("host_vars/glm5-02.yml", "inference_server_profile: other\n")
    problems = site.problems()
    assert [problem.code for problem in problems] == ["router-models-differ"]
    assert "glm5-02: kimi" in problems[0].why


def test_keys_that_differ_are_told_and_not_shown(site: SiteMaker) -> None:
    text = (site.root / "profiles/toy.yml").read_text()
    site.write("profiles/other.yml", text.replace("flags:\n", "flags:\n  api-key: hidden-one\n"))
    site.add("host_vars/glm5-02.yml", "inference_server_profile: other\n")
    problems = site.problems()
    assert [problem.code for problem in problems] == ["router-keys-differ"]
    assert "hidden-one" not in str(problems)


def test_its_port_must_not_be_the_servers(site: SiteMaker) -> None:
    site.edit("hosts.yml", "        front:\n          ansible_host: 192.0.2.9\n", "        glm5-01:\n")
    site.add("host_vars/glm5-01.yml", "router_port: 30000\n")
    problems = site.problems()
    assert [problem.code for problem in problems] == ["port-taken"]
    assert "the server of glm5-01" in problems[0].what


@pytest.mark.parametrize(
    ("written", "key"), [("plain-key", "plain-key"), ('"{{ vault_key }}"', "from-the-vault"), (None, "")]
)
def test_a_key_of_the_engine_may_come_from_a_variable(tmp_path: Path, written: str | None, key: str) -> None:
    profile = tmp_path / "p.yml"
    profile.write_text(f"flags:\n  tp-size: 8\n{f'  api-key: {written}' if written else ''}\n")
    variables = {"inference_server_profile_file": str(profile), "vault_key": "from-the-vault"}
    assert router_worker("a", {"a": variables}, str(tmp_path))["api_key"] == key


def test_a_key_of_another_template_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "p.yml"
    profile.write_text("flags:\n  api-key: \"{{ lookup('env', 'KEY') }}\"\n")
    with pytest.raises(AnsibleFilterError, match="one variable"):
        router_worker("a", {"a": {"inference_server_profile_file": str(profile)}}, str(tmp_path))
