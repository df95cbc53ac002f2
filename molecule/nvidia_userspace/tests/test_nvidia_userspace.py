# SPDX-License-Identifier: Apache-2.0
"""The libraries of one version, and nothing of the system's own touched."""

from __future__ import annotations

import pytest
from testinfra.host import Host

MACHINE = "glm5-01"


@pytest.fixture
def version(host: Host) -> str:
    return host.file("/sys/module/nvidia/version").content_string.strip()


def test_the_linker_finds_the_version_of_the_kernel_module(host: Host, version: str) -> None:
    cached = host.check_output("ldconfig -p")
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        path = next(line.split("=> ")[1] for line in cached.splitlines() if line.strip().startswith(library))
        assert host.check_output("readlink -f %s", path).endswith(version)


def test_nvidia_smi_sees_the_gpus_as_an_unprivileged_user(host: Host) -> None:
    listed = host.check_output("runuser -u nobody -- nvidia-smi -L")
    assert listed.count("UUID: GPU-") == 8


def test_the_installer_is_gone(host: Host) -> None:
    assert host.check_output("find / -xdev -name 'NVIDIA-Linux*.run'") == ""


@pytest.mark.parametrize("path", ["/etc", "/usr", "/usr/bin", "/usr/lib/x86_64-linux-gnu"])
def test_the_system_keeps_its_owners(host: Host, path: str) -> None:
    assert (host.file(path).user, host.file(path).mode) == ("root", 0o755)
