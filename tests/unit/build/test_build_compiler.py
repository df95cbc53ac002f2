# SPDX-License-Identifier: Apache-2.0
"""The compiler of a build's kernels: of torch's own toolkit, with what makes NVIDIA's wheels a CUDA_HOME."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
import tinywheels
from buildsite import Site, make_catalog

from rackwell.build import load_build
from rackwell.build import lock as locks
from rackwell.errors import RackwellError

ENGINE = """\
python: "3.11"
sources:
  sglang: {version: 0.5.9}
dependencies: full
"""
TOOLKIT = {"cccl": "13.0.85", "crt": "13.0.88", "cudart": "13.0.96", "nvcc": "13.0.88", "nvvm": "13.0.88"}
NAMES = {"cccl": "nvidia-cuda-cccl", "crt": "nvidia-cuda-crt", "cudart": "nvidia-cuda-runtime"}


@pytest.fixture
def toolkits(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An index with two toolkits' compilers; the engine needs the runtime of the older one, and any compiler."""
    folder = tmp_path / "index" / "wheels"
    shutil.copytree(index, folder)
    names = {
        part: NAMES.get(part, {"nvcc": "nvidia-cuda-nvcc", "nvvm": "nvidia-nvvm"}.get(part, "")) for part in TOOLKIT
    }
    requires = [f"{names[part]}=={version}; extra == '{part}'" for part, version in TOOLKIT.items()]
    tinywheels.make_wheel(folder, "cuda-toolkit", "13.0.3.0", {}, requires=requires)
    newer = [f"{names[part]}==13.5.37; extra == '{part}'" for part in TOOLKIT]
    tinywheels.make_wheel(folder, "cuda-toolkit", "13.5.0", {}, requires=newer)
    for part, version in TOOLKIT.items():
        for one in (version, "13.5.37"):
            tinywheels.make_wheel(folder, names[part], one, {f"nvidia/cu13/{part}": one})
    tinywheels.make_wheel(folder, "torch", "2.14.1", {}, requires=["cuda-toolkit[cudart]==13.0.3.0"])
    (folder / "sglang-0.5.9-py3-none-any.whl").unlink()
    tinywheels.make_wheel(folder, "sglang", "0.5.9", tinywheels.ENGINE, requires=["torch==2.14.1", "nvidia-cuda-nvcc"])
    for name, value in tinywheels.index_environment(folder).items():
        monkeypatch.setenv(name, value)
    return Site(tmp_path / "site", make_catalog(tmp_path / "catalog"), folder)


def versions(site: Site, text: str) -> dict[str, str]:
    lock = locks.resolve(load_build(site.write(text)), "3.11")
    return {wheel.project: wheel.version for wheel in lock.wheels}


def test_left_alone_the_compiler_is_of_another_toolkit(toolkits: Site) -> None:
    """Why the key exists: this is what SGLang 0.5.23 resolves to."""
    found = versions(toolkits, ENGINE)
    assert (found["nvidia-cuda-nvcc"], found["nvidia-cuda-runtime"]) == ("13.5.37", "13.0.96")


def test_from_wheels_it_is_of_the_toolkit_that_torch_asks_for(toolkits: Site) -> None:
    found = versions(toolkits, ENGINE + "cuda: {wheels: true}\n")
    assert found["nvidia-cuda-nvcc"] == found["nvidia-cuda-crt"] == found["nvidia-nvvm"] == "13.0.88"
    assert found["nvidia-cuda-runtime"] == "13.0.96"


def test_the_release_says_where_it_is_and_can_be_linked_with(toolkits: Site) -> None:
    release = toolkits.make(toolkits.write(ENGINE + "cuda: {wheels: true}\n"))
    home = "env/lib/python3.11/site-packages/nvidia/cu13"
    assert release.manifest["cuda"] == {"home": home, "minimum": "12.9", "nvcc": "13.0.88"}
    wheel = next(wheel for wheel in release.manifest["wheels"] if wheel["project"] == "rackwell-cuda-home")
    with zipfile.ZipFile(toolkits.state / "blobs" / "sha256" / wheel["sha256"]) as archive:
        # beside lib/libcudart.so.13, which NVIDIA's wheel brings
        assert "../lib/libcudart.so.13" in archive.read("nvidia/cu13/lib64/libcudart.so").decode()
    assert "rackwell-cuda-home==" in (release.path / "requirements.txt").read_text()
    assert toolkits.make(toolkits.write(ENGINE + "cuda: {wheels: true}\n")).digest == release.digest


def test_a_declared_home_changes_no_wheel(toolkits: Site) -> None:
    plain = toolkits.make(toolkits.write(ENGINE, "plain"))
    homed = toolkits.make(toolkits.write(ENGINE + "cuda: {home: /usr/local/cuda-12.9, version: '12.8'}\n", "homed"))
    assert "cuda" not in plain.manifest
    assert homed.manifest["cuda"] == {"home": "/usr/local/cuda-12.9", "minimum": "12.8"}
    assert homed.manifest["wheels"] == plain.manifest["wheels"]
    assert homed.digest != plain.digest


def test_wheels_that_are_too_old_are_refused(toolkits: Site) -> None:
    path = toolkits.write(ENGINE + "cuda: {wheels: true, version: '13.1'}\n")
    with pytest.raises(RackwellError) as caught:
        toolkits.make(path)
    problem = caught.value.problems[0]
    assert problem.code == "cuda-compiler"
    assert "13.0.88" in problem.what
    assert problem.where == f"{path}:5"
    assert not (toolkits.state / "builds" / "lab").exists()


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        ("{}", "needs one of"),
        ("{wheels: true, home: /usr/local/cuda}", "needs one of"),
        ("{home: cuda-12.9}", "directory in the container"),
        ("{home: /usr/../cuda}", "directory in the container"),
        ("{home: '/opt/cuda:/tmp'}", "directory in the container"),
        ("{home: /usr/local/cuda, version: 12}", "version"),
    ],
)
def test_what_is_declared_wrongly(toolkits: Site, cuda: str, said: str) -> None:
    with pytest.raises(RackwellError) as caught:
        load_build(toolkits.write(f"{ENGINE}cuda: {cuda}\n"))
    assert said in str([(p.what, p.why, p.fix) for p in caught.value.problems])


def test_a_build_that_ships_uses_the_lock_that_ships(toolkits: Site) -> None:
    shipped = toolkits.catalog / "builds" / "ships.yml"
    shipped.write_text(ENGINE + "cuda: {wheels: true}\n")
    lock = locks.resolve(load_build(shipped), "3.11")
    locks.write_lock(shipped.with_suffix(".lock"), lock)
    own = toolkits.folder / "builds" / "ships.lock"
    # the index has something newer meanwhile: it must not come in unasked
    tinywheels.make_wheel(toolkits.index, "torch", "2.14.1.post1", {})
    toolkits.make(shipped)
    assert own.read_text() == lock.text()
    assert "lock ships.lock: as it ships with rackwell" in toolkits.said
    # another build of that name: resolved anew, and the one that ships is left alone
    shipped.write_text(ENGINE)
    toolkits.make(shipped)
    assert locks.read_lock(own) != lock
    assert locks.read_lock(shipped.with_suffix(".lock")) == lock
