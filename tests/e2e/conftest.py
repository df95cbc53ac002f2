# SPDX-License-Identifier: Apache-2.0
"""The laboratory's site, and the command line as an operator calls it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
# the one that `make test` brings up; RACKWELL_LAB_NAME names another
INSTANCE = os.environ.get("RACKWELL_LAB_NAME", "test")
# more of the same kind, which CI has no time for: RACKWELL_E2E=full runs it
more = pytest.mark.skipif(os.environ.get("RACKWELL_E2E") != "full", reason="more of the same kind: RACKWELL_E2E=full")


@dataclasses.dataclass
class Ended:
    """How a command ended."""

    code: int
    json: dict[str, Any]
    stderr: str

    @property
    def codes(self) -> list[str]:
        return [problem["code"] for problem in self.json["problems"]]

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.json["result"]
        return result


def rackwell(*arguments: str | Path) -> Ended:
    """Run a command with --json."""
    command = [sys.executable, "-c", "from rackwell.cli.main import run; run()", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.stdout.strip(), f"no JSON on stdout; stderr:\n{done.stderr}"
    # shown by pytest beside a failure: what the operator would have read
    print("rackwell", *arguments, "-> exit", done.returncode, done.stderr[-4000:], sep="\n", file=sys.stderr)
    return Ended(done.returncode, json.loads(done.stdout), done.stderr)


def lab(*arguments: str) -> str:
    """Run a laboratory command on the tests' instance."""
    command = [sys.executable, str(REPOSITORY / "tests/lab/lab.py"), arguments[0], "--name", INSTANCE, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def inside(name: str, *command: str) -> str:
    """Run a command as root on a host or in a container of the laboratory."""
    return lab("shell", name, *command).strip()


@pytest.fixture(scope="session")
def site() -> Path:
    """The laboratory's own site, as `make demo` uses it. Tests that change a declaration use `edited`."""
    path = os.environ.get("RACKWELL_SITE")
    assert path, "RACKWELL_SITE is not set: these tests are run by `make test`, which starts the laboratory"
    return Path(path)


@pytest.fixture(scope="session")
def container() -> str:
    """The container of these tests. The molecule scenarios have the other one, glm5-01, and `make test` lets a part of
    the end-to-end tests follow them there, while the rest runs here."""
    return os.environ.get("RACKWELL_E2E_CONTAINER", "glm5-02")


@pytest.fixture(scope="session")
def host(container: str) -> str:
    """The Proxmox host of that container."""
    return {"glm5-01": "pve1", "glm5-02": "pve2", "glm5-03": "pve3"}[container]


@pytest.fixture
def edited(site: Path, tmp_path: Path) -> Callable[..., Path]:
    """``edited({"host_vars/glm5-02.yml": {...}})`` -> a copy of the site with those keys set (None: removed)."""

    def edit(changes: dict[str, dict[str, Any]]) -> Path:
        copy = tmp_path / "site"
        if not copy.exists():
            shutil.copytree(site, copy, symlinks=True, ignore=shutil.ignore_patterns(".rackwell"))
            # downloads, releases and results are shared with the real site: only the declaration differs
            (copy / ".rackwell").symlink_to(site / ".rackwell")
        for name, keys in changes.items():
            document = yaml.safe_load((copy / name).read_text()) or {}
            for key, value in keys.items():
                if value is None:
                    document.pop(key, None)
                else:
                    document[key] = value
            (copy / name).write_text(yaml.safe_dump(document))
        return copy

    return edit


@pytest.fixture
def faults(host: str) -> Iterator[Callable[..., str]]:
    """``faults("engine", "faults.output=garbage")``; taken back afterwards."""
    yield lambda *arguments: lab("set", "--host", host, *arguments)
    lab("reset", "--host", host)


@dataclasses.dataclass(frozen=True)
class Serving:
    """What runs in the container at one moment."""

    invocation: str
    release: str
    unit: str

    @classmethod
    def now(cls, container: str) -> Serving:
        show, release, unit = inside(
            container,
            "systemctl show -P InvocationID -P ActiveState rackwell-inference.service | paste -sd ' ';"
            "readlink /opt/rackwell/current; sha256sum /etc/systemd/system/rackwell-inference.service",
        ).splitlines()
        assert "active" in show.split(), f"the server is not active: {show}"
        return cls(next(word for word in show.split() if len(word) == 32), release, unit.split()[0])


@pytest.fixture
def serving(container: str) -> Callable[[], Serving]:
    return lambda: Serving.now(container)


def interrupt_at(marker: str, *arguments: str | Path) -> tuple[int, str]:
    """Start a command, send SIGINT to it when `marker` is in its progress, and return its exit code and stderr."""
    command = [sys.executable, "-u", "-c", "from rackwell.cli.main import run; run()", *map(str, arguments)]
    # a session of its own: the signal goes to the command alone, as `kill -INT PID` does
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stderr is not None
    seen: list[str] = []
    sent = False
    for line in process.stderr:
        seen.append(line)
        if marker in line and not sent:
            sent = True
            process.send_signal(signal.SIGINT)
    code = process.wait()
    assert sent, f"{marker!r} was never in the progress:\n{''.join(seen)}"
    return code, "".join(seen)
