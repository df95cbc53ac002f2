# SPDX-License-Identifier: Apache-2.0
"""The role in check mode, by Ansible itself: what it refuses, what it would do, and what it never prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_self_signed import SelfSigned
from api_proxy_place import ALICE, BOB, ENGINE

PREFLIGHT = {"exposed", "route", "method", "injected"}


class Tried:
    """What a play said: the output of each case, and its error."""

    def __init__(self, output: str, told: dict[str, Any]) -> None:
        self.output, self.told = output, told


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Every case in one play."""
    folder = tmp_path_factory.mktemp("role")
    one, other = SelfSigned(str(folder / "one")), SelfSigned(str(folder / "other"))
    for pair in (one, other):
        pair.make(["proxy.example", "192.0.2.21"])
    (folder / "public.key").write_text(Path(one.key).read_text())
    (folder / "public.key").chmod(0o644)
    (folder / "keys").write_text(f"bob {BOB}\n")
    (folder / "keys").chmod(0o600)
    (folder / "open-keys").write_text(f"bob {BOB}\n")
    (folder / "open-keys").chmod(0o644)
    pair = {"api_proxy_certificate": one.certificate, "api_proxy_certificate_key": one.key}
    keys = {"api_proxy_keys": {"alice": ALICE}}
    own = {"api_proxy_certificate_from": "self-signed"}
    cases: dict[str, dict[str, Any]] = {
        "files": {**pair, **keys, "api_proxy_keys_file": f"{folder}/keys", "api_proxy_names": ["proxy.example"]},
        "self": {**own, **keys},
        "container": {**pair, **keys, "api_proxy_certificate_from": "container"},
        "absent": {"api_proxy_state": "absent"},
        "no-keys": {**pair},
        "open-keys": {**pair, "api_proxy_keys_file": f"{folder}/open-keys"},
        "twice": {**pair, "api_proxy_keys": {"bob": ALICE}, "api_proxy_keys_file": f"{folder}/keys"},
        "nasty": {**pair, "api_proxy_keys": {"bob": 'MARKED "; include x; $y 0123456789'}},
        "no-certificate": {**keys},
        "mismatch": {**pair, **keys, "api_proxy_certificate_key": other.key},
        "readable": {**pair, **keys, "api_proxy_certificate_key": f"{folder}/public.key"},
        "name": {**pair, **keys, "api_proxy_names": ["else.example"]},
        "readable-there": {
            **pair,
            **keys,
            "api_proxy_certificate_from": "container",
            "api_proxy_certificate_key": f"{folder}/public.key",
        },
        "exposed": {**own, **keys, "__api_proxy_engine": {"url": "http://192.0.2.21:30000", "api_key": ""}},
        "route": {**own, **keys, "api_proxy_routes": [{"path": "/v1/../x", "methods": ["GET"]}]},
        "method": {**own, **keys, "api_proxy_routes": [{"path": "/v1/models", "methods": ["CONNECT"]}]},
        "injected": {**own, **keys, "api_proxy_address": "0.0.0.0; include /etc/x"},
    }
    tasks = []
    for name, given in cases.items():
        # the whole of it where it goes through, else the one step that refuses
        step = "main" if name in {"self", "absent"} else "preflight" if name in PREFLIGHT else "serve"
        include = {"name": "rackwell.gpu.api_proxy", "tasks_from": step}
        role = {"ansible.builtin.include_role": include, "vars": given}
        failed = {"ansible.builtin.set_fact": {"failed_" + name.replace("-", "_"): "{{ ansible_failed_result }}"}}
        tasks.append({"name": f"case {name}", "block": [role], "rescue": [failed]})
    mine = {
        "__api_proxy_root": f"{folder}/etc",
        "__api_proxy_run": f"{folder}/run",
        "__api_proxy_cache": f"{folder}/cache",
        "__api_proxy_drop_in": f"{folder}/systemd/rackwell.conf",
    }
    # the role reads the engine's address and key where the server has them: in its profile
    (folder / "profile.json").write_text(json.dumps({"flags": {"api-key": ENGINE}}))
    there = {"ansible_connection": "local", "inference_server_profile_file": f"{folder}/profile.json"}
    there["pve_container_ip"] = "192.0.2.21/24"
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"glm5-01": there}}}))
    results = {
        "ansible.builtin.copy": {"dest": f"{folder}/told.json", "mode": "0600"},
        "check_mode": False,
        "diff": False,
    }
    results["ansible.builtin.copy"]["content"] = (
        "{{ hostvars[inventory_hostname] | dict2items | selectattr('key', 'match', 'failed_') | items2dict | to_json }}"
    )
    play = {
        "hosts": "glm5-01",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable},
        "tasks": [*tasks, {"name": "keep", **results}],
    }
    (folder / "play.json").write_text(json.dumps([play]))
    (folder / "vars.json").write_text(json.dumps(mine))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.yml"), "--check"]
    done = subprocess.run(
        [*command, "--diff", "-vvv", str(folder / "play.json"), "-e", f"@{folder}/vars.json"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert not (folder / "etc").exists()
    assert not (folder / "systemd").exists()
    return Tried(done.stdout + done.stderr, json.loads((folder / "told.json").read_text()))


@pytest.mark.parametrize("name", ["files", "self", "container", "absent"])
def test_what_holds_is_taken(tried: Tried, name: str) -> None:
    assert f"failed_{name}" not in tried.told


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no-keys", "api-key-invalid"),
        ("open-keys", "secret-readable"),
        ("twice", "api-key-invalid"),
        ("nasty", "api-key-invalid"),
        ("no-certificate", "missing-option"),
        ("mismatch", "certificate-mismatch"),
        ("readable", "secret-readable"),
        ("readable-there", "secret-readable"),
        ("name", "certificate-name"),
    ],
)
def test_what_does_not_is_refused_by_its_code(tried: Tried, name: str, code: str) -> None:
    failed = tried.told["failed_" + name.replace("-", "_")]
    assert failed["rackwell_error"]["code"] == code
    assert failed["rackwell_error"]["what"] in failed["msg"]


@pytest.mark.parametrize("name", sorted(PREFLIGHT))
def test_what_is_declared_wrongly_is_refused_before_anything(tried: Tried, name: str) -> None:
    assert tried.told[f"failed_{name}"]["msg"]


def test_a_self_signed_certificate_is_for_the_container(tried: Tried) -> None:
    assert re.search(r'"names": \[\s*"glm5-01",\s*"192.0.2.21"\s*\]', tried.output)


def test_no_key_is_printed_whatever_is_asked_for(tried: Tried) -> None:
    # the names are, so that one knows what is changed
    assert "key of alice: new" in tried.output
    for secret in (ALICE, BOB, ENGINE, "MARKED"):
        assert secret not in tried.output
        assert secret not in json.dumps(tried.told)
    assert "PRIVATE KEY" not in tried.output
