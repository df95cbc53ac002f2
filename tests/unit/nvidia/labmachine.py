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
PTX = Path(__file__).resolve().parents[3] / "src" / "rackwell" / "probe" / "kernels.ptx"
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
class Kernels:
    # the probe's kernels on one GPU, loaded into the context that is current
    def __init__(self, c):
        self.c, self.module = c, c_void_p()
        ok(lib.cuModuleLoadData(byref(self.module), open(os.environ["TEST_PTX"], "rb").read()))
    def function(self, name):
        f = c_void_p(); ok(lib.cuModuleGetFunction(byref(f), self.module, b"rackwell_" + name.encode())); return f
    def try_start(self, name, *numbers, stream=None, threads=32):
        current(self.c)
        values = [c_uint64(int(getattr(n, "value", n))) for n in numbers]
        pointers = (c_void_p * len(values))(*[ctypes.cast(byref(v), c_void_p) for v in values])
        return lib.cuLaunchKernel(self.function(name), 1, 1, 1, threads, 1, 1, 0, stream, pointers, None)
    def start(self, name, *numbers, **how):
        ok(self.try_start(name, *numbers, **how))
    def compare(self, p, words, seed, poison=0):
        r = allocate(32); put(r, (0).to_bytes(8, "little") + bytes([255] * 8) + bytes(16))
        self.start("compare", p, words, seed, poison, r); ok(lib.cuCtxSynchronize())
        out = words_of(r, 4); ok(lib.cuMemFree_v2(r)); return out
def words_of(p, n):
    data = get(p, 8 * n); return [int.from_bytes(data[i:i + 8], "little") for i in range(0, 8 * n, 8)]
class Clock:
    # modelled microseconds between its making and stop()
    def __init__(self, c, stream=None):
        self.c, self.stream, self.events = c, stream, [c_void_p(), c_void_p()]
        current(c)
        for e in self.events: ok(lib.cuEventCreate(byref(e), 0))
        ok(lib.cuEventRecord(self.events[0], stream))
    def stop(self):
        current(self.c); ok(lib.cuEventRecord(self.events[1], self.stream))
    def read(self):
        ms = c_float(); ok(lib.cuEventSynchronize(self.events[1]))
        ok(lib.cuEventElapsedTime(byref(ms), *self.events)); return ms.value * 1e3
def new_stream(c):
    current(c); s = c_void_p(); ok(lib.cuStreamCreate(byref(s), 1)); return s
def peers(*contexts):
    for a in contexts:
        for b in contexts:
            current(a)
            if a is not b: ok(lib.cuCtxEnablePeerAccess(b, 0))
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
            "TEST_PTX": str(PTX),
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
