# SPDX-License-Identifier: Apache-2.0
"""Runs rackwell.probe as the service user: options and files in, report out, an end in any case."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from typing import Any, Iterator, Optional

SERVER_UNIT = "rackwell-inference.service"
#: seconds beyond the probe's own deadline, for its interpreters to come up and its children to be killed
ALLOWANCE = 180
#: after SIGKILL; a process that is still there then is stuck in the kernel and is left
GRACE = 5
#: for systemctl, seconds
SYSTEMCTL = 30


class CheckError(Exception):
    """Ends the task: what, where, why and fix under the given code, and what else is returned."""

    def __init__(self, code: str, what: str, where: str, why: str, fix: str, **extra: Any) -> None:
        super().__init__(what)
        self.parts = (code, what, where, why, fix)
        self.extra = extra


def account_of(user: str) -> Optional[pwd.struct_passwd]:
    """The user's account, None when there is none."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        return None


def server_runs() -> bool:
    """Whether the server's unit has processes: it may be starting or stopping as well."""
    try:
        answer = subprocess.run(
            ["systemctl", "is-active", SERVER_UNIT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SYSTEMCTL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() in (b"active", b"activating", b"reloading", b"deactivating")


@contextlib.contextmanager
def workplace() -> Iterator[str]:
    """A directory for what the probe reads and writes, gone afterwards."""
    place = tempfile.mkdtemp(prefix="rackwell-check-")
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def hand_over(place: str, account: pwd.struct_passwd) -> None:
    """Give the directory and its files to the user. Nothing may be written there by root from then on."""
    for name in os.listdir(place):
        os.chown(os.path.join(place, name), account.pw_uid, account.pw_gid)
    os.chown(place, account.pw_uid, account.pw_gid)


def baseline_in(place: str) -> str:
    """Where the probe writes the baseline."""
    return os.path.join(place, "baseline.json")


def wanted(args: dict[str, Any], place: str, beside: bool) -> list[str]:
    """The probe's command with its options. Files that it reads are written to ``place``."""
    runs = args["record_runs"]
    command = ["check", "--mode", args["mode"]] if runs is None else ["baseline", "--runs", str(runs)]
    if runs is not None:
        command += ["--out", baseline_in(place)]
    command += ["--json", "--timeout", str(args["timeout"]), "--size", str(args["size"])]
    if args["gpus"] is not None:
        command += ["--gpus", str(args["gpus"])]
    if args["expect"]:
        expect = os.path.join(place, "expect.json")
        with open(expect, "w", encoding="utf-8") as handle:
            json.dump(args["expect"], handle)
        command += ["--expect", expect]
    if args["baseline"] and runs is None:
        command += ["--baseline", args["baseline"]]
    if args["host_facts"] is not None:
        command += ["--host-facts", "-"]
    if beside:
        command.append("--beside-server")
    return command


def run(
    command: list[str],
    timeout: int,
    account: pwd.struct_passwd,
    host_facts: Optional[dict[str, Any]],
    may_be_silent: bool = False,
) -> tuple[dict[str, Any], int]:
    """The probe as the service user: its report, and its exit status.

    Raises CheckError when it gives no report; with ``may_be_silent`` the report is then empty.
    """
    where = " ".join(command)
    given = b"" if host_facts is None else json.dumps(host_facts).encode("utf-8")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": account.pw_dir},
            start_new_session=True,
            **identity(account),
        )
    except (OSError, subprocess.SubprocessError) as error:
        what = "the probe cannot be started as {0}".format(account.pw_name)
        fix = "apply the role rackwell.gpu.gpu_probe again; the module needs root to change the user"
        raise CheckError("probe-not-started", what, where, str(error), fix) from error
    try:
        out, err = process.communicate(given, timeout=timeout + ALLOWANCE)
    except subprocess.TimeoutExpired as error:
        kill(process)
        why = "no report after {0} s, although its own deadline is {1} s".format(timeout + ALLOWANCE, timeout)
        fix = "on the Proxmox host look at `dmesg | grep -E 'NVRM|Xid'`"
        raise CheckError("probe-hang", "the probe did not end", where, why, fix) from error
    report = report_in(out)
    if report is None and not (may_be_silent and process.returncode == 0):
        why = "it ended with status {0}: {1}".format(process.returncode, err.decode("utf-8", "replace").strip()[-500:])
        fix = "build it anew and apply the role rackwell.gpu.gpu_probe"
        raise CheckError("probe-failed", "the probe gave no report", where, why, fix)
    return report or {}, process.returncode


def report_in(out: bytes) -> Optional[dict[str, Any]]:
    """The report on the probe's stdout, None when that is none."""
    try:
        report = json.loads(out.decode("utf-8"))
    except ValueError:
        return None
    if isinstance(report, dict) and isinstance(report.get("problems"), list) and "verdict" in report:
        return report
    return None


def identity(account: pwd.struct_passwd) -> dict[str, Any]:
    """What Popen needs to become the user, with all its groups; nothing when it is the user already."""
    if os.geteuid() == account.pw_uid:
        return {}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the probe and what it started; one that is stuck in the kernel is left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(GRACE)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
