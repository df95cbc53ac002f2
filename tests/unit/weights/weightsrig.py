# SPDX-License-Identifier: Apache-2.0
"""The program that fetches, as systemd starts it: a process with a job file and the token on standard input."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hubserver import COMMIT, REPOSITORY

PROGRAM = "ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_fetch"


@dataclasses.dataclass
class Ended:
    code: int
    output: str
    state: dict[str, Any]

    @property
    def error(self) -> dict[str, str]:
        assert self.state["error"], self.output
        return dict(self.state["error"])


class Fetcher:
    """Runs of the program against one hub and one directory."""

    def __init__(self, base: Path, endpoint: str) -> None:
        self.base = base
        self.models = base / "models"
        self.repository = self.models / REPOSITORY.replace("/", "--")
        self.job: dict[str, Any] = {
            "run": "1",
            "directory": str(self.models),
            "repository": REPOSITORY,
            "revision": COMMIT,
            "include": [],
            "ignore": ["original/"],
            "from": "host",
            "source": "",
            "endpoint": endpoint,
            "workers": 2,
            "verify": "size",
            "repair": True,
            "xet": False,
            "piece": 10_000,
            "attempts": 2,
            "pause": 0.01,
            "environment": {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"},
            "state": str(base / "state.json"),
        }
        self.repository.mkdir(parents=True)

    @property
    def snapshot(self) -> Path:
        return self.repository / self.job["revision"]

    @property
    def staging(self) -> Path:
        return self.repository / f".{self.job['revision']}.partial"

    def start(self, token: str = "", **changes: Any) -> subprocess.Popen[str]:
        self.job |= changes
        path = self.base / "job.json"
        path.write_text(json.dumps(self.job))
        environment = {
            key: value for key, value in os.environ.items() if not key.upper().startswith(("HF_", "HUGGING"))
        } | {"HF_HOME": str(self.base / "home"), "NO_PROXY": "*", "no_proxy": "*"}
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        assert process.stdin
        process.stdin.write(token)
        process.stdin.close()
        process.stdin = None
        return process

    def end(self, process: subprocess.Popen[str]) -> Ended:
        output, _ = process.communicate()
        return Ended(process.returncode, output, json.loads((self.base / "state.json").read_text()))

    def run(self, token: str = "", **changes: Any) -> Ended:
        return self.end(self.start(token, **changes))
