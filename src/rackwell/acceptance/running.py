# SPDX-License-Identifier: Apache-2.0
"""Has pytest run the suite about one container, in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rackwell import bounded
from rackwell.acceptance import result
from rackwell.acceptance.result import Accepted
from rackwell.errors import ExitCode, Problem, RackwellError

SUITE = Path(__file__).with_name("suite")
EXTRA = "acceptance"
DEADLINE_S = 900.0
#: what pytest ends with when all passed, and when some failed; everything else is no verdict
_ENDED = {0, 1}


def require_pytest() -> None:
    """Raises RackwellError (exit 2) where the packages of the extra are not installed."""
    missing = [
        package
        for module, package in (("pytest", "pytest"), ("testinfra", "pytest-testinfra"))
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise RackwellError(
            Problem(
                "extra-missing",
                f"the acceptance suite needs {' and '.join(missing)}, which rackwell does not bring by itself",
                sys.executable,
                f"the extra '{EXTRA}' is not installed",
                f"{sys.executable} -m pip install 'rackwell[{EXTRA}]'",
            ),
            ExitCode.INVALID,
        )


def run(expected: Mapping[str, Any], folder: Path, seconds: float = DEADLINE_S) -> Accepted:
    """Hold the machines against `expected`.

    Args:
        folder: where JUnit, JSON and log are written, as ``acceptance-CONTAINER.*``.

    Raises:
        RackwellError: the folder cannot be written (exit 1).
    """
    name = str(expected["container"])
    wanted, lines, junit, log, report = (
        folder / f"acceptance-{name}.{end}" for end in ("expected.json", "jsonl", "xml", "log", "json")
    )
    began = time.monotonic()
    broken = ""
    try:
        wanted.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
        with log.open("w", encoding="utf-8") as told:
            done = bounded.run(
                _command(junit),
                seconds,
                late=bounded.timed_out(
                    "the acceptance suite did not end in time", name, seconds, "a machine hangs", f"see {log}"
                ),
                cwd=SUITE,
                env=_environment(wanted, lines),
                on_line=lambda line: _tell(told, line),
            )
        if done.returncode not in _ENDED:
            last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
            broken = f"pytest ended with {done.returncode}: {last.strip()[:200]}"
    except RackwellError as error:
        broken = error.problems[0].why
    except OSError as error:
        raise RackwellError(
            Problem("cannot-write", "the acceptance's files cannot be written", str(folder), error.strerror or "")
        ) from error
    checks = result.read(lines)
    lines.unlink(missing_ok=True)
    found = Accepted(
        name,
        str(expected["host"]),
        checks,
        time.monotonic() - began,
        junit if junit.exists() else None,
        report,
        log,
        broken,
    )
    try:
        report.write_text(json.dumps(found.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError:
        return dataclasses.replace(found, report=None)
    return found


def _tell(stream: Any, line: str) -> None:
    stream.write(line)
    stream.flush()


def _command(junit: Path) -> list[str]:
    # -P: the working directory is no place for modules; nothing of the operator's own pytest settings holds here
    return [
        *(sys.executable, "-P", "-m", "pytest", str(SUITE), "-c", str(SUITE / "pytest.ini"), "--rootdir", str(SUITE)),
        *("-p", "no:cacheprovider", "-q", "--color=no", "--tb=short", "-ra", f"--junitxml={junit}"),
    ]


def _environment(wanted: Path, lines: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "RACKWELL_ACCEPTANCE_EXPECTED": str(wanted),
        "RACKWELL_ACCEPTANCE_RESULTS": str(lines),
        "LC_ALL": "C.UTF-8",
    }
