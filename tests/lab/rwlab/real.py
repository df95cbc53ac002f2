# SPDX-License-Identifier: Apache-2.0
"""A machine with NVIDIA GPUs: the laboratory passes the real nodes through and uses the real driver's libraries.

/proc/driver/nvidia and /sys/module are the kernel's own and show in every container by themselves. The hosts get the
user space of the driver by read-only bind mounts; for the containers it is packed into an installer of the same name
and flags as NVIDIA's, so that the role runs as it does anywhere.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import tempfile
from pathlib import Path

from rwlab import files
from rwlab.console import say
from rwlab.errors import LabError
from rwlab.nodes import Node
from rwlab.paths import SOURCE, Cache
from rwlab.proc import run

_VERSION = Path("/proc/driver/nvidia/version")
# what CUDA and NVML need of the user space; those that a driver branch lacks are left out
_LIBRARIES = [
    "libcuda",
    "libnvidia-ml",
    "libnvidia-ptxjitcompiler",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-gpucomp",
    "libcudadebugger",
    "libnvidia-cfg",
]
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
        raise LabError(
            "driver-version", "the driver's version is not where it should be", where=str(_VERSION), why=text[:200]
        )
    return found[1]


def version() -> str:
    """The running kernel module's version."""
    return version_in(_VERSION.read_text())


def nodes() -> dict[str, Node]:
    """The real nodes, by their names below /dev."""
    found = {}
    for path in sorted(Path("/dev").glob("nvidia*")):
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            found[path.name] = Node(os.major(status.st_rdev), os.minor(status.st_rdev))
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
        candidates = [place / f"{library}.so.{wanted}" for place in sorted(places)]
        # i386 libraries have the same names; byte 4 of an ELF file is its class, 2 for 64 bits
        candidates = [path for path in candidates if path.exists() and _head_of(path)[4:5] == b"\x02"]
        if candidates:
            found.append(candidates[0].resolve())
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


def _head_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(5)


def modules() -> list[str]:
    """Those of the driver's kernel modules that are loaded."""
    return [name for name in ("nvidia", "nvidia_uvm", "nvidia_modeset") if Path("/sys/module", name).exists()]


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


def driver(cache: Cache) -> Path:
    """An installer of this machine's own driver files; it takes the flags that NVIDIA's takes, as the stand-in does."""
    wanted = version()
    target = cache.driver / "real" / f"NVIDIA-Linux-x86_64-{wanted}.run"
    with files.locked(cache.root / ".lock", "cache"):
        if not target.exists():
            _pack(target, wanted)
    return target


def _pack(target: Path, wanted: str) -> None:
    say("driver", f"packing this machine's own {wanted}")
    work = target.parent / ".partial"
    shutil.rmtree(work, ignore_errors=True)
    contents = work / "contents"
    contents.mkdir(parents=True)
    for path in user_space():
        shutil.copyfile(path, contents / path.name)
    installer = (SOURCE / "gpu/nvidia-installer").read_text().replace("@VERSION@", wanted)
    (contents / "nvidia-installer").write_text(installer)
    run(["chmod", "-R", "u=rwX,go=rX", str(contents)])
    for name in ("nvidia-installer", *_TOOLS):
        if (contents / name).exists():
            (contents / name).chmod(0o755)
    packed = work / "payload.tar"
    run(["tar", "-C", str(contents), "--owner=0", "--group=0", "-cf", str(packed), "."])
    files.write(work / "packed.run", _head(packed, wanted), 0o755)
    with (work / "packed.run").open("ab") as out, packed.open("rb") as payload:
        shutil.copyfileobj(payload, out)
    (work / "packed.run").replace(target)
    shutil.rmtree(work)


def _head(packed: Path, wanted: str) -> str:
    """The shell part of the installer, from the file that makeself sources for the stand-in."""
    sums = [run([tool, str(packed)]).stdout.split()[0] for tool in ("md5sum", "sha256sum")]
    values = {
        "LABEL": f"This machine's own NVIDIA driver {wanted}, packed by rackwell's laboratory",
        "archdirname": f"NVIDIA-Linux-x86_64-{wanted}",
        "filesizes": str(packed.stat().st_size),
        "MD5sum": sums[0],
        "SHAsum": sums[1],
        "COMPRESS": "none",
        "DATE": "",
        "SCRIPT": "./nvidia-installer",
    }
    source = SOURCE / "gpu/run-header.sh"

    def head(lines: int) -> str:
        assignments = "".join(
            f"{name}={shlex.quote(value)}\n" for name, value in {**values, "SKIP": str(lines)}.items()
        )
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "head"
            run(["sh", "-c", f"archname={shlex.quote(str(out))}\n{assignments}. {shlex.quote(str(source))}"])
            return out.read_text()

    # the head says how many lines it has itself; the number does not change how many
    text = head(head(0).count("\n"))
    return text.replace("Nothing in here is NVIDIA's.", "The libraries in here are NVIDIA's, of this machine.")
