# SPDX-License-Identifier: Apache-2.0
"""What a machine has of NVIDIA's driver: the kernel module's version, and the files of its user space."""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import shutil
import subprocess
from typing import Iterator

VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)*")
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib64")
REQUIRED_LIBRARIES = ("libcuda", "libnvidia-ml")
SMI = "/usr/bin/nvidia-smi"

_LIBRARY = re.compile(
    r"(?P<name>lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9-]+|(?:GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia))"
    r"\.so\.(?P<version>\d{3,}\.\d+(?:\.\d+)*)"
)


class DriverError(Exception):
    """Ends the work: the five parts of an error, and what else the module returns with it."""

    def __init__(self, code: str, what: str, where: str = "", why: str = "", fix: str = "", **extra: object) -> None:
        super().__init__(what)
        self.parts = {"code": code, "what": what, "where": where, "why": why, "fix": fix}
        self.extra = extra


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A file of another driver version. ``package`` is the distribution's package that owns it, or empty."""

    path: str
    version: str
    package: str

    def as_dict(self) -> dict[str, str]:
        """The parts by name."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Userspace:
    """The driver's user space as it lies there.

    Attributes:
        files: library file of a version, by path (not the links).
        loaded: what the loader would get: ``libcuda`` and ``libnvidia-ml`` with the version that their ``.so.1``
            leads to; empty when there is none, ``?`` when the file does not tell.
        smi: whether nvidia-smi is there.
        mounted: those files and links that are mounted into this container from outside.
    """

    files: dict[str, str]
    loaded: dict[str, str]
    smi: bool
    mounted: tuple[str, ...]

    def complete(self, version: str) -> bool:
        """Whether programs get exactly this version."""
        return self.smi and all(self.loaded[name] == version for name in REQUIRED_LIBRARIES)

    def others(self, version: str) -> dict[str, str]:
        """The library files of other versions, by path."""
        return {path: found for path, found in self.files.items() if found != version}

    def describe(self) -> str:
        """A few lines, the same for the same state, for a diff."""
        lines = ["%s.so.1: %s" % (name, self.loaded[name] or "absent") for name in REQUIRED_LIBRARIES]
        lines.append("nvidia-smi: %s" % ("present" if self.smi else "absent"))
        return "\n".join(lines) + "\n"

    @property
    def version(self) -> str:
        """The version that programs get; empty when there is none or it is mixed."""
        versions = set(self.loaded.values())
        return versions.pop() if len(versions) == 1 else ""


def kernel_module_version(root: str = "/") -> str:
    """Full version of the loaded kernel module, such as ``595.58.03``; empty when none is loaded.

    A container sees that of its host.
    """
    text = _read(_under(root, "/sys/module/nvidia/version")).strip()
    if text:
        return text
    found = VERSION.search(_read(_under(root, "/proc/driver/nvidia/version")).split("\n", 1)[0])
    return found.group(0) if found else ""


def look(version: str, root: str = "/") -> Userspace:
    """What is there. ``version`` is only for libraries whose name does not tell theirs: is it this one?"""
    files: dict[str, str] = {}
    loaded = dict.fromkeys(REQUIRED_LIBRARIES, "")
    interesting: list[str] = []
    for directory in _directories(root):
        for name in sorted(os.listdir(_under(root, directory))):
            path = os.path.join(directory, name)
            found = _LIBRARY.fullmatch(name)
            if found and not os.path.islink(_under(root, path)):
                files[path] = found.group("version")
                interesting.append(path)
            library = name[: -len(".so.1")] if name.endswith(".so.1") else ""
            if library in loaded:
                interesting.append(path)
                # the loader's first directory wins
                loaded[library] = loaded[library] or _version_behind(_under(root, path), version)
    smi = _under(root, SMI)
    interesting.append(SMI)
    mounts = mount_points(root)
    return Userspace(
        files=files,
        loaded=loaded,
        smi=os.path.isfile(smi) and os.access(smi, os.X_OK),
        mounted=tuple(sorted(path for path in interesting if path in mounts)),
    )


def leftovers(found: Userspace, version: str) -> list[Leftover]:
    """The files of other versions and who owns them."""
    paths = found.others(version)
    owners = _owners(sorted(paths))
    return [Leftover(path, paths[path], owners.get(path, "")) for path in sorted(paths)]


def mount_points(root: str = "/") -> frozenset[str]:
    """Everything that something is mounted on, in this mount namespace."""
    points = set()
    for line in _read(_under(root, "/proc/self/mountinfo")).splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            points.add(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), fields[4]))
    return frozenset(points)


def _under(root: str, path: str) -> str:
    return path if root == "/" else os.path.join(root, path.lstrip("/"))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _directories(root: str) -> Iterator[str]:
    """The library directories, each once: /lib is often a link to /usr/lib."""
    seen = set()
    for directory in LIBRARY_DIRECTORIES:
        real = os.path.realpath(_under(root, directory))
        if os.path.isdir(real) and real not in seen:
            seen.add(real)
            yield directory


def _version_behind(path: str, version: str) -> str:
    """The version of a ``.so.1``: by the name of the file it leads to, else by what the file contains."""
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        return ""
    found = _LIBRARY.fullmatch(os.path.basename(real))
    if found:
        return found.group("version")
    # a runtime that mounts single files may have mounted the library itself under the short name
    try:
        with open(real, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return version if content.find(version.encode()) >= 0 else "?"
    except (OSError, ValueError):
        return "?"


def _owners(paths: list[str]) -> dict[str, str]:
    """Which package owns which of the files, where dpkg knows."""
    if not paths or not shutil.which("dpkg-query"):
        return {}
    asked = paths + [path[len("/usr") :] for path in paths if path.startswith("/usr/lib")]
    answer = subprocess.run(
        ["dpkg-query", "--search", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    owners: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        package, separator, path = line.partition(": ")
        # "diversion by X from: PATH" tells of a file that was moved aside, not of one that a package owns
        if separator and not line.startswith("diversion by "):
            owners[path] = package
    return {path: owners.get(path) or owners.get(path[len("/usr") :], "") for path in paths}
