# SPDX-License-Identifier: Apache-2.0
"""The CUDA compiler that a release's engine calls when it runs: FlashInfer, DeepGEMM and SGLang compile kernels then.

It comes with the release (``cuda: {wheels: true}``), or is one that the container has (``cuda: {home: DIR}``).

The wheels are asked for through ``cuda-toolkit``, whose extras pin each part to one toolkit, the one that torch asks
for. Without it nvcc comes newer than the headers, by way of packages that ask for any nvcc (SGLang 0.5.23: nvcc 13.5
beside headers of 13.0), and then every kernel fails: "CUDA compiler and CUDA toolkit headers are incompatible".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rackwell.build.model import BuildSpec
from rackwell.build.wheelfile import from_files
from rackwell.errors import ExitCode, Problem, RackwellError

REQUIREMENT = "cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]"
"""What is needed to compile and link a kernel, beside the headers of libraries that torch brings itself."""
PROJECT = "rackwell-cuda-home"
_VERSION = "1"


def requirements(spec: BuildSpec) -> list[str]:
    """The build's requirements, and the compiler's when it is to come from wheels."""
    return [*spec.requirements, *([REQUIREMENT] if spec.cuda is not None and spec.cuda.wheels else [])]


def nvcc_version(spec: BuildSpec, wheels: Iterable[tuple[str, str]]) -> str | None:
    """Version of nvcc among `wheels` (project, version); None for a build whose compiler is not from wheels.

    Raises:
        RackwellError: there is none that can be used, or it is older than the build asks for (exit 2).
    """
    if spec.cuda is None or not spec.cuda.wheels:
        return None
    found = next((version for project, version in wheels if project == "nvidia-cuda-nvcc"), None)
    if found is None:
        raise _refused(spec, "the locked wheels hold no nvcc", "write `rackwell build --relock`, or declare `home`")
    if _numbers(found) < _numbers(spec.cuda.version):
        raise _refused(
            spec,
            f"the locked wheels hold nvcc {found}, the build asks for {spec.cuda.version} or newer",
            "take sources that ask for a newer CUDA, or declare the `home` of a newer toolkit",
        )
    return found


def manifest_entry(spec: BuildSpec, python: str, wheels: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """``{"cuda": ...}`` of the manifest, or nothing. A `home` that is relative lies in the release's directory."""
    if spec.cuda is None:
        return {}
    nvcc = nvcc_version(spec, wheels)
    if nvcc is None:
        return {"cuda": {"home": spec.cuda.home, "minimum": spec.cuda.version}}
    return {
        "cuda": {
            "home": f"env/lib/python{python}/site-packages/{_folder(nvcc)}",
            "minimum": spec.cuda.version,
            "nvcc": nvcc,
        }
    }


def home_wheel(nvcc: str) -> tuple[str, bytes]:
    """File name and bytes of the wheel that makes the wheels' directory a CUDA_HOME.

    Engines link with ``-L$CUDA_HOME/lib64 -lcudart``. NVIDIA's wheels have ``lib``, and the library only under its
    versioned name; wheels cannot hold links, so it is a linker script.
    """
    major = _numbers(nvcc)[0]
    comment = "/* Made by rackwell: the wheels bring the library only under this name. */"
    script = f"{comment}\nINPUT ( ../lib/libcudart.so.{major} )\n"
    metadata = (
        "Metadata-Version: 2.1\n"
        f"Name: {PROJECT}\n"
        f"Version: {major}.{_VERSION}\n"
        "Summary: lets NVIDIA's compiler wheels serve as CUDA_HOME\n"
        "License: Apache-2.0\n"
    )
    files = {f"{_folder(nvcc)}/lib64/libcudart.so": script.encode()}
    return from_files(f"{PROJECT.replace('-', '_')}-{major}.{_VERSION}", files, metadata)


def _folder(nvcc: str) -> str:
    return f"nvidia/cu{_numbers(nvcc)[0]}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _refused(spec: BuildSpec, what: str, fix: str) -> RackwellError:
    why = "kernels for this GPU cannot be compiled then, and the engine would end when it first needs one"
    return RackwellError(Problem("cuda-compiler", what, spec.where("cuda"), why, fix), ExitCode.INVALID)
