#!/usr/bin/env -S python3 -SE
# SPDX-License-Identifier: Apache-2.0
"""Plays systemd-run, systemctl, journalctl and the probe's recorder for the module's tests, by its name.

What it does is in the directory ``FAKE_BENCH``: ``outcome`` (service result and status); ``out.jsonl``, ``stdout``,
``stderr``, ``telemetry.json`` (copied to where the unit would leave them); ``state`` and ``active`` (what ``systemctl
show`` says, a line for each call, the last one for ever); ``units`` (what ``systemctl list-units`` says).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PLAN = Path(os.environ["FAKE_BENCH"])


def log(argv: list[str]) -> None:
    with (PLAN / "calls").open("a") as stream:
        stream.write(json.dumps(argv) + "\n")


def systemd_run(argv: list[str]) -> int:
    split = argv.index("--")
    properties = dict(argv[i + 1].split("=", 1) for i in range(split) if argv[i] == "-p")
    if not Path(properties["WorkingDirectory"]).is_dir():
        return 1
    secret = Path(properties["EnvironmentFile"].lstrip("-"))
    if secret.exists():
        shutil.copy(secret, PLAN / "secret")
    subprocess.run(argv[split + 1 :], check=False)
    for name, entry in (("stdout", "StandardOutput"), ("stderr", "StandardError")):
        if (PLAN / name).exists():
            shutil.copy(PLAN / name, properties[entry].removeprefix("append:"))
    # as ExecStopPost does, through the shell that it names
    result, status = (PLAN / "outcome").read_text().split()
    command = properties["ExecStopPost"].replace("$$", "$")
    subprocess.run(
        command,
        shell=True,
        check=True,
        env={**os.environ, "SERVICE_RESULT": result, "EXIT_CODE": "exited", "EXIT_STATUS": status},
    )
    return 0


def recorder(argv: list[str]) -> int:
    out = Path(argv[argv.index("--output-file") + 1])
    if (PLAN / "out.jsonl").exists():
        shutil.copy(PLAN / "out.jsonl", out)
    if (PLAN / "telemetry.json").exists():
        shutil.copy(PLAN / "telemetry.json", argv[argv.index("--out") + 1])
    return 0


def systemctl(argv: list[str]) -> int:
    if argv[0] == "list-units":
        units = PLAN / "units"
        print(units.read_text() if units.exists() else "", end="")
        return 0
    file = PLAN / ("active" if "--property=ActiveState" in argv else "state")
    lines = file.read_text().splitlines() if file.exists() else [""]
    print(lines[0])
    if len(lines) > 1:
        file.write_text("\n".join(lines[1:]) + "\n")
    return 0


def journalctl(_argv: list[str]) -> int:
    print('INFO: 127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK')
    print("Scheduler hit an exception: Traceback\nAttributeError: page_table_1_flattened\nkill_process_tree called")
    print("server_args=ServerArgs(model_path='/m', api_key='hunter2')")
    return 0


PLAYS = {"systemd-run": systemd_run, "python": recorder, "systemctl": systemctl, "journalctl": journalctl}

if __name__ == "__main__":
    log(sys.argv)
    raise SystemExit(PLAYS[Path(sys.argv[0]).name](sys.argv[1:]))
