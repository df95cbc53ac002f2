# SPDX-License-Identifier: Apache-2.0
"""Whether a staged release can compile kernels: FlashInfer, DeepGEMM and SGLang do so when the engine first needs one.

Asked before the switch, since an engine that cannot compile ends minutes later with a text that names neither nvcc nor
its version (FlashInfer: "No supported CUDA architectures found for major versions [12]").
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import bounded

SOURCE = """\
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda/std/type_traits>
__global__ void rackwell_kernel(int *out) { *out = cuda::std::is_same<int, int>::value; }
extern "C" int rackwell_compiles() { rackwell_kernel<<<1, 1>>>(nullptr); return (int)cudaGetLastError(); }
"""
"""The last header refuses a compiler that is of another toolkit than the headers."""
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOME = re.compile(r"^[A-Za-z0-9._/+-]+\Z")
_RELEASE = re.compile(r"release (\d+)\.(\d+)")


class CompilerError(Exception):
    """Something that keeps kernels from being compiled; the parts are those of every rackwell error."""

    def __init__(self, code: str, what: str, where: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.parts: Dict[str, str] = {"code": code, "what": what, "where": where, "why": why, "fix": fix}


def declared(cuda: Any, release: str) -> Optional[Tuple[str, str]]:
    """CUDA_HOME and the oldest version that will do, of the manifest's `cuda`; None when the build says nothing.

    Raises ValueError for what is no such entry: it becomes part of paths and of a unit's environment.
    """
    if cuda is None:
        return None
    home, minimum = cuda["home"], cuda["minimum"]
    if not isinstance(home, str) or not _HOME.match(home) or ".." in home.split("/"):
        raise ValueError("it names CUDA_HOME as %r" % (home,))
    if not isinstance(minimum, str) or not re.match(r"^\d+\.\d+\Z", minimum):
        raise ValueError("it names the oldest CUDA as %r" % (minimum,))
    return (home if home.startswith("/") else "%s/%s" % (release, home)), minimum


def settings(cuda: Any, release: str) -> List[str]:
    """Lines for ``release.env``, so that the compiler changes with the release, also when it is rolled back."""
    found = declared(cuda, release)
    if found is None:
        return []
    return [
        "# Kernels are compiled at run time, with this compiler and the ninja of the environment.",
        "CUDA_HOME=%s" % found[0],
        "PATH=%s/env/bin:%s/bin:%s" % (release, found[0], _SYSTEM),
    ]


class Compiler:
    """The compiler of the release in the directory `release`."""

    def __init__(self, release: str, seconds: float = 300) -> None:
        self.release = release
        self.seconds = seconds
        with open(release + "/manifest.json", encoding="utf-8") as stream:
            manifest = json.load(stream)
        self.build = str(manifest["name"])
        self.python = "%s/env/bin/python" % release
        self.found = declared(manifest.get("cuda"), release)
        self.home, self.minimum = self.found or ("", "")
        self.own = bool(self.found) and self.home.startswith(release + "/")
        self.environment = {"PATH": "%s/env/bin:%s/bin:%s" % (release, self.home, _SYSTEM), "LC_ALL": "C"}

    def packages_missing(self) -> List[str]:
        """What the container's own packages lack: ``c++``, ``Python.h``."""
        missing = [] if shutil.which("c++", path=_SYSTEM) else ["c++"]
        return missing if os.path.exists(self.headers() + "/Python.h") else [*missing, "Python.h"]

    def headers(self) -> str:
        """Directory of Python's headers."""
        script = "import sysconfig; print(sysconfig.get_path('include'))"
        return self._run([self.python, "-I", "-c", script], 60)[1].strip()

    def check(self) -> Dict[str, Any]:
        """What is there, after a kernel was compiled and linked as engines do it.

        Raises:
            CompilerError: it cannot be done; each part has its own code.
        """
        version = self._nvcc()
        missing = self.packages_missing()
        if "c++" in missing:
            raise self._packages("host-compiler-missing", "there is no C++ compiler", "c++", "apt-get install g++")
        if "Python.h" in missing:
            what = "Python's headers are not there"
            raise self._packages("python-headers-missing", what, self.headers(), "apt-get install python3-dev")
        if not shutil.which("ninja", path=self.environment["PATH"]):
            raise self._packages("ninja-missing", "there is no ninja", "ninja", "add ninja to the build's requirements")
        architecture = self._architecture()
        self._compile(version, architecture)
        return {"home": self.home, "version": version, "minimum": self.minimum, "architecture": architecture}

    def _nvcc(self) -> str:
        nvcc = self.home + "/bin/nvcc"
        if not os.access(nvcc, os.X_OK):
            fix = "install that toolkit in the container, or change `cuda` in builds/%s.yml"
            raise CompilerError(
                "nvcc-missing",
                "there is no CUDA compiler where the build says",
                nvcc,
                "the engine compiles kernels at run time",
                "stage the release again" if self.own else fix % self.build,
            )
        code, text = self._run([nvcc, "--version"], 60)
        match = _RELEASE.search(text)
        if code or not match:
            fix = "run it by hand; a toolkit for another machine, or a damaged one, does this"
            raise CompilerError("nvcc-broken", "the CUDA compiler does not run", nvcc, _last(text), fix)
        version = "%s.%s" % match.groups()
        if (int(match.group(1)), int(match.group(2))) < tuple(int(part) for part in self.minimum.split(".")):
            raise CompilerError(
                "nvcc-too-old",
                "the CUDA compiler is %s, the build needs %s or newer" % (version, self.minimum),
                nvcc,
                'FlashInfer would say "No supported CUDA architectures found" when it first needs a kernel',
                "install a newer toolkit and set its directory as `cuda: {home: ...}` in builds/%s.yml" % self.build,
            )
        return version

    def _architecture(self) -> str:
        """The first GPU's, as nvcc calls it; empty where no GPU tells, and then nvcc's own choice is taken."""
        query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        match = re.match(r"(\d+)\.(\d)\s", self._run(query, 60)[1] + "\n")
        if not match:
            return ""
        return "sm_%s%s%s" % (match.group(1), match.group(2), "a" if int(match.group(1)) >= 9 else "")

    def _compile(self, version: str, architecture: str) -> None:
        with tempfile.TemporaryDirectory(prefix="rackwell-nvcc-") as folder:
            with open(folder + "/kernel.cu", "w", encoding="utf-8") as stream:
                stream.write(SOURCE)
            nvcc = [self.home + "/bin/nvcc", "-std=c++17", "--compiler-options=-fPIC", "-c", "kernel.cu"]
            chosen = ["-arch=" + architecture] if architecture else []
            headers = ["-isystem", self.home + "/include"]
            link = ["c++", "-shared", "kernel.o", "-o", "kernel.so", "-L%s/lib64" % self.home, "-lcudart"]
            for step, command in (("compile", [*nvcc, *chosen, *headers, "-o", "kernel.o"]), ("link", link)):
                code, text = self._run(command, self.seconds, folder)
                if code:
                    raise self._refused(step, version, architecture, text)

    def _refused(self, step: str, version: str, architecture: str, text: str) -> CompilerError:
        why = _last(text)
        fix = "set `cuda: {home: ...}` in builds/%s.yml to a whole toolkit of %s or newer" % (self.build, self.minimum)
        if "toolkit headers are incompatible" in text:
            why = "the compiler %s and the headers beside it are of two toolkits; %s" % (version, why)
            fix = "set `cuda: {wheels: true}` in builds/%s.yml and run `rackwell build --relock %s`" % (
                self.build,
                self.build,
            )
        elif step == "compile" and "gcc" in text and "unsupported" in text:
            fix = "install an older g++ in the container and let CXX and CC name it, or take a newer toolkit"
        what = "the release cannot %s a kernel%s" % (step, " for " + architecture if architecture else "")
        return CompilerError("nvcc-fails", what, self.home, why, fix)

    def _packages(self, code: str, what: str, where: str, fix: str) -> CompilerError:
        why = "FlashInfer and Triton compile kernels and their bindings at run time"
        return CompilerError(code, what, where, why, "in the container: " + fix if "apt" in fix else fix)

    def _run(self, command: List[str], seconds: float, cwd: str = "/") -> Tuple[int, str]:
        try:
            done = bounded.run(command, seconds, cwd=cwd, env=self.environment)
        except OSError as error:
            return 127, str(error)
        except bounded.DeadlineError as error:
            fix = "see what the machine is busy with, then run again"
            raise CompilerError(**error.parts("a compiler did not end", command[0], fix)) from None
        return done.returncode, done.stdout


def _last(text: str) -> str:
    """The line that tells most: the first error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|fatal", line)]
    return (errors or lines[-1:] or ["it said nothing"])[0][:400]
