# SPDX-License-Identifier: Apache-2.0
"""The laboratory, its site with the real engine in it, and the command line as an operator calls it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stub
import yaml

REPO = Path(__file__).resolve().parents[2]
HERE = REPO / "tests/engine"
#: wheels and the toy model, kept over runs; on the file system of the laboratory no byte is copied
CACHE = Path(os.environ.get("RACKWELL_ENGINE_CACHE", "/var/cache/rackwell-engine"))
CONTAINER, HOST, UNIT = "glm5-01", "pve1", "rackwell-inference.service"
WATCH = "rackwell-inference-watch.service"
MODEL = "/srv/models/toy-llama"
PORT = 30000
#: seconds for one start of the engine: 45 on two idle cores
START_S = int(os.environ.get("RACKWELL_ENGINE_START_S", "900"))
_DROP_IN = f"/run/systemd/system/{UNIT}.d/90-engine-test.conf"
_VARIABLES = {
    "release_build": "engine-cpu",
    "inference_server_profile": "engine-cpu",
    "bench_client_profile": "engine",
    "model_weights_path": MODEL,
    "pve_container_memory": 8192,
    "pve_container_disk_size": 32,
    "pve_container_mounts": [{"source": MODEL, "target": MODEL}],
}


class FailedError(Exception):
    """Something is not as it must be."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command of rackwell ended."""

    code: int
    json: dict[str, Any]
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["result"]
        return found

    @property
    def problems(self) -> str:
        return "; ".join(f"{one['code']}: {one['what']}: {one['why']}" for one in self.json["problems"])


def require(holds: object, what: str) -> None:
    if not holds:
        raise FailedError(what)


