#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Do the GPUs of a container compute, and reach each other fast and without a wrong byte, for the service user?"""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_check
short_description: Prove that the GPUs of a container work, and how fast they reach each other
version_added: 0.1.0
description:
  - Runs C(rackwell.probe) in the container as the service user. It starts CUDA, lets each GPU compute, moves verified
    data between all ordered pairs of GPUs, measures, and judges the figures against floors and the host's baseline.
  - It runs with a deadline and is killed when it passes that, so a GPU that hangs ends the task with an error.
  - Fails on the verdict V(fail) only. What is V(degraded) stands in the report.
  - Nothing is changed. In check mode, where the probe or its user is still to come, nothing is run either.
options:
  root:
    description: Directory of the releases, whose slot C(probe) leads to the probe.
    type: path
    default: /opt/rackwell
  user:
    description: User that the checks run as, the one that the server runs as.
    type: str
    default: rackwell
  timeout:
    description: Deadline of the whole check in seconds; with O(record_runs), of each run.
    type: int
    default: 600
  gpus:
    description: How many GPUs there must be. Without it, one at least.
    type: int
  mode:
    description: V(quick) verifies and measures samples in a few seconds, V(full) everything.
    type: str
    choices: [quick, full]
    default: full
  size:
    description: MiB of a measuring transfer. Each GPU needs twice this much free memory.
    type: int
    default: 256
  expect:
    description:
      - What the figures are held against. Under C(floors), by link class, C(gb_per_s) and C(latency_us); under
        C(environment), the C(NCCL_*) variables that the server has; C(nccl_library), path of its C(libnccl.so.2).
    type: dict
    default: {}
  baseline:
    description: Path of the host's recorded figures in the container. A file that is not there is told, no error.
    type: path
  host_facts:
    description: RV(rackwell_result) of M(rackwell.gpu.gpu_host), to be judged with the rest.
    type: dict
  beside_server:
    description:
      - Whether a server is using the GPUs, which then must not be disturbed, so that most of the measurements are left
        out. Without it, whether the server's unit is running.
    type: bool
  record_runs:
    description: Measure this many times and return the baseline that follows from it instead of a report.
    type: int
attributes:
  check_mode:
    support: full
    description: The checks only look, so they run in check mode too.
  diff_mode:
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Check eight GPUs and all ways between them
  rackwell.gpu.gpu_check:
    gpus: 8
    baseline: /var/lib/rackwell/baseline/gpu.json
    expect:
      floors:
        same-switch: {gb_per_s: 45}
        cross-socket: {gb_per_s: 30, latency_us: 3}

- name: Measure five times and return a baseline
  rackwell.gpu.gpu_check:
    gpus: 8
    record_runs: 5
  register: recorded
"""

RETURN = r"""
rackwell_result:
  description:
    - Report C(rackwell.gpu/1) of the probe, also when the check fails. With O(record_runs), the baseline
      C(rackwell.gpu_baseline/1); when the machine's check failed, its report.
  returned: when the probe was there
  type: dict
  contains:
    schema:
      description: C(rackwell.gpu/1) or C(rackwell.gpu_baseline/1).
      type: str
    verdict:
      description: V(pass), V(degraded) or V(fail); V(not-measured) in check mode when the probe is still to come.
      type: str
    checks:
      description: One row for each check, with its verdict, code and figures.
      type: list
      elements: dict
    findings:
      description: What is wrong, with cause, remedy, and what follows from it.
      type: list
      elements: dict
    measurements:
      description: All figures.
      type: dict
problems:
  description: Everything that is wrong. The error names the first of it.
  returned: failure
  type: list
  elements: dict
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

SCHEMA = "rackwell.gpu/1"
BASELINE_SCHEMA = "rackwell.gpu_baseline/1"
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


