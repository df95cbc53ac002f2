# SPDX-License-Identifier: Apache-2.0
"""Wrong input and broken machines: a clear error, the right exit code, and what ran before goes on running."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serving, inside, interrupt_at, more, rackwell

Edit = Callable[..., Path]
HOST_VARS = "host_vars/glm5-02.yml"
PROFILE = "profiles/glm5-lab.yml"


@pytest.fixture
def untouched(serving: Callable[[], Serving]) -> Iterator[None]:
    """The very process that served before serves after: same start, same release, same unit."""
    before = serving()
    yield
    assert serving() == before


@pytest.fixture
def brought_back(serving: Callable[[], Serving]) -> Iterator[None]:
    """The server was restarted, and is the old one: same release, same unit."""
    before = serving()
    yield
    after = serving()
    assert (after.release, after.unit) == (before.release, before.unit)


class TestDeclaration:
    """Found without contacting a machine: exit 2, with file and line."""

    @pytest.mark.parametrize(
        ("keys", "hint"),
        [
            ({"pve_container_memmory": 4096}, "pve_container_memory"),
            ({"pve_container_vmid": "two hundred"}, "pve_container_vmid"),
        ],
        ids=["unknown key", "wrong type"],
    )
    def test_one_key(self, edited: Edit, container: str, keys: dict[str, Any], hint: str) -> None:
        copy = edited({HOST_VARS: keys})
        line = 1 + next(
            n for n, text in enumerate((copy / HOST_VARS).read_text().splitlines()) if text.startswith(next(iter(keys)))
        )
        ended = rackwell("provision", container, "-i", copy)
        assert ended.code == 2
        problem = ended.json["problems"][0]
        assert problem["where"] == f"{copy / HOST_VARS}:{line}"
        assert hint in problem["what"] + problem["why"] + problem["fix"]

    def test_user_space_of_another_version_than_the_hosts(self, edited: Edit, container: str) -> None:
        ended = rackwell("provision", container, "-i", edited({HOST_VARS: {"nvidia_userspace_version": "590.48.01"}}))
        assert ended.code == 2
        assert "590.48.01" in str(ended.json["problems"])

    def test_a_patch_that_does_not_apply(self, edited: Edit, container: str) -> None:
        copy = edited({})
        patch = next((copy / "builds/patches/lab-engine").glob("*.patch"))
        lines = patch.read_text().splitlines(keepends=True)
        broken = next(
            n
            for n, text in enumerate(lines)
            if text.startswith(("-", " ")) and not text.startswith("---") and text.strip(" -\n")
        )
        lines[broken] = lines[broken][0] + "a line that the source does not have\n"
        patch.write_text("".join(lines))
        ended = rackwell("provision", container, "-i", copy)
        assert ended.code == 2
        assert "lab-engine" in str(ended.json["problems"])
        assert "sglang/launch_server.py" in str(ended.json["problems"])


class TestMachine:
    """Found by asking the machines, before anything is changed: exit 1."""

    pytestmark = pytest.mark.usefixtures("untouched")

    def test_a_vmid_that_is_somebody_elses(self, edited: Edit, container: str, host: str) -> None:
        inside(
            host,
            "pct",
            "create",
            "900",
            "local:vztmpl/debian-12-lab_amd64.tar.zst",
            "--hostname",
            "theirs",
            "--rootfs",
            "local:1",
        )
        try:
            theirs = inside(host, "cat", "/etc/pve/lxc/900.conf")
            ended = rackwell("provision", container, "-i", edited({HOST_VARS: {"pve_container_vmid": 900}}))
            assert (ended.code, ended.codes[0]) == (1, "vmid-foreign")
            assert inside(host, "cat", "/etc/pve/lxc/900.conf") == theirs
        finally:
            inside(host, "pct", "destroy", "900")

    def test_a_device_node_that_is_missing_on_the_host(
        self, site: Path, container: str, faults: Callable[..., str]
    ) -> None:
        faults("node", "nvidia3=false")
        ended = rackwell("provision", container, "-i", site)
        assert (ended.code, ended.codes[0]) == (1, "device-missing")
        assert "nvidia-modprobe" in ended.json["problems"][0]["fix"]

    def test_a_host_with_another_driver(self, site: Path, container: str, faults: Callable[..., str]) -> None:
        faults("kernel", "version=590.48.01")
        ended = rackwell("provision", container, "-i", site)
        assert (ended.code, ended.codes[0]) == (1, "driver-version")
        told = ended.json["problems"][0]["what"] + ended.json["problems"][0]["why"]
        assert "590.48.01" in told
        assert "595.58.03" in told

    def test_a_restart_without_consent(self, edited: Edit, container: str, host: str) -> None:
        before = inside(host, "cat", "/etc/pve/lxc/202.conf")
        ended = rackwell(
            "provision",
            container,
            "-i",
            edited({HOST_VARS: {"pve_container_features": {"nesting": True, "fuse": True}}}),
        )
        assert (ended.code, ended.codes[0]) == (4, "restart-needed")
        assert "pve_container_allow_restart" in ended.json["problems"][0]["fix"]
        assert inside(host, "cat", "/etc/pve/lxc/202.conf") == before

    @more
    def test_a_port_that_is_taken(self, edited: Edit, container: str) -> None:
        inside(
            container,
            "systemd-run",
            "-q",
            "--unit=squatter",
            "python3",
            "-m",
            "http.server",
            "30001",
            "--bind",
            "127.0.0.1",
        )
        try:
            ended = rackwell(
                "provision", container, "-i", edited({PROFILE: {"server": {"host": "127.0.0.1", "port": 30001}}})
            )
            assert (ended.code, ended.codes[0]) == (1, "port-taken")
            assert "http.server" in str(ended.json["problems"][0])
        finally:
            inside(container, "systemctl", "stop", "squatter")

    def test_no_space_for_the_release(self, site: Path, edited: Edit, container: str) -> None:
        """The blobs of another build do not fit: told in bytes, before anything is sent."""
        before = inside(container, "ls", "/opt/rackwell/releases")
        copy = edited({"builds/lab-313.yml": {"requirements": None}})
        build = copy / "builds/lab-313.yml"
        build.write_text((site / "builds/lab-313.yml").read_text().replace("  - tqdm", "  - pyyaml==6.0.2\n  - tqdm"))
        inside(container, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/opt/rackwell/store")
        try:
            ended = rackwell("provision", container, "-i", copy)
        finally:
            inside(container, "umount", "/opt/rackwell/store")
        assert (ended.code, ended.codes[0]) == (1, "no-space")
        assert inside(container, "ls", "/opt/rackwell/releases") == before


class TestEngine:
    """Found by starting the new server: it is taken back, and the old one is proved to serve. Exit 3."""

    pytestmark = pytest.mark.usefixtures("brought_back")

    @pytest.mark.parametrize(
        ("behaviour", "limits", "code"),
        [
            ('{"faults": {"die_while_loading": true}}', {}, "engine-died"),
            pytest.param('{"faults": {"never_ready": "unhealthy"}}', {"ready_timeout": 10}, "never-ready", marks=more),
            pytest.param('{"faults": {"output": "garbage"}}', {}, "insane-answer", marks=more),
        ],
        ids=["dies while loading", "never gets ready", "answers garbage"],
    )
    def test_a_new_server_that_is_no_good(
        self, edited: Edit, container: str, behaviour: str, limits: dict[str, int], code: str
    ) -> None:
        environment = {"HF_HUB_OFFLINE": "1", "RACKWELL_LAB_ENGINE": behaviour}
        copy = edited(
            {PROFILE: {"environment": environment, "limits": {"ready_timeout": 120, "stop_timeout": 30, **limits}}}
        )
        ended = rackwell("provision", container, "-i", copy)
        assert (ended.code, ended.codes[0]) == (3, code), ended.json["problems"]


class TestInterrupt:
    """Ctrl-C: exit 130, the server goes on, and the next run converges."""

    @pytest.mark.parametrize(
        "marker",
        [
            pytest.param("pve_host", marks=more),
            pytest.param("nvidia_userspace", marks=more),
            pytest.param("release", marks=more),
            "inference_server",
        ],
    )
    def test_at_a_step_of_a_run(self, site: Path, container: str, marker: str, serving: Callable[[], Serving]) -> None:
        before = serving()
        code, told = interrupt_at(marker, "provision", container, "-i", site)
        assert code == 130, told
        assert serving() == before
        again = rackwell("provision", container, "-i", site, "--no-bench")
        assert again.code == 0, again.json["problems"]
        assert again.result["changed"] == 0

    def test_a_second_run_at_the_same_time_is_told_who_holds_the_container(self, site: Path, container: str) -> None:
        command = [
            sys.executable,
            "-c",
            "from rackwell.cli.main import run; run()",
            "provision",
            container,
            "-i",
            str(site),
            "--no-bench",
        ]
        first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert first.stderr is not None
        for line in first.stderr:
            if "holds" in line or "declaration" in line:
                break
        second = rackwell("provision", container, "-i", site)
        first.communicate()
        assert (second.code, second.codes[0]) == (5, "locked")
        assert str(first.pid) in str(second.json["problems"][0])
        assert first.returncode == 0