def until(holds: Callable[[], Any], seconds: float, what: str) -> Any:
    """What `holds` gives once it is true."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            raise FailedError(f"not in {seconds:.0f} s: {what}")
        time.sleep(0.5)
    return found


class Place:
    """One laboratory instance with the engine's site."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lab("up", "--suite", "bookworm", "--hosts", "1")
        told = json.loads(self.lab("status", "--json"))
        self.site = Path(told["site"])
        self.directory = Path(told["directory"])

    # -- programs

    def lab(self, command: str, *arguments: str, data: bytes | None = None) -> str:
        argv = [sys.executable, str(REPO / "tests/lab/lab.py"), command, "--name", self.name, *arguments]
        done = subprocess.run(argv, capture_output=True, input=data or b"", check=False)
        if done.returncode != 0:
            raise FailedError(f"lab {command} {' '.join(arguments)}: {done.stderr.decode()[-800:]}")
        return done.stdout.decode("utf-8", "replace")

    def inside(self, *command: str, data: bytes | None = None) -> str:
        """As root in the container."""
        return self.lab("shell", CONTAINER, *command, data=data).strip()

    def script(self, text: str, data: bytes | None = None) -> str:
        """A shell script as root in the container; it is ssh's one argument."""
        return self.inside(text, data=data)

    def rackwell(self, *arguments: str) -> Ended:
        argv = [sys.executable, "-c", "from rackwell.cli.main import run; run()", *arguments]
        began = time.monotonic()
        done = subprocess.run(
            [*argv, "-i", str(self.site), "--json"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False
        )
        require(done.stdout.strip(), f"rackwell {' '.join(arguments)} printed nothing and ended with {done.returncode}")
        return Ended(done.returncode, json.loads(done.stdout), time.monotonic() - began)

    # -- the site

    def prepare(self) -> None:
        """The engine's builds, profiles and sweeps in the laboratory's site, and what the cache has for it."""
        for path in sorted((HERE / "site").rglob("*")):
            target = self.site / path.relative_to(HERE / "site")
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        stub.build(self.site / "wheels")
        self.declare(_VARIABLES)
        state = self.site / ".rackwell"
        if (CACHE / "blobs").is_dir():
            state.mkdir(exist_ok=True)
            _link(CACHE / "blobs", state / "blobs")

    def declare(self, variables: dict[str, Any]) -> None:
        path = self.site / "host_vars" / f"{CONTAINER}.yml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **variables}, sort_keys=False))

    def keep(self) -> None:
        """Give to the cache what was fetched."""
        _link(self.site / ".rackwell/blobs", CACHE / "blobs")

    def model(self, release: str) -> str:
        """Have the toy model on the host, made in the container by the release's own wheels unless the cache has it."""
        source = (HERE / "model.py").read_bytes()
        kept = CACHE / f"model-{hashlib.sha256(source).hexdigest()[:16]}.tar"
        if not kept.exists():
            self.script("cat >/var/tmp/model.py", source)
            python = f"/opt/rackwell/releases/{release}/env/bin/python"
            told = self.script(f"cd /var/tmp && HOME=/var/tmp {python} model.py /var/tmp/toy-llama")
            packed = subprocess.run(
                [
                    *(sys.executable, str(REPO / "tests/lab/lab.py"), "shell", "--name", self.name, CONTAINER),
                    *("tar", "-C", "/var/tmp/toy-llama", "-cf", "-", "."),
                ],
                capture_output=True,
                check=True,
            ).stdout
            CACHE.mkdir(parents=True, exist_ok=True)
            kept.with_suffix(".partial").write_bytes(packed)
            kept.with_suffix(".partial").rename(kept)
        else:
            told = f"from {kept}"
        target = self.directory / "hosts" / HOST / "models" / Path(MODEL).name
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", str(target), "--no-same-owner", "-xf", str(kept)], check=True)
        for path in (target, *target.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return told.splitlines()[-1] if told else ""

    # -- the unit

    def show(self, *properties: str, unit: str = UNIT) -> dict[str, str]:
        names = [word for name in properties for word in ("-p", name)]
        text = self.inside("systemctl", "show", unit, *names)
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def active(self) -> str:
        return self.show("ActiveState")["ActiveState"]

    def serves(self) -> bool:
        """Whether it answers a health check now."""
        ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/health', timeout=25).status)"
        return self.script(f'python3 -c "{ask}" 2>/dev/null || true') == "200"

    def started(self) -> None:
        """Start it if need be, and wait until it serves and its watch watches."""
        self.script(f"systemctl reset-failed {UNIT} 2>/dev/null; systemctl start {UNIT}")
        until(self.serves, START_S, "the engine serves")
        until(lambda: self.show("ActiveState", unit=WATCH)["ActiveState"] == "active", 30, "the watch runs")

    def stopped(self) -> None:
        self.script(f"systemctl stop {UNIT}; systemctl reset-failed {UNIT} 2>/dev/null; true")

    def parts(self) -> dict[str, int]:
        """Process ids of the engine's named processes."""
        text = self.script("ps -eo pid=,args= | grep ' sglang::' | grep -v grep || true")
        return {line.split()[1].removeprefix("sglang::"): int(line.split()[0]) for line in text.splitlines()}

    def of_unit(self) -> list[str]:
        """Process ids in the unit's control group."""
        group = self.show("ControlGroup")["ControlGroup"] or f"/system.slice/{UNIT}"
        return self.script(f"cat /sys/fs/cgroup{group}/cgroup.procs 2>/dev/null || true").split()

    def log(self) -> str:
        """What the present start wrote, with what systemd said of it."""
        invocation = self.show("InvocationID")["InvocationID"]
        match = f"_SYSTEMD_INVOCATION_ID={invocation} + INVOCATION_ID={invocation}"
        return self.script(f"journalctl -q -o cat --no-pager -n 4000 {match}")

    @contextmanager
    def changed(self, *lines: str, flags: str = "") -> Iterator[None]:
        """The unit with further lines, or with further flags on its command line, until the end."""
        if flags:
            text = self.script(f"cat /etc/systemd/system/{UNIT}").replace("\\\n", " ")
            start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
            lines = (*lines, "ExecStart=", f"{start} {flags}")
        text = "[Service]\n" + "\n".join(lines) + "\n"
        self.script(f"mkdir -p $(dirname {_DROP_IN}) && cat >{_DROP_IN}", text.encode())
        self.script("systemctl daemon-reload")
        try:
            yield
        finally:
            self.script(f"rm -f {_DROP_IN}; systemctl daemon-reload")

    def status(self) -> dict[str, Any]:
        """The container's row of `rackwell status`."""
        row: dict[str, Any] = self.rackwell("status", CONTAINER).result["containers"][0]
        return row


def _link(source: Path, target: Path) -> None:
    """The files of a directory that the other lacks: links where they can be made, else copies."""
    for path in source.rglob("*"):
        other = target / path.relative_to(source)
        if path.is_file() and not other.exists():
            other.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, other)
            except OSError:
                shutil.copy2(path, other)
