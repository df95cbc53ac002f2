# SPDX-License-Identifier: Apache-2.0
"""A measurement as a transient unit of systemd: it outlives the connection that asked for it, and is found again.

The unit's directory holds all there is to know: ``out.jsonl`` (the client's line), ``telemetry.json``, ``stdout``,
``stderr``, ``request.json`` (what was asked, written before the unit is started) and ``outcome`` (written by the unit's
ExecStopPost, so it is there after a timeout or a kill as well).
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

#: run of a command -> (exit code, stdout, stderr); AnsibleModule.run_command fits
Runner = Callable[[List[str]], Tuple[int, str, str]]

POLL_S = 1.0
#: Seconds after the deadline in which systemd stops the unit and the controller's side still waits.
STOP_S = 30
#: What a measurement leaves; removed before it is taken anew.
FILES = (
    "request.json",
    "context.json",
    "out.jsonl",
    "out.jsonl.gz",
    "telemetry.json",
    "stdout",
    "stderr",
    "outcome",
)
RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")


def name(run_id: str, concurrency: int) -> str:
    """The unit's name, the same for every try at this point of this run."""
    return "rackwell-bench-%s-%d.service" % (run_id, concurrency)


def systemd_run(
    unit: str,
    directory: str,
    user: str,
    timeout: int,
    environment: Mapping[str, str],
    env_files: List[str],
    argv: List[str],
) -> List[str]:
    """The command that starts the unit and waits for its end.

    Everybody on the host can see ``environment``; a secret goes into one of ``env_files``, which may be absent.
    """
    stop_post = "/bin/sh -c 'echo \"$$SERVICE_RESULT $$EXIT_CODE $$EXIT_STATUS\" >%s/outcome'" % directory
    properties = [
        "User=" + user,
        "WorkingDirectory=" + directory,
        "RuntimeMaxSec=%d" % timeout,
        "TimeoutStopSec=%d" % STOP_S,
        "LimitNOFILE=65536",
        "StandardOutput=append:%s/stdout" % directory,
        "StandardError=append:%s/stderr" % directory,
        "ExecStopPost=" + stop_post,
        *("EnvironmentFile=-" + path for path in env_files),
    ]
    command = ["systemd-run", "--wait", "--collect", "--quiet", "--unit", unit, "--service-type", "exec"]
    for entry in properties:
        command += ["-p", entry]
    for key in sorted(environment):
        command.append("--setenv=%s=%s" % (key, environment[key]))
    return [*command, "--", *argv]


def active(run: Runner, unit: str) -> bool:
    """Whether the unit is starting, running or stopping."""
    _code, out, _err = run(["systemctl", "show", "--property=ActiveState", "--value", unit])
    return out.strip() in ("active", "activating", "deactivating", "reloading")


def wait(run: Runner, unit: str, timeout: float) -> bool:
    """Wait for the end of a unit that somebody else started. False when it still runs after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while active(run, unit):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def read_text(path: str) -> str:
    """Content of a file, empty when it is not there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """A JSON object, or None when the file is absent or not whole."""
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_text(path: str, text: str, mode: int = 0o640) -> None:
    """Replace a file in one step."""
    partial = path + ".partial"
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(partial, path)


def outcome(directory: str) -> Optional[Tuple[str, str, str]]:
    """(service result, exit code kind, exit status) as systemd told them at the unit's end; None before it."""
    parts = read_text(os.path.join(directory, "outcome")).split()
    if not parts:
        return None
    parts += ["", ""]
    return parts[0], parts[1], parts[2]
