#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long `rackwell check` takes on a large site.

    python benchmarks/check_site.py [--containers 1000] [--profiles 20] [--builds 10] [--runs 3] [--parts]

Makes a site with one Proxmox host for each container, each container with variables of its own in ``host_vars``, and
the profiles and builds shared out among them; then runs ``rackwell check`` as a process, and prints what each run took,
and the processor's time in it. ``--parts`` tells where the time goes within one process: Ansible's own reading of the
inventory, rackwell's reading and checks, and the lint. Whatever else the machine does is in the first of the two.
"""

from __future__ import annotations

import argparse
import getpass
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvF0o1b7fXh8sT0yKxJm8m4yqf0Q3uXr4z8n1wq2d5e"
ALL = """\
ansible_user: root
ansible_ssh_private_key_file: "{{ inventory_dir }}/id_ed25519"
ansible_ssh_common_args: -o UserKnownHostsFile={{ inventory_dir }}/known_hosts -o StrictHostKeyChecking=yes
driver_version: "595.58.03"
"""
PVE = """\
pve_host_driver_version: "{{ driver_version }}"
pve_host_gpus: 8
"""
CONTAINERS = """\
ansible_host: "{{ pve_container_ip | split('/') | first }}"
pve_container_template: local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst
pve_container_ssh_public_key_file: "{{ inventory_dir }}/id_ed25519.pub"
nvidia_userspace_version: "{{ driver_version }}"
nvidia_userspace_run_file: https://drivers.example/NVIDIA-Linux-x86_64-595.58.03.run
nvidia_userspace_sha256: "0000000000000000000000000000000000000000000000000000000000000000"
model_weights_path: /srv/models/GLM-5-NVFP4
gpu_probe_gpus: 8
gpu_probe_environment:
  NCCL_P2P_LEVEL: SYS
bench_client_profile: quick
"""
PROFILE = """\
model: {{path: /srv/models/GLM-5-NVFP4, served_name: glm-5}}
server: {{host: 127.0.0.1, port: {port}}}
flags:
  tp-size: 8
  quantization: modelopt_fp4
  moe-runner-backend: flashinfer_cutlass
  attention-backend: flashinfer
  kv-cache-dtype: bf16
  disable-shared-experts-fusion: true
  disable-custom-all-reduce: true
  mem-fraction-static: 0.85
  max-running-requests: {requests}
  enable-metrics: true
  watchdog-timeout: 1200
environment: {{HF_HUB_OFFLINE: "1", NCCL_P2P_LEVEL: SYS, NCCL_MIN_NCHANNELS: "8", SGLANG_ENABLE_JIT_DEEPGEMM: "0"}}
limits: {{ready_timeout: 5400}}
sane: {{prompt: The capital of France is, expect: Paris}}
"""
BUILD = """\
python: "3.11"
sources:
  sglang: {{version: {sglang}}}
  flashinfer-python: {{version: {flashinfer}}}
dependencies: declared
requirements: ["numpy==2.3.5"]
"""
PAIRS = (
    ("0.5.9", "0.6.3"),
    ("0.5.10.post1", "0.6.7.post3"),
    ("0.5.11", "0.6.8.post1"),
    ("0.5.12.post1", "0.6.11.post1"),
)
T = TypeVar("T")


def make(site: Path, containers: int, profiles: int, builds: int) -> None:
    """Write the site."""
    for folder in ("group_vars", "host_vars", "profiles", "builds", "bench"):
        (site / folder).mkdir(parents=True, exist_ok=True)
    hosts = [f"        pve{n}: {{ansible_host: 10.{n >> 8}.{n & 255}.1}}" for n in range(containers)]
    guests = [f"        gpu{n}:" for n in range(containers)]
    lines = ["all:", "  children:", "    pve:", "      hosts:", *hosts, "    gpu_containers:", "      hosts:", *guests]
    known = [f"10.{n >> 8}.{n & 255}.1 {KEY}" for n in range(containers)]
    files = {
        "hosts.yml": "\n".join(lines) + "\n",
        "group_vars/all.yml": ALL,
        "group_vars/pve.yml": PVE,
        "group_vars/gpu_containers.yml": CONTAINERS,
        "bench/quick.yml": "concurrency: [4, 16]\ninput_tokens: 128\noutput_tokens: 64\n",
        "known_hosts": "\n".join(known) + "\n",
        "id_ed25519": "a private key\n",
        "id_ed25519.pub": f"{KEY} test\n",
    }
    for n in range(profiles):
        files[f"profiles/p{n}.yml"] = PROFILE.format(port=30000 + n, requests=64 + n)
    for n in range(builds):
        sglang, flashinfer = PAIRS[n % len(PAIRS)]
        files[f"builds/b{n}.yml"] = BUILD.format(sglang=sglang, flashinfer=flashinfer)
    for n in range(containers):
        files[f"host_vars/gpu{n}.yml"] = (
            f"pve_container_host: pve{n}\npve_container_vmid: {200 + n}\npve_container_hostname: gpu{n}\n"
            f"pve_container_ip: 10.{n >> 8}.{n & 255}.2/24\npve_container_gateway: 10.{n >> 8}.{n & 255}.1\n"
            f"release_build: b{n % builds}\ninference_server_profile: p{n % profiles}\n"
        )
    for name, text in files.items():
        (site / name).write_text(text, encoding="utf-8")


def timed(what: str, work: Callable[[], T]) -> T:
    """Do `work` and print how long it took."""
    began = time.perf_counter()
    result = work()
    print(f"  {what:<44}{time.perf_counter() - began:6.2f} s")
    return result


def parts(site: Path) -> None:
    """Where the time goes."""
    from rackwell.provision import declared
    from rackwell.site import declaration, inventory
    from rackwell.site.checks import Checker

    sources, _ = timed("rackwell reads the files", lambda: inventory.read_sources(site))
    read = timed("ansible-inventory, and templates", lambda: inventory.read(site))
    if sources is not None:
        timed("checks of hosts and containers", Checker(site, read, sources).run)
    loaded = declaration.load(site)
    checked = timed("builds, patches, and the lint", lambda: declared.check(loaded))
    print(f"  {len(checked.problems)} problems, {len(checked.findings)} findings")


def main() -> None:
    """Make the site, check it, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--containers", type=int, default=1000)
    parser.add_argument("--profiles", type=int, default=20)
    parser.add_argument("--builds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the site is made; a temporary one otherwise")
    parser.add_argument("--parts", action="store_true", help="also tell where the time goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=f"rackwell-check-{getpass.getuser()}-") as scratch:
        site = arguments.folder or Path(scratch) / "site"
        make(site, arguments.containers, arguments.profiles, arguments.builds)
        print(f"{arguments.containers} containers, {arguments.profiles} profiles, {arguments.builds} builds")
        took: list[float] = []
        spent = 0.0
        for _ in range(arguments.runs):
            began = time.perf_counter()
            command = [sys.executable, "-c", "from rackwell.cli.main import run; run()", "check", "-i", str(site)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
            took.append(time.perf_counter() - began)
            if done.returncode != 0:
                sys.exit(done.stdout + done.stderr)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - spent
            spent += cpu
            print(f"  rackwell check: {took[-1]:.2f} s, {cpu:.2f} s of the processor")
        print(f"  median of {len(took)}: {statistics.median(took):.2f} s")
        print(f"  load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
        if arguments.parts:
            parts(site)


if __name__ == "__main__":
    main()
