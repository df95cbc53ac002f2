#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a release of many files takes to be staged again, beside the plain tools that do the same.

    python benchmarks/staging.py [--files 100000] [--wheels 20] [--runs 3] [--folder DIR]

Makes wheels of small files, stages one release of them into a scratch store as a container would (cold: everything is
unpacked), then a second release in which one wheel differs, as after a one-line patch: that is what is measured, from
the question what is missing to the link that leads to it. Beside it, in the same run and on the same disk:

- ``uv pip install``, plain: into a new environment, with uv's own cache warm, by copies and by hard links;
- ``cp -a`` and ``cp -al`` of the first environment.

What rackwell does more: it hashes every wheel, compares every installed file with its wheel, and flushes the disk.
Prints the medians, and the ratios to each peer; the machine's other work is in all of them alike.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uv
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import Manifest, pack, pieces
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store

STAMP = (2020, 1, 1, 0, 0, 0)


def wheel(folder: Path, name: str, files: int, note: str = "") -> dict[str, Any]:
    """A wheel of `files` small modules, stored in `folder` under its hash. `note` makes one file differ."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    lines = []
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:

        def add(member: str, data: bytes) -> None:
            hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{member},sha256={hashed},{len(data)}")
            archive.writestr(zipfile.ZipInfo(member, STAMP), data)

        for number in range(files - 3):
            said = note if number == 0 else ""
            text = f"NUMBER = {number}\nNAME = {name!r}{said}\n" + "# a line of a small module\n" * 60
            add(f"{name}/part{number // 100}/m{number}.py", text.encode())
        add(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode())
        add(f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: b\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", STAMP), "\n".join([*lines, f"{info}/RECORD,,", ""]))
    return taken(folder, path, name)


def taken(folder: Path, path: Path, name: str) -> dict[str, Any]:
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    path.rename(folder / sha256)
    return {"project": name, "version": "1.0", "filename": path.name, "sha256": sha256, "size": len(data)}


def installer(folder: Path) -> dict[str, Any]:
    """A wheel that hands on to this machine's uv."""
    path = folder / "uv-0-py3-none-any.whl"
    program = zipfile.ZipInfo("uv-0.data/scripts/uv", STAMP)
    program.external_attr = 0o755 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(program, f'#!/bin/sh\nexec "{uv.find_uv_bin()}" "$@"\n')
    return taken(folder, path, "uv")


def release(name: str, wheels: list[dict[str, Any]], uv_wheel: dict[str, Any]) -> tuple[Manifest, str]:
    requirements = "".join(sorted(f"{w['project']}==1.0 --hash=sha256:{w['sha256']}\n" for w in wheels))
    manifest = {
        "schema": "rackwell.release/1",
        "name": name,
        "python": ".".join(map(str, sys.version_info[:2])),
        "platform": "linux_x86_64",
        "sources": [],
        "patches": [],
        "wheels": wheels,
        "uv": {key: uv_wheel[key] for key in ("filename", "sha256", "size")},
        "requirements_sha256": hashlib.sha256(requirements.encode()).hexdigest(),
    }
    return Manifest(json.dumps(manifest, sort_keys=True, separators=(",", ":")) + "\n"), requirements


def stage(store: Store, blobs: Path, built: tuple[Manifest, str], folder: Path) -> int:
    """As the action and the module do it. Returns the bytes that travelled."""
    manifest, requirements = built
    missing = {sha256: manifest.blobs[sha256] for sha256 in store.missing(manifest)}
    store.lock()
    try:
        for chunk in pieces(missing):
            pack(chunk, str(blobs), str(folder / "transfer.tar"))
            store.receive(manifest, str(folder / "transfer.tar"))
        store.install(manifest, requirements, getpass.getuser())
        store.tidy()
        store.switch("current", manifest.digest)
    finally:
        store.unlock()
    return sum(missing.values())


def timed(work: Callable[[], object]) -> float:
    os.sync()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def peers(folder: Path, store: Store, built: tuple[Manifest, str], first: Path) -> dict[str, Callable[[], None]]:
    """What is measured beside it; each makes a new environment."""
    target = folder / "peer"
    wheels = folder / "named"
    wheels.mkdir()
    for one in built[0].wheels:
        os.link(f"{store.blobs}/{one['sha256']}", wheels / one["filename"])
    (folder / "requirements.txt").write_text(built[1])
    program, environment = uv.find_uv_bin(), {**os.environ, "UV_CACHE_DIR": str(folder / "uv-cache")}
    common = ["--offline", "--no-config", "--quiet"]

    def install(mode: str) -> None:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run([program, "venv", *common, "--python", sys.executable, target], check=True, env=environment)
        arguments = ["--python", target / "bin/python", "--no-index", "--no-deps", "--find-links", wheels]
        arguments += ["--link-mode", mode, "--requirement", folder / "requirements.txt"]
        subprocess.run([program, "pip", "install", *common, *arguments], check=True, env=environment)

    def copy(option: str) -> None:
        subprocess.run(["cp", option, first, target], check=True)

    return {
        "uv pip install, copies": lambda: install("copy"),
        "uv pip install, hard links": lambda: install("hardlink"),
        "cp -a": lambda: copy("-a"),
        "cp -al": lambda: copy("-al"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--wheels", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; needs some GB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rackwell-staging-", dir=options.folder) as name:
        folder = Path(name)
        blobs = folder / "blobs"
        blobs.mkdir()
        python = folder / "bin"
        python.mkdir()
        version = ".".join(map(str, sys.version_info[:2]))
        (python / f"python{version}").symlink_to(getattr(sys, "_base_executable", sys.executable))
        each = options.files // options.wheels
        print(f"making {options.wheels} wheels of {each} files", file=sys.stderr)
        wheels = [wheel(blobs, f"pkg{number}", each) for number in range(options.wheels)]
        uv_wheel = installer(blobs)
        store = Store(str(folder / "opt"), str(folder / "cache"), str(python))
        base = release("base", wheels, uv_wheel)
        cold = timed(lambda: stage(store, blobs, base, folder))
        first = Path(store.release(base[0].digest)) / "env"
        measured: dict[str, list[float]] = {}
        travelled = 0
        for run in range(options.runs):
            patched = [wheel(blobs, "pkg0", each, f" + '{run}'"), *wheels[1:]]
            built = release(f"patched{run}", patched, uv_wheel)

            def work(built: tuple[Manifest, str] = built) -> None:
                nonlocal travelled
                travelled = stage(store, blobs, built, folder)

            measured.setdefault("rackwell, one wheel patched", []).append(timed(work))
        others = peers(folder, store, base, first)
        others["uv pip install, hard links"]()  # its own cache is warm from here on
        for label, other in others.items():
            for _ in range(options.runs):
                shutil.rmtree(folder / "peer", ignore_errors=True)
                measured.setdefault(label, []).append(timed(other))
        files = sum(len(names) for _, _, names in os.walk(first))
        size = sum(one["size"] for one in wheels)
        print(
            f"{files:,} files, {len(wheels)} wheels, {size / 1e6:,.1f} MB; {os.cpu_count()} cores, {options.runs} runs"
        )
        print(f"cold, everything sent and unpacked: {cold:.1f} s; patched: {travelled / 1e6:.2f} MB sent")
        own = statistics.median(measured["rackwell, one wheel patched"])
        for label, times in measured.items():
            middle = statistics.median(times)
            ratio = "" if label.startswith("rackwell") else f"   rackwell takes {own / middle:.2f} of it"
            print(f"{label:<30} {middle:6.2f} s ({min(times):.2f} to {max(times):.2f}){ratio}")


if __name__ == "__main__":
    main()
