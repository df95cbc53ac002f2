# SPDX-License-Identifier: Apache-2.0
"""The laboratory's driver, and machines whose /dev, /proc and /sys are plain directories."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

GPU = Path(__file__).resolve().parents[3] / "tests" / "lab" / "gpu"
VERSION = "595.58.03"
OTHER = "590.48.01"
NOBODY = 65534

# What every snippet of a test starts with: the CUDA driver API and NVML by ctypes, and one line of JSON as its answer.
PRELUDE = """
import ctypes, json, os, sys
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
def cuda():
    global lib
    lib = ctypes.CDLL("libcuda.so.1")
    return lib
def nvml():
    global ml
    ml = ctypes.CDLL("libnvidia-ml.so.1")
    return ml
def ok(code):
    assert code == 0, code
def count():
    n = c_int(-1); ok(lib.cuDeviceGetCount(byref(n))); return n.value
def context(device):
    c = c_void_p(); ok(lib.cuCtxCreate_v2(byref(c), 0, device)); return c
def allocate(size):
    p = c_uint64(); ok(lib.cuMemAlloc_v2(byref(p), c_size_t(size))); return p
def put(p, data):
    ok(lib.cuMemcpyHtoD_v2(p, data, c_size_t(len(data))))
def get(p, size):
    out = ctypes.create_string_buffer(size); ok(lib.cuMemcpyDtoH_v2(out, p, c_size_t(size))); return out.raw
def current(c):
    ok(lib.cuCtxSetCurrent(c))
def answer(value):
    print(json.dumps(value))
if os.environ.get("TEST_UID"):
    os.setgid(int(os.environ["TEST_UID"])); os.setuid(int(os.environ["TEST_UID"]))
"""


@dataclasses.dataclass
class Driver:
    """A built driver: ``libraries`` has the files with their links."""

    run_file: Path
    libraries: Path


@dataclasses.dataclass
class Machine:
    """A directory in place of /, with the device nodes of eight GPUs."""

    root: Path
    driver: Driver

    def state(self, **changes: Any) -> dict[str, Any]:
        """The state file with these top-level keys changed, written."""
        path = self.root / "proc/driver/nvidia/rackwell-lab-gpus.json"
        state: dict[str, Any] = json.loads(path.read_text())
        state.update(changes)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.rename(path)
        return state

    def gpu(self, index: int, **changes: Any) -> None:
        """Change one GPU (in the order of the bus ids)."""
        gpus = self.state()["gpus"]
        gpus[index].update(changes)
        self.state(gpus=gpus)

    def load(self, text: str) -> None:
        """Write the load file."""
        path = self.root / "load"
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)

    def environment(self, **extra: str) -> dict[str, str]:
        """For a process that sees this machine and this driver."""
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.driver.libraries),
            "RACKWELL_LAB_ROOT": str(self.root),
            "RACKWELL_LAB_LOAD": str(self.root / "load"),
            **extra,
        }

    def start(self, code: str, **extra: str) -> subprocess.Popen[str]:
        """A process that runs the snippet."""
        return subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code],
            env=self.environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, **extra: str) -> Any:
        """What the snippet answered."""
        process = self.start(code, **extra)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return json.loads(out)

    def smi(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run nvidia-smi."""
        return subprocess.run(
            [str(self.driver.libraries / "nvidia-smi"), *arguments],
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            check=False,
        )


def build(out: Path, version: str) -> Driver:
    """Build the stand-in driver of a version."""
    subprocess.run([str(GPU / "build.sh"), str(out), version], check=True)
    return Driver(out / f"NVIDIA-Linux-x86_64-{version}.run", out / version)


def free_major() -> int:
    """A character major that no driver of this machine has."""
    text = Path("/proc/devices").read_text().split("Block devices")[0]
    taken = {int(line.split()[0]) for line in text.splitlines() if line.strip() and line.split()[0].isdigit()}
    return next(major for major in range(511, 383, -1) if major not in taken)
