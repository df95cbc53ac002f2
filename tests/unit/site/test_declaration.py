# SPDX-License-Identifier: Apache-2.0
"""Each wrong input of a site: named with its file and line, and nothing else said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sitemaker import SiteMaker, listing

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import inventory


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


def test_the_whole_site_holds(site: SiteMaker) -> None:
    loaded = site.load()
    assert loaded.problems_of() == []
    node = loaded.container("glm5-01")
    assert loaded.host_of(node) == "pve1"
    assert node.address == "192.0.2.21"
    assert node.value("pve_container_memory") == 8192
    assert loaded.profile(node).tensor_parallel == 8
    assert loaded.bench(node).concurrency == [4, 16]


def test_real_ansible_sees_the_same(real_site: SiteMaker) -> None:
    real = inventory.read(real_site.root)
    made = inventory.from_listing(listing(real_site.root), real_site.root)
    assert real.variables == made.variables
    assert {group: real.groups[group] for group in ("all", "pve", "gpu_containers")} == {
        group: made.groups[group] for group in ("all", "pve", "gpu_containers")
    }
    assert real_site.load().problems_of() == []


def test_no_site(tmp_path: Path) -> None:
    maker = SiteMaker(tmp_path / "x")
    maker.remove("hosts.yml")
    assert only(maker.problems()).code == "no-site"


HOST_VARS = "host_vars/glm5-01.yml"
GROUP_VARS = "group_vars/gpu_containers.yml"


@pytest.mark.parametrize(
    ("file", "old", "new", "code", "at", "says"),
    [
        (HOST_VARS, "pve_container_vmid: 201", "pve_container_vmid: twelve", "wrong-value", "vmid", "valid integer"),
        (HOST_VARS, "pve_container_vmid: 201", "pve_container_vmid: 99", "wrong-value", "vmid", "100"),
        (HOST_VARS, "pve_container_vmid: 201", "pve_container_vmid: true", "wrong-value", "vmid", "number"),
        (HOST_VARS, "target: /srv/models/toy", "target: srv/toy", "wrong-value", "target:", "absolute"),
        (HOST_VARS, "source: /srv/models/toy", "source: '/srv/a,mp=/etc'", "wrong-value", "source:", "comma"),
        (HOST_VARS, "target: /srv/models/toy", 'target: "/srv/a\\nb"', "wrong-value", "target:", "line break"),
        (HOST_VARS, "192.0.2.21/24", "192.0.2.21", "wrong-value", "_ip", "192.0.2.21/24"),
        (HOST_VARS, "192.0.2.21/24", "192.0.2.400/24", "wrong-value", "_ip", "192.0.2.400"),
        (HOST_VARS, "gateway: 192.0.2.1", "gateway: 198.51.100.1", "gateway-outside", "_gateway", "198.51.100.1"),
        (HOST_VARS, "pve_container_host: pve1", "pve_container_host: pve2", "unknown-host", "_host:", "pve1"),
        (
            HOST_VARS,
            "pve_container_hostname",
            "pve_container_hostnam",
            "unknown-variable",
            "_hostnam",
            "pve_container_hostname",
        ),
        (HOST_VARS, "target: /srv", "targt: /srv", "unknown-key", "targt", "target"),
        (HOST_VARS, "source: /srv", "source: srv", "wrong-value", "source", "srv"),
        (GROUP_VARS, "{{ driver_version }}", "580.1.2", "driver-mismatch", "nvidia_userspace_version", "595.58.03"),
        (GROUP_VARS, '"{{ driver_version }}"', "595.58", "wrong-value", "nvidia_userspace_version", 'quotes: "595.58"'),
        (GROUP_VARS, "id_ed25519.pub", "nope.pub", "ssh-key-missing", "public_key", "nope.pub"),
        (GROUP_VARS, "id_ed25519.pub", "known_hosts", "ssh-key-wrong", "public_key", ".pub"),
        (GROUP_VARS, "https://drivers.example/", "/nowhere/", "run-file-missing", "run_file", "/nowhere/"),
        (GROUP_VARS, "https://", "ftp://", "run-file-scheme", "run_file", "ftp"),
        (GROUP_VARS, "-595.58.03.run", "-580.10.run", "run-file-version", "run_file", "595.58.03"),
        (GROUP_VARS, '"0000', '"00', "wrong-value", "sha256", "pattern"),
        (
            GROUP_VARS,
            "inference_server_profile: toy",
            "inference_server_profile: toi",
            "file-missing",
            "profile",
            "'toy'",
        ),
        (
            GROUP_VARS,
            "model_weights_path: /srv/models/toy",
            "model_weights_path: /srv/other",
            "weights-mismatch",
            None,
            "/srv/other",
        ),
        ("profiles/toy.yml", "tp-size: 8", "tp-size: 9", "too-few-gpus", "tp-size", "9 GPUs"),
        ("profiles/toy.yml", "tp-size: 8", "tp_size: 8", "wrong-value", "tp_size", "'tp-size'"),
        ("profiles/toy.yml", "tp-size: 8", "model-path: /x", "wrong-value", "model-path", "model.path"),
        ("profiles/toy.yml", "port: 30000", "port: 70000", "wrong-value", "port", "65535"),
        ("profiles/toy.yml", "port: 30000", "prot: 30000", "unknown-key", "prot", "'port'"),
        ("profiles/toy.yml", "  expect: Paris\n", "", "missing-key", "sane", "expect"),
        ("profiles/toy.yml", "served_name: glm-5", "served_name: [a]", "wrong-value", "served_name", "string"),
        ("bench/quick.yml", "concurrency: [4, 16]", "concurrency: []", "wrong-value", "concurrency", "at least 1"),
        ("bench/quick.yml", "concurrency: [4, 16]", "concurrency: [4, 4]", "wrong-value", "concurrency", "once"),
        ("bench/quick.yml", "input_tokens: 128", "input_tokens: 0", "wrong-value", "input_tokens", "1"),
        ("bench/quick.yml", "input_tokens: 128", "inputs_tokens: 128", "unknown-key", "inputs", "input_tokens"),
        ("hosts.yml", "    pve:", "    pev:", None, None, "pve"),
        ("group_vars/all.yml", '/id_ed25519"', '/other"', "ssh-key-missing", "private_key", "other"),
        ("known_hosts", "192.0.2.10", "192.0.2.11", "host-key-missing", None, "192.0.2.10"),
    ],
)
def test_wrong_input(
    site: SiteMaker, file: str, old: str, new: str, code: str | None, at: str | None, says: str
) -> None:
    site.edit(file, old, new)
    problems = site.problems()
    matching = [p for p in problems if code in {None, p.code}]
    assert matching, problems
    problem = matching[0]
    if at is not None:
        assert problem.where == site.line(file, at)
    assert says in " ".join(problem.as_dict().values())
    if code not in {None, "driver-mismatch"}:
        assert len(problems) == 1, problems


def test_a_required_variable_that_is_missing_is_told_at_the_host(site: SiteMaker) -> None:
    site.edit(HOST_VARS, "pve_container_vmid: 201\n", "")
    problem = only(site.problems())
    assert problem.code == "missing-variable"
    assert problem.where == site.line("hosts.yml", "glm5-01:")
    assert "pve_container_vmid" in problem.what
    assert "host_vars/glm5-01.yml" in problem.fix


def test_unknown_variable_of_no_role_is_ansibles_business(site: SiteMaker) -> None:
    site.add(HOST_VARS, "my_own_thing: 1\nproxy: x\n")
    assert site.problems() == []


def test_unknown_variable_one_letter_from_a_role(site: SiteMaker) -> None:
    site.add(HOST_VARS, "pve_conatiner_memory: 1\n")
    problem = only(site.problems())
    assert (problem.code, problem.where) == ("unknown-variable", site.line(HOST_VARS, "pve_conatiner_memory"))
    assert "pve_container_memory" in problem.fix


def test_all_problems_are_collected(site: SiteMaker) -> None:
    site.edit(HOST_VARS, "201", "x")
    site.edit("profiles/toy.yml", "30000", "0")
    site.edit("bench/quick.yml", "128", "-1")
    site.add(GROUP_VARS, "release_biuld: x\n")
    assert sorted(p.code for p in site.problems()) == ["unknown-variable", "wrong-value", "wrong-value", "wrong-value"]


def test_a_group_variable_is_complained_about_once(site: SiteMaker) -> None:
    site.edit("hosts.yml", "        glm5-01:\n", "        glm5-01:\n        glm5-02:\n")
    site.write(
        "host_vars/glm5-02.yml", site.root.joinpath(HOST_VARS).read_text().replace("201", "202").replace(".21", ".22")
    )
    for name in ("glm5-01", "glm5-02"):
        site.add(f"host_vars/{name}.yml", f"pve_container_gpus: [GPU-{name}]\ngpu_probe_gpus: 1\n")
    site.edit("profiles/toy.yml", "tp-size: 8", "tp-size: 1")
    assert site.problems() == []
    site.add(GROUP_VARS, "pve_container_memory: lots\n")
    assert only(site.problems()).where == site.line(GROUP_VARS, "lots")


@pytest.fixture
def two(site: SiteMaker) -> SiteMaker:
    """Two containers on one host, with two GPUs each."""
    site.edit("hosts.yml", "        glm5-01:\n", "        glm5-01:\n        glm5-02:\n")
    site.edit("profiles/toy.yml", "tp-size: 8", "tp-size: 2")
    first = site.root.joinpath(HOST_VARS).read_text()
    site.write(
        "host_vars/glm5-02.yml",
        first.replace("201", "202").replace(".21", ".22") + "pve_container_gpus: [GPU-c, GPU-d]\n",
    )
    site.add(HOST_VARS, "pve_container_gpus: [GPU-a, GPU-b]\n")
    site.add(GROUP_VARS, "gpu_probe_gpus: 2\n")
    assert site.problems() == []
    return site


def test_the_check_must_expect_the_gpus_that_the_container_gets(two: SiteMaker) -> None:
    two.edit(GROUP_VARS, "gpu_probe_gpus: 2", "gpu_probe_gpus: 8")
    found = two.problems()
    assert {(problem.code, problem.where) for problem in found} == {
        ("gpu-count-mismatch", two.line(GROUP_VARS, "gpu_probe_gpus"))
    }
    assert all("gpu_probe_gpus: 2" in problem.fix for problem in found)


def test_duplicate_vmid(two: SiteMaker) -> None:
    two.edit("host_vars/glm5-02.yml", "202", "201")
    problem = only(two.problems())
    assert (problem.code, problem.where) == ("duplicate-vmid", two.line("host_vars/glm5-02.yml", "vmid"))
    assert two.line(HOST_VARS, "vmid") in problem.why


def test_duplicate_address_of_containers_and_of_a_host(two: SiteMaker) -> None:
    two.edit("host_vars/glm5-02.yml", "192.0.2.22", "192.0.2.21")
    assert only(two.problems()).code == "duplicate-address"
    two.edit("host_vars/glm5-02.yml", "192.0.2.21", "192.0.2.10")
    problem = only(two.problems())
    assert problem.code == "duplicate-address"
    assert "pve1" in problem.what


def test_gpu_of_two_containers(two: SiteMaker) -> None:
    two.edit("host_vars/glm5-02.yml", "GPU-c", "gpu-A")
    problem = only(two.problems())
    assert problem.code == "gpu-shared"
    assert two.line("host_vars/glm5-02.yml", "gpus") == problem.where


def test_all_gpus_beside_another_container(two: SiteMaker) -> None:
    two.edit("host_vars/glm5-02.yml", "[GPU-c, GPU-d]", "all")
    problem = only(two.problems())
    assert (problem.code, problem.where) == ("gpu-shared", two.line("host_vars/glm5-02.yml", "gpus"))


def test_problems_of_one_container_leave_the_other_out(two: SiteMaker) -> None:
    two.edit("host_vars/glm5-02.yml", "202", "x")
    loaded = two.load()
    assert loaded.problems_of("glm5-01", "pve1") == []
    assert len(loaded.problems_of("glm5-02", "pve1")) == 1


def test_unknown_container_is_spelt_out(site: SiteMaker) -> None:
    with pytest.raises(RackwellError) as caught:
        site.load().container("glm5-1")
    assert caught.value.exit_code == ExitCode.INVALID
    assert "glm5-01" in caught.value.problems[0].fix


def test_values_left_to_ansible_are_left_alone(site: SiteMaker) -> None:
    site.edit(HOST_VARS, "pve_container_vmid: 201", "pve_container_vmid: \"{{ lookup('file', 'vmid') }}\"")
    site.add(HOST_VARS, "pve_container_memory: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n")
    assert site.problems() == []
    node = site.load().container("glm5-01")
    assert node.value("pve_container_vmid") is None


def test_placeholders_are_named_at_their_place_only(site: SiteMaker) -> None:
    site.edit(HOST_VARS, "192.0.2.21/24", "FILL_IN 192.0.2.21/24")
    problem = only(site.problems())
    assert (problem.code, problem.where) == ("fill-in", site.line(HOST_VARS, "_ip"))
    assert "192.0.2.21/24" in problem.fix


def test_the_winning_place_of_a_variable_is_named(site: SiteMaker) -> None:
    site.add("group_vars/all.yml", "pve_container_memory: none\n")
    site.add(GROUP_VARS, "pve_container_memory: little\n")
    assert only(site.problems()).where == site.line(GROUP_VARS, "little")
    site.add(HOST_VARS, "pve_container_memory: much\n")
    assert only(site.problems()).where == site.line(HOST_VARS, "much")


def test_variables_in_hosts_yml_are_found(site: SiteMaker) -> None:
    site.edit("hosts.yml", "        glm5-01:\n", "        glm5-01:\n          pve_container_swap: -1\n")
    assert only(site.problems()).where == site.line("hosts.yml", "swap")


def test_hashed_host_keys_count(site: SiteMaker, keygen: Callable[[str, Path], str]) -> None:
    keygen("-H", site.root / "known_hosts")
    assert "192.0.2.10" not in (site.root / "known_hosts").read_text()
    assert site.problems() == []


@pytest.mark.parametrize("name", ["hosts.yml", GROUP_VARS, HOST_VARS])
def test_a_duplicate_key_in_any_file(site: SiteMaker, name: str) -> None:
    text = site.root.joinpath(name).read_text()
    first = next(line for line in text.splitlines() if not line.startswith(" "))
    site.add(name, f"{first.partition(':')[0]}: 1\n")
    problem = only(site.problems())
    assert problem.code == "duplicate-key"
    assert problem.where.startswith(str(site.root / name))


def test_ansible_has_a_deadline(real_site: SiteMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(inventory, "tool", lambda _name: str(slow))
    monkeypatch.setattr(inventory, "DEADLINE_S", 0.2)
    problem = only(real_site.problems())
    assert (problem.code, problem.where) == ("timed-out", str(real_site.root / "hosts.yml"))
    assert "ansible-inventory -i" in problem.fix


def test_ansible_refuses_the_inventory(real_site: SiteMaker) -> None:
    real_site.write("hosts.yml", "all:\n  hosts: [a, b]\n")
    problem = only(real_site.problems())
    assert problem.code == "inventory-refused"
    assert "ansible-inventory" in problem.fix
