# SPDX-License-Identifier: Apache-2.0
"""A measurement as a transient unit of systemd: it outlives the connection that asked for it, and is found again.

The measurement's directory holds all there is to know. It is root's: ``request.json`` (what was asked, written before
the unit is started), ``context.json``, ``stdout`` and ``stderr`` (systemd opens them as root) and, once read, the
packed ``out.jsonl.gz``. The service user can write only below ``client/``: ``out.jsonl`` (the client's line),
``telemetry.json`` and ``outcome`` (written by the unit's ExecStopPost, so it is there after a timeout or a kill as
well). Root never writes there, and reads from there only what is a regular file of that user.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

#: run of a command -> (exit code, stdout, stderr); AnsibleModule.run_command fits
Runner = Callable[[List[str]], Tuple[int, str, str]]

POLL_S = 1.0
#: Seconds after the deadline in which systemd stops the unit and the controller's side still waits.
STOP_S = 30
#: The one directory of a measurement in which the service user can write.
CLIENT = "client"
RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")


def point_name(options: Mapping[str, Any]) -> str:
    """Names a point within its run: its lengths, its streams and the number of its repeat."""
    return "i%(input_tokens)d-o%(output_tokens)d-c%(concurrency)d-r%(repeat)d" % options


def name(run_id: str, point: str) -> str:
    """The unit's name, the same for every try at this point of this run."""
    return "rackwell-bench-%s-%s.service" % (run_id, point)


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
    client = os.path.join(directory, CLIENT)
    stop_post = "/bin/sh -c 'echo \"$$SERVICE_RESULT $$EXIT_CODE $$EXIT_STATUS\" >%s/outcome'" % client
    properties = [
        "User=" + user,
        "WorkingDirectory=" + client,
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


def others(run: Runner, unit: str) -> List[str]:
    """Other measurements that run on this host: an interrupted run's last point, or somebody else's."""
    states = "--state=activating,active,deactivating"
    argv = ["systemctl", "list-units", "--plain", "--no-legend", "--full", states, "rackwell-bench-*.service"]
    names = [line.split()[0] for line in run(argv)[1].splitlines() if line.strip()]
    return [found for found in names if found != unit]


def wait(run: Runner, unit: str, timeout: float) -> bool:
    """Wait for the end of a unit that somebody else started. False when it still runs after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while active(run, unit):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def make_directory(state: str, run_id: str, point: str, uid: int, gid: int) -> str:
    """An empty directory for a measurement, of which only ``client/`` is the service user's. Returns its path.

    Raises:
        OSError: among others EPERM, when a directory above it is one in which somebody else could plant links.
    """
    run = os.path.join(state, run_id)
    directory = os.path.join(run, point)
    client = os.path.join(directory, CLIENT)
    before = os.umask(0o022)  # the service user must reach what is below
    try:
        os.makedirs(run, exist_ok=True)
        # a link above is the administrator's choice, as long as others cannot exchange it
        for found, where in (
            (os.stat(os.path.dirname(state)), os.path.dirname(state)),
            (os.lstat(state), state),
            (os.lstat(run), run),
        ):
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
                raise PermissionError(errno.EPERM, "others than root can write there, or it is a link", where)
        if os.path.isdir(directory) and not os.path.islink(directory):
            shutil.rmtree(directory)  # what an earlier try left, or a version that gave it all to the user
        elif os.path.lexists(directory):
            os.unlink(directory)
        # the user must get through, and nobody else needs to read
        for path, owner in ((directory, os.geteuid()), (client, uid)):
            os.mkdir(path, 0o750)
            os.chown(path, owner, gid)
    finally:
        os.umask(before)
    return directory


def read_text(path: str, owner: Optional[int] = None) -> str:
    """Content of a regular file, empty when there is none. A link is none, nor is a file of another than ``owner``."""
    try:
        # not to wait for the other end of a pipe
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, encoding="utf-8", errors="replace") as stream:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or owner not in (None, found.st_uid):
                return ""
            return stream.read()
    except OSError:
        return ""


def read_json(path: str, owner: Optional[int] = None) -> Optional[Dict[str, Any]]:
    """A JSON object, or None when the file is absent, not whole, or none for :func:`read_text`."""
    try:
        value = json.loads(read_text(path, owner))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_text(path: str, text: str, mode: int = 0o640) -> None:
    """Replace a file in one step."""
    partial = path + ".partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(partial, flags, mode), "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(partial, path)


def outcome(directory: str, owner: int) -> Optional[Tuple[str, str, str]]:
    """(service result, exit code kind, exit status) as systemd told them at the unit's end; None before it.

    ``owner``: the service user's id.
    """
    parts = read_text(os.path.join(directory, CLIENT, "outcome"), owner).split()
    if not parts:
        return None
    parts += ["", ""]
    return parts[0], parts[1], parts[2]
