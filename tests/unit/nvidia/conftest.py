# SPDX-License-Identifier: Apache-2.0
"""The driver is built once; each test has a machine of its own."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from labmachine import GPU, OTHER, VERSION, Driver, Machine, build, free_major


@pytest.fixture(scope="session")
def built() -> Iterator[Path]:
    """Where the drivers are built: readable for all, unlike pytest's own directories. RACKWELL_TEST_DRIVERS names a
    directory that keeps them, which spares a minute of compiling."""
    if kept := os.environ.get("RACKWELL_TEST_DRIVERS"):
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="rackwell-driver-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def driver(built: Path) -> Driver:
    return build(built, VERSION)


@pytest.fixture(scope="session")
def other_driver(built: Path) -> Driver:
    return build(built, OTHER)


@pytest.fixture
def machine(driver: Driver) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
    with tempfile.TemporaryDirectory(prefix="rackwell-machine-") as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("dev/shm", "proc/driver/nvidia", "sys/module/nvidia", "sys/module/nvidia_uvm/parameters"):
            (root / folder).mkdir(parents=True)
        shutil.copy(GPU / "machine.json", root / "proc/driver/nvidia/rackwell-lab-gpus.json")
        (root / "sys/module/nvidia/version").write_text(VERSION + "\n")
        (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("Y\n")
        nodes = {"nvidiactl": (195, 255), "nvidia-uvm": (free_major(), 0)}
        nodes |= {f"nvidia{minor}": (195, minor) for minor in range(8)}
        for node, numbers in nodes.items():
            os.mknod(root / "dev" / node, 0o666 | stat.S_IFCHR, os.makedev(*numbers))
            (root / "dev" / node).chmod(0o666)
        yield Machine(root, driver)
