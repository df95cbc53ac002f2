# SPDX-License-Identifier: Apache-2.0
"""A host's start shows the pinned kernel and the driver that was built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rwlab import booting, files, kernel
from rwlab.paths import SOURCE, HostPaths

KERNELS = ("6.17.13-2-pve", "6.17.4-1-pve")

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("depmod"), reason="needs root and kmod")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[HostPaths, Path]:
    paths, root = HostPaths(tmp_path / "pve1"), tmp_path / "root"
    kernel.prepare(paths, "pve1")
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    monkeypatch.setenv("RACKWELL_LAB_ROOT", str(root))
    return paths, root


def shown(paths: HostPaths) -> tuple[str, str | None]:
    module = paths.kernel / "sys-module/nvidia/version"
    return (paths.kernel / "osrelease").read_text().strip(), module.read_text().strip() if module.exists() else None


def have(root: Path, release: str, version: str) -> None:
    (root / f"usr/src/nvidia-{version}").mkdir(parents=True, exist_ok=True)
    (root / f"usr/src/nvidia-{version}/dkms.conf").write_text("")
    (root / f"lib/modules/{release}/build").mkdir(parents=True, exist_ok=True)
    (root / f"lib/modules/{release}/build/Makefile").write_text("")
    words = [SOURCE / "host/dkms", "install", "-m", "nvidia", "-v", version, "-k", release]
    subprocess.run(words, check=True, capture_output=True)


def pin(root: Path, release: str) -> None:
    (root / "boot").mkdir(exist_ok=True)
    (root / f"boot/vmlinuz-{release}").write_text("")
    subprocess.run([SOURCE / "host/proxmox-boot-tool", "kernel", "pin", release], check=True, capture_output=True)


def test_without_a_pin_the_settings_decide(host: tuple[HostPaths, Path]) -> None:
    paths, root = host
    before = shown(paths)
    booting.boot(paths, root)
    assert shown(paths) == before


def test_the_pinned_kernel_comes_up_with_its_driver(host: tuple[HostPaths, Path]) -> None:
    paths, root = host
    have(root, KERNELS[1], "590.48.01")
    pin(root, KERNELS[1])
    booting.boot(paths, root)
    assert shown(paths) == (KERNELS[1], "590.48.01")
    assert files.read_json(kernel.state_file(paths))["driver_version"] == "590.48.01"


def test_a_kernel_without_module_has_no_driver(host: tuple[HostPaths, Path]) -> None:
    paths, root = host
    have(root, KERNELS[1], "590.48.01")
    pin(root, KERNELS[0])
    booting.boot(paths, root)
    assert shown(paths) == (KERNELS[0], None)


def test_an_unknown_kernel_is_not_pinned(host: tuple[HostPaths, Path]) -> None:
    _, _root = host
    words = [SOURCE / "host/proxmox-boot-tool", "kernel", "pin", "6.99.1-1-pve"]
    refused = subprocess.run(words, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "6.99.1-1-pve" in refused.stderr