def main() -> None:
    """Run the check and end with its report."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/rackwell"},
            "user": {"type": "str", "default": "rackwell"},
            "timeout": {"type": "int", "default": 600},
            "gpus": {"type": "int"},
            "mode": {"type": "str", "choices": ["quick", "full"], "default": "full"},
            "size": {"type": "int", "default": 256},
            "expect": {"type": "dict", "default": {}},
            "baseline": {"type": "path"},
            "host_facts": {"type": "dict"},
            "beside_server": {"type": "bool"},
            "record_runs": {"type": "int"},
        },
        supports_check_mode=True,
    )
    try:
        result = check(module.params, module.check_mode)
    except CheckError as error:
        fail(module, *error.parts, **error.extra)
    done(module, changed=False, result=result)


def check(args: Dict[str, Any], look_only: bool) -> Dict[str, Any]:
    """The report, or the baseline. Raises CheckError, also when the verdict is fail."""
    check_values(args)
    python = os.path.join(args["root"], "probe", "env", "bin", "python")
    account = account_of(args["user"])
    present = os.access(python, os.X_OK)
    if look_only and not (present and account):
        return {"schema": SCHEMA, "mode": args["mode"], "verdict": "not-measured", "checks": [], "problems": []}
    fix = "apply the role rackwell.gpu.gpu_probe"
    if account is None:
        what = "the user {0} does not exist".format(args["user"])
        raise CheckError("user-missing", what, "user", "the checks run as the user that serves", fix)
    if not present:
        raise CheckError(
            "probe-missing", "the probe is not installed", python, "no release is active in the slot probe", fix
        )
    beside = args["beside_server"]
    if beside is None:
        beside = server_runs()
    if args["record_runs"] is not None and beside:
        what = "a baseline cannot be recorded while the server runs"
        why = "the server uses the GPUs and their links, so the figures would be too low"
        raise CheckError("server-running", what, SERVER_UNIT, why, "stop the server first", held=True)
    with workplace() as place:
        command = [python, "-m", "rackwell.probe", *wanted(args, place, beside)]
        hand_over(place, account)
        if args["record_runs"] is None:
            return judged(run(command, args["timeout"], account, args["host_facts"])[0])
        return recorded(command, args, account, place)


def judged(report: Dict[str, Any]) -> Dict[str, Any]:
    """The report, unless its verdict is fail: then CheckError."""
    if report["verdict"] not in ("pass", "degraded"):
        raise failure(report)
    return report


def recorded(command: List[str], args: Dict[str, Any], account: pwd.struct_passwd, place: str) -> Dict[str, Any]:
    """The baseline that the probe wrote. Raises CheckError when the machine's check fails."""
    # one measurement more: the check that must be clean before anything is recorded
    timeout = args["timeout"] * (args["record_runs"] + 1)
    report, code = run(command, timeout, account, args["host_facts"], may_be_silent=True)
    if report.get("schema") == SCHEMA:
        judged(report)
    try:
        # never through a link: the directory is the user's, and this is root
        with open(os.open(baseline_in(place), os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as handle:
            baseline = json.load(handle)
    except (OSError, ValueError) as error:
        why = "it ended with status {0}: {1}".format(code, error)
        fix = "run it by hand: " + " ".join(command)
        raise CheckError("probe-failed", "the probe gave no baseline", " ".join(command), why, fix) from error
    if not isinstance(baseline, dict) or baseline.get("schema") != BASELINE_SCHEMA:
        raise CheckError(
            "probe-failed",
            "the probe gave no baseline",
            " ".join(command),
            "what it wrote is not {0}".format(BASELINE_SCHEMA),
            "build the probe anew and apply the role rackwell.gpu.gpu_probe",
        )
    return baseline


def check_values(args: Dict[str, Any]) -> None:
    """Refuse numbers that the probe would refuse, by the option's name."""
    for option, least in (("timeout", 1), ("gpus", 1), ("size", 1), ("record_runs", 2)):
        value = args[option]
        if value is not None and not value >= least:
            raise CheckError(
                "invalid-option",
                "{0} is {1}".format(option, value),
                option,
                "it must be at least {0}".format(least),
                "give a number of at least {0}".format(least),
            )


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


def wanted(args: Dict[str, Any], place: str, beside: bool) -> List[str]:
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
    command: List[str],
    timeout: int,
    account: pwd.struct_passwd,
    host_facts: Optional[Dict[str, Any]],
    may_be_silent: bool = False,
) -> Tuple[Dict[str, Any], int]:
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


def report_in(out: bytes) -> Optional[Dict[str, Any]]:
    """The report on the probe's stdout, None when that is none."""
    try:
        report = json.loads(out.decode("utf-8"))
    except ValueError:
        return None
    if isinstance(report, dict) and isinstance(report.get("problems"), list) and "verdict" in report:
        return report
    return None


def identity(account: pwd.struct_passwd) -> Dict[str, Any]:
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


def failure(report: Dict[str, Any]) -> CheckError:
    """The first problem as the task's error, and all of them beside it. What fails comes before what is degraded."""
    failing = [finding.get("code") for finding in report.get("findings", []) if finding.get("verdict") == "fail"]
    problems = sorted(report["problems"], key=lambda problem: problem.get("code") not in failing)
    first = problems[0] if problems else {}
    what = first.get("what") or "the check failed without a reason"
    if len(problems) > 1:
        what += " (and {0} more)".format(len(problems) - 1)
    parts = [first.get(key) or "" for key in ("where", "why", "fix")]
    return CheckError(first.get("code") or "gpu-check-failed", what, *parts, problems=problems, rackwell_result=report)


if __name__ == "__main__":
    main()
