# SPDX-License-Identifier: Apache-2.0
"""The machines by ssh, the expectation, and a line of JSON for each test.

By hand: ``RACKWELL_ACCEPTANCE_EXPECTED=FILE pytest -c SUITE/pytest.ini SUITE`` with a file that
``rackwell verify --acceptance`` left in its run's directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from rackwell.acceptance.suite.asking import UnansweredError
from rackwell.acceptance.suite.claims import Claims, NotSoError

_CLAIMS = pytest.StashKey[Claims]()


@pytest.fixture(scope="session")
def want() -> dict[str, Any]:
    """What is declared."""
    path = os.environ.get("RACKWELL_ACCEPTANCE_EXPECTED")
    if not path:
        pytest.exit("RACKWELL_ACCEPTANCE_EXPECTED names no file: rackwell verify --acceptance sets it", 4)
    loaded: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="session")
def sockets() -> Iterator[Path]:
    """A place for the shared connections of this run, which end with it."""
    with tempfile.TemporaryDirectory(prefix="rackwell-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        for socket in Path(folder).iterdir():
            with contextlib.suppress(subprocess.TimeoutExpired):
                command = ["ssh", "-F", "none", "-O", "exit", "-o", f"ControlPath={socket}", "--", "master"]
                subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=5)


@pytest.fixture(scope="session")
def pve(want: dict[str, Any], sockets: Path) -> Host:
    """The Proxmox host."""
    return _reached(want["machines"]["host"], sockets)


@pytest.fixture(scope="session")
def lxc(want: dict[str, Any], sockets: Path) -> Host:
    """The container."""
    return _reached(want["machines"]["container"], sockets)


def _reached(machine: dict[str, Any], sockets: Path) -> Host:
    if machine["down"]:
        raise UnansweredError(f"{machine['name']} is not reached: {machine['down']}")
    address = f"[{machine['address']}]" if ":" in machine["address"] else machine["address"]
    options = ["ControlMaster=auto", "ControlPersist=60s", f"ControlPath={sockets}/%C"]
    options += ["ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"]
    # what is strict comes first: of each option ssh takes the first that it is given
    words = [*machine["arguments"], *(word for option in options for word in ("-o", option))]
    found: Host = testinfra.get_host(
        f"ssh://{machine['user']}@{address}:{machine['port']}",
        ssh_identity_file=machine["key"] or None,
        ssh_extra_args=shlex.join(words),
        sudo=machine["sudo"],
    )
    return found


@pytest.fixture
def claim(request: pytest.FixtureRequest) -> Claims:
    """Says what is expected and what was found."""
    request.node.stash[_CLAIMS] = Claims()
    made: Claims = request.node.stash[_CLAIMS]
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test's verdict, in a line of its own and in JUnit's properties."""
    report = yield
    ended = report.when == "call" or (report.when == "setup" and not report.passed)
    if ended:
        line = _line(item, report, call.excinfo)
        if report.failed and line["expected"]:
            report.longrepr = "\n".join(f"{name + ':':<9} {line[name]}" for name in ("expected", "found", "fix"))
        report.user_properties = [
            *report.user_properties,
            *((name, line[name]) for name in ("title", "machine", "expected", "found", "fix") if line[name]),
        ]
        if path := os.environ.get("RACKWELL_ACCEPTANCE_RESULTS"):
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
    return report


def _line(item: pytest.Item, report: pytest.TestReport, raised: pytest.ExceptionInfo[BaseException] | None) -> Any:
    name = getattr(item, "originalname", None) or item.name
    claims = item.stash.get(_CLAIMS, Claims())
    used = getattr(item, "fixturenames", ())
    want = getattr(item, "funcargs", {}).get("want") or {}
    line: dict[str, Any] = {
        "item": f"{item.path.stem.removeprefix('test_')}/{name.removeprefix('test_').replace('_', '-')}",
        "title": (getattr(getattr(item, "function", None), "__doc__", "") or name).strip().splitlines()[0],
        "machine": str(want.get("container" if "lxc" in used else "host") or ""),
        "verdict": "pass",
        "seconds": round(report.duration, 3),
        "found": claims.evidence,
        "expected": "",
        "fix": "",
        "why": "",
        "held": False,
    }
    error = raised.value if raised is not None else None
    if report.skipped:
        line |= {"verdict": "not-declared", "why": str(getattr(error, "msg", "") or error or "")}
    elif isinstance(error, NotSoError):
        line |= {"verdict": "fail", "expected": error.expected, "found": error.found}
        line |= {"fix": error.fix, "held": error.held}
    elif error is not None:
        # testinfra raises what ssh said when the connection was lost
        why = " ".join(str(error).split())[:400] or type(error).__name__
        known = isinstance(error, (UnansweredError, RuntimeError))
        line |= {"verdict": "unknown", "why": why if known else f"{type(error).__name__}: {why}"}
    return line
