# SPDX-License-Identifier: Apache-2.0
"""A machine with NVIDIA GPUs: the laboratory passes the real nodes through and uses the real driver's libraries.

/proc/driver/nvidia and /sys/module are the kernel's own and show in every container by themselves. The hosts get the
user space of the driver by read-only bind mounts; for the containers it is packed into an installer of the same name
and flags as NVIDIA's (made by gpu/build.sh from the machine's files), so that the role runs as it does anywhere.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from rwlab.errors import LabError
from rwlab.paths import SOURCE, Cache
from rwlab.proc import run, run_long

_VERSION = Path("/proc/driver/nvidia/version")
# what CUDA and NVML need of the user space; those that a driver branch lacks are left out
_LIBRARIES = (
    "libcuda libnvidia-ml libnvidia-ptxjitcompiler libnvidia-nvvm libnvidia-nvvm70 libnvidia-gpucomp libcudadebugger libnvidia-cfg"
).split()
_TOOLS = ("nvidia-smi",)
_INSIDE = "usr/lib/x86_64-linux-gnu"


def present() -> bool:
    """Whether NVIDIA's kernel module runs here (and this is no container of a laboratory with a stand-in for it)."""
    return _VERSION.exists() and not _VERSION.with_name("rackwell-lab-gpus.json").exists()


def version_in(text: str) -> str:
    """The kernel module's version in the text of /proc/driver/nvidia/version, both of NVIDIA's forms.

    Raises:
        LabError: there is none.
    """
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)\s", text)
    if not found:
        raise LabError("driver-version", "the driver's version is not where it should be", where=str(_VERSION), why=text[:200])
    return found[1]


def version() -> str:
    """The running kernel module's version."""
    return version_in(_VERSION.read_text())


def nodes() -> dict[str, tuple[int, int]]:
    """The real nodes: name below /dev -> (major, minor)."""
    found = {}
    for path in sorted(Path("/dev").glob("nvidia*")):
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            found[path.name] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return found


def nodes_of_gpus() -> list[str]:
    """Those of the nodes that are a GPU's own."""
    return [name for name in nodes() if re.fullmatch(r"nvidia\d+", name)]


def user_space() -> list[Path]:
    """The driver's libraries of the running version, and its tools, as they lie on this machine.

    Raises:
        LabError: libcuda or NVML of that version is nowhere.
    """
    wanted, found = version(), []
    cached = run(["ldconfig", "-p"], check=False).stdout
    places = {Path(line.rpartition("=> ")[2].strip()).resolve().parent for line in cached.splitlines() if "=> " in line}
    places |= {Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/local/nvidia/lib64")}
    for library in _LIBRARIES:
        files = [place / f"{library}.so.{wanted}" for place in sorted(places) if (place / f"{library}.so.{wanted}").exists()]
        # i386 libraries have the same names; the 64-bit ELF class is byte 4 = 2
        files = [path for path in files if path.open("rb").read(5)[4:] == b"\x02"]
        if files:
            found.append(files[0].resolve())
        elif library in ("libcuda", "libnvidia-ml"):
            raise LabError(
                "driver-user-space",
                f"{library}.so.{wanted} is not on this machine",
                why="the kernel module runs without the user space of its version",
                fix=f"install the driver's user space {wanted}",
            )
    for tool in _TOOLS:
        path = run(["sh", "-c", f"command -v {tool}"], check=False).stdout.strip()
        if path:
            found.append(Path(path).resolve())
    return found


def mounts() -> list[str]:
    """``lxc.mount.entry`` values that show the driver's user space in a host."""
    entries = []
    for path in user_space():
        place = f"usr/bin/{path.name}" if path.name in _TOOLS else f"{_INSIDE}/{path.name}"
        entries.append(f"{path} {place} none bind,ro,create=file 0 0")
        library = re.match(r"(lib.+?\.so)\.", path.name)
        if library and library[1] != path.name:
            soname = f"{library[1]}.4" if "nvvm" in path.name else f"{library[1]}.1"
            entries.append(f"{path} {_INSIDE}/{soname} none bind,ro,create=file 0 0")
    return entries


def driver(cache: Cache) -> Path | None:
    """An installer of the machine's own driver files; None while gpu/ cannot make one."""
    script = SOURCE / "gpu/build.sh"
    if not script.exists():
        return None
    wanted = version()
    target = cache.driver / "real" / f"NVIDIA-Linux-x86_64-{wanted}.run"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        run_long(
            ["sh", str(script), str(target.parent), wanted, *(str(path) for path in user_space())],
            cache.logs / f"driver-real-{wanted}.log",
            "driver",
            f"packing this machine's own {wanted}",
        )
    return target
