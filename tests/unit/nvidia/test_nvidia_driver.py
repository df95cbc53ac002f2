# SPDX-License-Identifier: Apache-2.0
"""What the collection reads from a container about the driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import nvidia_driver

VERSION = "595.58.03"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (LIBRARIES, "usr/bin", "proc/self", "proc/driver/nvidia", "sys/module/nvidia"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def lay(root: Path, version: str = VERSION, folder: str = LIBRARIES, links: bool = True) -> None:
    """The files of a driver."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        (root / folder / f"{name}.so.{version}").write_text(version)
        link = root / folder / f"{name}.so.1"
        if links:
            link.unlink(missing_ok=True)
            link.symlink_to(f"{name}.so.{version}")
    smi = root / "usr/bin/nvidia-smi"
    smi.write_text("")
    smi.chmod(0o755)


@pytest.mark.parametrize(
    ("module", "proc", "version"),
    [
        ("595.58.03\n", "", "595.58.03"),
        (
            "",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build  \nGCC version\n",
            "590.48.01",
        ),
        (
            "",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n",
            "550.54.14",
        ),
        ("", "", ""),
    ],
)
def test_kernel_module_version(root: Path, module: str, proc: str, version: str) -> None:
    if module:
        (root / "sys/module/nvidia/version").write_text(module)
    if proc:
        (root / "proc/driver/nvidia/version").write_text(proc)
    assert nvidia_driver.kernel_module_version(str(root)) == version


def test_nothing_there(root: Path) -> None:
    found = nvidia_driver.look(VERSION, str(root))
    assert not found.complete(VERSION)
    assert found.version == ""
    assert found.describe() == "libcuda.so.1: absent\nlibnvidia-ml.so.1: absent\nnvidia-smi: absent\n"


@pytest.mark.parametrize("folder", [LIBRARIES, "usr/lib64", "usr/lib"])
def test_complete(root: Path, folder: str) -> None:
    lay(root, folder=folder)
    found = nvidia_driver.look(VERSION, str(root))
    assert found.complete(VERSION)
    assert found.version == VERSION
    assert not found.complete("595.58.04")
    assert nvidia_driver.leftovers(found, VERSION) == []


@pytest.mark.parametrize(
    "missing", [f"{LIBRARIES}/libcuda.so.1", f"{LIBRARIES}/libnvidia-ml.so.{VERSION}", "usr/bin/nvidia-smi"]
)
def test_cut_off_halfway(root: Path, missing: str) -> None:
    lay(root)
    (root / missing).unlink()
    assert not nvidia_driver.look(VERSION, str(root)).complete(VERSION)


def test_the_link_decides_not_the_file(root: Path) -> None:
    lay(root)
    lay(root, "535.183.01")
    found = nvidia_driver.look(VERSION, str(root))
    assert not found.complete(VERSION)
    assert found.version == "535.183.01"


def test_a_link_out_of_the_directory(root: Path) -> None:
    """As the alternatives of Debian's packages are."""
    lay(root, links=False)
    (root / LIBRARIES / "nvidia").mkdir()
    for name in ("libcuda", "libnvidia-ml"):
        (root / LIBRARIES / f"nvidia/{name}.so.535.183.01").write_text("")
        (root / LIBRARIES / f"{name}.so.1").symlink_to(f"nvidia/{name}.so.535.183.01")
    assert nvidia_driver.look(VERSION, str(root)).version == "535.183.01"


def test_leftovers_and_their_packages(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(root)
    (root / LIBRARIES / "libcuda.so.535.183.01").write_text("")
    (root / LIBRARIES / "libGLX_nvidia.so.535.183.01").write_text("")
    (root / LIBRARIES / "libnvidia-egl-gbm.so.1.1.2").write_text("no driver version")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dpkg-query").write_text(
        "#!/bin/sh\necho 'libcuda1:amd64: /usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01'\n"
        "echo 'diversion by x from: /usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.535.183.01'\n"
        "echo 'dpkg-query: no path found' >&2\nexit 1\n"
    )
    (tools / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    found = nvidia_driver.look(VERSION, str(root))
    assert found.complete(VERSION)
    assert [item.as_dict() for item in nvidia_driver.leftovers(found, VERSION)] == [
        {"path": f"/{LIBRARIES}/libGLX_nvidia.so.535.183.01", "version": "535.183.01", "package": ""},
        {"path": f"/{LIBRARIES}/libcuda.so.535.183.01", "version": "535.183.01", "package": "libcuda1:amd64"},
    ]


def mount(root: Path, *paths: str) -> None:
    lines = [f"31 1 0:27 / {path} ro,relatime - ext4 /dev/x ro" for path in ("/", "/proc", *paths)]
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")


def test_mounted_from_outside(root: Path) -> None:
    lay(root)
    mount(root, f"/{LIBRARIES}/libcuda.so.{VERSION}", "/usr/bin/nvidia-smi", "/srv/a\\040b")
    found = nvidia_driver.look(VERSION, str(root))
    assert found.complete(VERSION)
    assert found.mounted == ("/usr/bin/nvidia-smi", f"/{LIBRARIES}/libcuda.so.{VERSION}")
    assert "/srv/a b" in nvidia_driver.mount_points(str(root))


@pytest.mark.parametrize(
    ("content", "complete"), [(b"version=595.58.03\n", True), (b"version=595.58.04\n", False), (b"", False)]
)
def test_a_library_mounted_under_its_short_name(root: Path, content: bytes, complete: bool) -> None:
    lay(root)
    for name in ("libcuda", "libnvidia-ml"):
        (root / LIBRARIES / f"{name}.so.{VERSION}").unlink()
        (root / LIBRARIES / f"{name}.so.1").unlink()
        (root / LIBRARIES / f"{name}.so.1").write_bytes(content)
    found = nvidia_driver.look(VERSION, str(root))
    assert found.complete(VERSION) is complete
    assert found.version == (VERSION if complete else "?")
