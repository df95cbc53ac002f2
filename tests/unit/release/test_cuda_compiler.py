# SPDX-License-Identifier: Apache-2.0
"""The compiler of a release, asked before anything is switched: each thing that is missing has its own error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import cuda_compiler
from ansible_collections.rackwell.gpu.plugins.module_utils.cuda_compiler import Compiler, CompilerError, declared
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import Manifest, ReleaseError

NVCC = """#!/bin/sh
case "$1" in --version) echo "Cuda compilation tools, release {version}, V{version}.88"; exit 0;; esac
echo "$@" >> {log}
{body}
"""


class Machine:
    """A release in a folder, and a container's own programs in another."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = base / "release"
        self.programs = base / "bin"
        self.home = base / "cuda"
        self.log = base / "calls"
        for folder in (self.release / "env" / "bin", self.programs, self.home / "bin", self.home / "include"):
            folder.mkdir(parents=True)
        headers = base / "python"
        headers.mkdir()
        (headers / "Python.h").write_text("")
        self.headers = headers
        for tool in ("sh", "cat"):
            (self.programs / tool).symlink_to(f"/bin/{tool}")
        self.script(self.release / "env" / "bin" / "python", f"echo {headers}")
        self.script(self.release / "env" / "bin" / "ninja", "exit 0")
        self.script(self.programs / "c++", f'echo "c++ $@" >> {self.log}')
        monkeypatch.setattr(cuda_compiler, "_SYSTEM", str(self.programs))
        self.nvcc("13.0")
        self.manifest({"home": str(self.home), "minimum": "12.9"})

    def script(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def nvcc(self, version: str, body: str = "exit 0") -> None:
        path = self.home / "bin" / "nvcc"
        path.write_text(NVCC.format(version=version, body=body, log=self.log))
        path.chmod(0o755)

    def manifest(self, cuda: Any) -> None:
        (self.release / "manifest.json").write_text(json.dumps({"name": "mine", "cuda": cuda}))

    def error(self) -> dict[str, str]:
        with pytest.raises(CompilerError) as caught:
            Compiler(str(self.release)).check()
        return caught.value.parts


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_kernel_is_compiled_and_linked_as_the_engine_does(machine: Machine) -> None:
    machine.script(machine.programs / "nvidia-smi", "echo 12.0; echo 12.0")
    found = Compiler(str(machine.release)).check()
    assert found == {"home": str(machine.home), "version": "13.0", "minimum": "12.9", "architecture": "sm_120a"}
    compiled, linked = machine.log.read_text().splitlines()
    assert "-arch=sm_120a" in compiled
    assert f"-L{machine.home}/lib64 -lcudart" in linked


def test_without_a_gpu_nvcc_chooses(machine: Machine) -> None:
    assert Compiler(str(machine.release)).check()["architecture"] == ""
    assert "-arch" not in machine.log.read_text()


@pytest.mark.parametrize(("version", "minimum"), [("12.8", "12.9"), ("11.5", "12.9"), ("12.9", "13.0")])
def test_too_old_is_refused_by_number(machine: Machine, version: str, minimum: str) -> None:
    machine.nvcc(version)
    machine.manifest({"home": str(machine.home), "minimum": minimum})
    parts = machine.error()
    assert parts["code"] == "nvcc-too-old"
    assert version in parts["what"]
    assert minimum in parts["what"]
    assert "builds/mine.yml" in parts["fix"]


def test_no_compiler_where_the_build_says(machine: Machine) -> None:
    (machine.home / "bin" / "nvcc").unlink()
    parts = machine.error()
    assert (parts["code"], parts["where"]) == ("nvcc-missing", f"{machine.home}/bin/nvcc")


def test_what_is_no_nvcc(machine: Machine) -> None:
    machine.script(machine.home / "bin" / "nvcc", "echo nothing of the kind; exit 1")
    assert machine.error()["code"] == "nvcc-broken"


def test_the_containers_own_packages(machine: Machine) -> None:
    (machine.programs / "c++").unlink()
    (machine.headers / "Python.h").unlink()
    assert Compiler(str(machine.release)).packages_missing() == ["c++", "Python.h"]
    assert machine.error()["code"] == "host-compiler-missing"
    machine.script(machine.programs / "c++", "exit 0")
    parts = machine.error()
    assert (parts["code"], parts["where"]) == ("python-headers-missing", str(machine.headers))
    assert "apt-get install python3-dev" in parts["fix"]


def test_no_ninja(machine: Machine) -> None:
    (machine.release / "env" / "bin" / "ninja").unlink()
    assert machine.error()["code"] == "ninja-missing"


def test_compiler_and_headers_of_two_toolkits(machine: Machine) -> None:
    text = 'x.h:41:8: error: #error "CUDA compiler and CUDA toolkit headers are incompatible, please check"'
    machine.nvcc("13.5", f"echo '{text}'; exit 1")
    parts = machine.error()
    assert parts["code"] == "nvcc-fails"
    assert "two toolkits" in parts["why"]
    assert "#error" in parts["why"]
    assert "rackwell build --relock mine" in parts["fix"]


def test_no_runtime_library_to_link_with(machine: Machine) -> None:
    machine.script(machine.programs / "c++", "echo 'ld: error: cannot find -lcudart'; exit 1")
    parts = machine.error()
    assert parts["code"] == "nvcc-fails"
    assert "link" in parts["what"]
    assert "-lcudart" in parts["why"]


def test_a_compiler_that_does_not_end(machine: Machine) -> None:
    machine.nvcc("13.0", "exec /usr/bin/tail -f /dev/null")
    compiler = Compiler(str(machine.release), seconds=1)
    with pytest.raises(CompilerError) as caught:
        compiler.check()
    assert caught.value.parts["code"] == "timed-out"


def test_a_release_that_declares_none_is_passed(machine: Machine) -> None:
    machine.manifest(None)
    assert Compiler(str(machine.release)).found is None


def test_settings_lead_to_the_releases_own_compiler() -> None:
    cuda = {"home": "env/lib/python3.11/site-packages/nvidia/cu13", "minimum": "12.9", "nvcc": "13.0.88"}
    lines = cuda_compiler.settings(cuda, "/opt/rackwell/releases/abc")
    home = "/opt/rackwell/releases/abc/env/lib/python3.11/site-packages/nvidia/cu13"
    assert f"CUDA_HOME={home}" in lines
    path = next(line for line in lines if line.startswith("PATH=")).removeprefix("PATH=").split(":")
    assert path[:2] == ["/opt/rackwell/releases/abc/env/bin", f"{home}/bin"]
    assert "/usr/bin" in path
    assert cuda_compiler.settings(None, "/opt/rackwell/releases/abc") == []


@pytest.mark.parametrize(
    "cuda",
    [
        {"home": "env/../../../etc", "minimum": "12.9"},
        {"home": "/usr/local/cuda\nLD_PRELOAD=/x.so", "minimum": "12.9"},
        {"home": "/usr/local/cuda:/tmp", "minimum": "12.9"},
        {"home": 7, "minimum": "12.9"},
        {"home": "/usr/local/cuda", "minimum": "new"},
        {"home": "/usr/local/cuda"},
        "/usr/local/cuda",
    ],
)
def test_a_manifest_cannot_smuggle_anything_into_the_unit(cuda: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        declared(cuda, "/r")
    text = json.dumps(
        {
            "schema": "rackwell.release/1",
            "name": "mine",
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
            "platform": "linux_x86_64",
            "wheels": [],
            "uv": {"filename": "uv-1-py3-none-any.whl", "sha256": "0" * 64, "size": 1},
            "requirements_sha256": "0" * 64,
            "cuda": cuda,
        }
    )
    with pytest.raises(ReleaseError) as caught:
        Manifest(text)
    assert caught.value.parts["code"] == "manifest-malformed"
