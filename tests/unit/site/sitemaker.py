# SPDX-License-Identifier: Apache-2.0
"""A small whole site to break in one place at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackwell.errors import Problem, RackwellError
from rackwell.site import declaration, yamlsource

SITE = {
    "hosts.yml": """\
all:
  children:
    pve:
      hosts:
        pve1:
          ansible_host: 192.0.2.10
    gpu_containers:
      hosts:
        glm5-01:
""",
    "group_vars/all.yml": """\
ansible_user: root
ansible_ssh_private_key_file: "{{ inventory_dir }}/id_ed25519"
ansible_ssh_common_args: -o UserKnownHostsFile={{ inventory_dir }}/known_hosts -o StrictHostKeyChecking=yes
driver_version: "595.58.03"
""",
    "group_vars/pve.yml": """\
pve_host_driver_version: "{{ driver_version }}"
pve_host_gpus: 8
""",
    "group_vars/gpu_containers.yml": """\
ansible_host: "{{ pve_container_ip | split('/') | first }}"
pve_container_template: local:vztmpl/debian-12.tar.zst
pve_container_ssh_public_key_file: "{{ inventory_dir }}/id_ed25519.pub"
nvidia_userspace_version: "{{ driver_version }}"
nvidia_userspace_run_file: https://drivers.example/NVIDIA-Linux-x86_64-595.58.03.run
nvidia_userspace_sha256: "0000000000000000000000000000000000000000000000000000000000000000"
release_build: server
inference_server_profile: toy
model_weights_path: /srv/models/toy
""",
    "host_vars/glm5-01.yml": """\
pve_container_host: pve1
pve_container_vmid: 201
pve_container_hostname: glm5-01
pve_container_ip: 192.0.2.21/24
pve_container_gateway: 192.0.2.1
pve_container_mounts:
  - source: /srv/models/toy
    target: /srv/models/toy
""",
    "profiles/toy.yml": """\
model:
  path: /srv/models/toy
  served_name: glm-5
server:
  port: 30000
flags:
  tp-size: 8
  moe-runner-backend: flashinfer_cutlass
sane:
  prompt: The capital of France is
  expect: Paris
""",
    "bench/quick.yml": """\
concurrency: [4, 16]
input_tokens: 128
output_tokens: 64
""",
    "builds/server.yml": """\
python: "3.11"
sources:
  sglang:
    version: 0.5.9
""",
    "id_ed25519": "a private key",
    "id_ed25519.pub": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e test\n",
    "known_hosts": "192.0.2.10 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e\n",
}


class SiteMaker:
    """Writes the site with edits, and reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in SITE.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in {name}"
        self.write(name, text.replace(old, new))

    def add(self, name: str, text: str) -> None:
        self.write(name, (self.root / name).read_text(encoding="utf-8") + text)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def load(self) -> declaration.Site:
        return declaration.load(self.root)

    def problems(self) -> list[Problem]:
        try:
            return self.load().problems_of()
        except RackwellError as error:
            return error.problems

    def line(self, name: str, text: str) -> str:
        """``file:line`` of the first line of a file that holds `text`."""
        for number, line in enumerate((self.root / name).read_text(encoding="utf-8").splitlines(), 1):
            if text in line:
                return f"{self.root / name}:{number}"
        raise AssertionError(f"{text!r} is not in {name}")


def listing(site: Path) -> dict[str, Any]:
    """What ``ansible-inventory --list`` prints for sites like `SITE`, made here: it takes a second, this nothing."""
    hosts = yamlsource.load(site / "hosts.yml").data
    result: dict[str, Any] = {"_meta": {"hostvars": {}}}
    hostvars = result["_meta"]["hostvars"]

    def variables(kind: str, name: str) -> dict[str, Any]:
        path = site / kind / f"{name}.yml"
        return dict(yamlsource.load(path).data or {}) if path.exists() else {}

    def walk(group: str, entry: dict[str, Any] | None, inherited: dict[str, Any]) -> None:
        entry = entry or {}
        mine = {**inherited, **(entry.get("vars") or {}), **variables("group_vars", group)}
        result[group] = {"hosts": list(entry.get("hosts") or {}), "children": list(entry.get("children") or {})}
        for host, own in (entry.get("hosts") or {}).items():
            hostvars[host] = {**hostvars.get(host, {}), **mine, **(own or {}), **variables("host_vars", host)}
        for child, inner in (entry.get("children") or {}).items():
            walk(child, inner, mine)

    walk("all", hosts["all"], {})
    return result
