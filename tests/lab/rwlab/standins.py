# SPDX-License-Identifier: Apache-2.0
"""The other parts of the laboratory, each made in its own directory: pve/ (pct, pvesh), host/, gpu/, engine/."""

from __future__ import annotations

import shutil
from pathlib import Path

from rwlab import files, gpus, hosts
from rwlab.console import say
from rwlab.errors import LabError
from rwlab.paths import REPO, SOURCE, Cache
from rwlab.proc import run, run_long


def pve_tools(cache: Cache) -> dict[str, tuple[bytes, int]]:
    """pct, pvesh and their library as files of a host."""
    found = {}
    for path in sorted((SOURCE / "pve/bin").glob("*")):
        found[f"usr/sbin/{path.name}"] = (path.read_bytes(), 0o755)
    library = SOURCE / "pve/lib"
    for path in sorted(library.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found[f"usr/share/rackwell-lab/pve/{path.relative_to(library)}"] = (path.read_bytes(), 0o644)
    schema = _pve_schema(cache)
    if schema is not None:
        found["usr/share/rackwell-lab/pve/api_schema.json"] = (schema, 0o644)
    return found


def _pve_schema(cache: Cache) -> bytes | None:
    """Proxmox's own API schema, out of the PyPI package fakepve of the development environment."""
    program = SOURCE / "pve/lib/labpve/extract_schema.py"
    if not program.exists():
        return None
    # by content alone: in a cache that was carried elsewhere it must be found, and can hardly be made
    recipe = files.digest(program.read_text(), (REPO / "requirements/dev.lock").read_text())[:12]
    target = cache.root / "pve" / f"schema-{recipe}.json"
    if target.exists():
        return target.read_bytes()
    python = REPO / ".venv/bin/python"
    if not python.exists():
        raise LabError(
            "environment-missing",
            "the laboratory's pct needs the development environment",
            where=str(python),
            why="it checks its options against the API schema that the package fakepve carries",
            fix="run scripts/setup",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    run([str(python), "-B", str(program), str(partial)])
    partial.rename(target)
    return target.read_bytes()


def host_tools(*, kernel_messages: bool) -> dict[str, tuple[bytes, int]]:
    """Programs of a host that stand for others: nvidia-modprobe, and more where the kernel's side is a stand-in."""
    places = {"nvidia-modprobe": "usr/bin"}
    if kernel_messages:
        places |= {"dmesg": "usr/bin", "seed-driver": "usr/share/rackwell-lab"}
        places |= dict.fromkeys(("nvidia-smi", "seed-apt"), "usr/share/rackwell-lab")
        places |= dict.fromkeys(("dkms", "proxmox-boot-tool", "update-initramfs"), "usr/sbin")
    found = {f"{place}/{name}": ((SOURCE / "host" / name).read_bytes(), 0o755) for name, place in places.items()}
    if kernel_messages:
        boot = {"seed-boot": "usr/share/rackwell-lab", "update-grub": "usr/sbin"}
        found |= {f"{to}/{name}": ((SOURCE / "platform" / name).read_bytes(), 0o755) for name, to in boot.items()}
    return found


def nccl(cache: Cache, version: str = gpus.DRIVER_VERSION) -> Path | None:
    """The stand-in libnccl.so.2, built beside the driver and no part of it; None while gpu/ builds none."""
    library = cache.driver / version / "libnccl.so.2"
    return library.resolve() if library.exists() else None


def driver(cache: Cache, version: str = gpus.DRIVER_VERSION) -> Path | None:
    """The driver's installer, built when its sources changed; the same files lie unpacked beside it.

    Returns:
        The ``.run`` file; None while gpu/ has no build.sh.
    """
    script = SOURCE / "gpu/build.sh"
    if not script.exists():
        return None
    with files.locked(cache.root / ".lock", "cache"):
        target = cache.driver / f"NVIDIA-Linux-x86_64-{version}.run"
        command = ["sh", str(script), str(cache.driver), version]
        # it does nothing when all is there from these sources
        if target.exists():
            run(command)
        else:
            run_long(command, cache.logs / f"driver-{version}.log", "driver", f"building the stand-in {version}")
        return target


def driver_tools(cache: Cache, version: str = gpus.DRIVER_VERSION) -> dict[str, tuple[bytes, int]]:
    """The user-space part of the driver that a host itself has: nvidia-smi and the libraries."""
    found: dict[str, tuple[bytes, int]] = {}
    for path in sorted((cache.driver / version).glob("*")):
        if path.name.startswith("libnccl."):
            continue
        place = f"usr/bin/{path.name}" if path.name == "nvidia-smi" else f"usr/lib/x86_64-linux-gnu/{path.name}"
        if path.is_symlink():
            found[place] = (str(path.readlink()).encode(), hosts.LINK)
        elif path.name == "nvidia-smi" or ".so." in path.name:
            found[place] = (path.read_bytes(), 0o755)
    return found


def engine_wheel(cache: Cache) -> Path | None:
    """The stand-in engine's wheel, built when its sources changed; None while engine/ has no build_wheel.py."""
    script = SOURCE / "engine/build_wheel.py"
    if not script.exists():
        return None
    with files.locked(cache.root / ".lock", "cache"):
        recipe = files.digest(SOURCE / "engine/rackwell_lab_engine", script)
        note = cache.wheels / "engine.recipe"
        wheels = sorted(cache.wheels.glob("rackwell_lab_engine-*.whl"))
        if len(wheels) == 1 and note.exists() and note.read_text().strip() == recipe:
            return wheels[0]
        say("engine", "building the stand-in's wheel")
        shutil.rmtree(cache.wheels, ignore_errors=True)
        cache.wheels.mkdir(parents=True)
        run(["python3", "-B", str(script), str(cache.wheels)])
        files.write(note, recipe + "\n")
        return next(cache.wheels.glob("rackwell_lab_engine-*.whl"))
