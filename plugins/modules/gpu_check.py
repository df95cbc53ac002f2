#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Do the GPUs of a container compute, and copy to each other, for the service user?"""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_check
short_description: Prove that the GPUs of a container work
version_added: 0.1.0
description:
  - Runs the checks of C(rackwell.probe) in the container as the service user. They start CUDA, write to and read from
    each GPU, and copy between all ordered pairs of GPUs, comparing every byte.
  - Each check runs with a deadline and is killed when it passes that, so a GPU that hangs ends the task with an error.
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
    description: Deadline of each check in seconds.
    type: int
    default: 300
  gpus:
    description: How many GPUs there must be. Without it, one at least.
    type: int
  p2p:
    description: Whether the copies between GPUs are checked too.
    type: bool
    default: true
  p2p_size:
    description: MiB of one copy.
    type: int
    default: 64
  p2p_min_bandwidth:
    description: Floor in GB/s that each ordered pair must reach; 0 for none.
    type: float
    default: 0.0
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
- name: Check eight GPUs and the copies between them
  rackwell.gpu.gpu_check:
    gpus: 8
    p2p_min_bandwidth: 30
"""

RETURN = r"""
rackwell_result:
  description: The reports of the checks. Also returned when one of them fails.
  returned: when the probe was there
  type: dict
  contains:
    schema:
      description: Always C(rackwell.gpu_check/1).
      type: str
    verdict:
      description: V(pass) or V(fail); V(skipped) in check mode when the probe is still to come.
      type: str
    cuda:
      description: Report C(rackwell.cuda/1) of the probe.
      type: dict
    p2p:
      description: Report C(rackwell.p2p/1) of the probe; null when it was not asked for or CUDA failed.
      type: dict
problems:
  description: Everything that is wrong. The error names the first of it.
  returned: failure
  type: list
  elements: dict
"""

import json
import os
import pwd
import signal
import subprocess
from typing import Any, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

SCHEMA = "rackwell.gpu_check/1"
#: seconds beyond the probe's own deadline, for its interpreters to come up and its children to be killed
ALLOWANCE = 180
#: after SIGKILL; a process that is still there then is stuck in the kernel and is left
GRACE = 5


class CheckError(Exception):
    """Ends the task: what, where, why and fix under the given code, and what else is returned."""

    def __init__(self, code: str, what: str, where: str, why: str, fix: str, **extra: Any) -> None:
        super().__init__(what)
        self.parts = (code, what, where, why, fix)
        self.extra = extra


def main() -> None:
    """Run the checks that were asked for and end with their reports."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/rackwell"},
            "user": {"type": "str", "default": "rackwell"},
            "timeout": {"type": "int", "default": 300},
            "gpus": {"type": "int"},
            "p2p": {"type": "bool", "default": True},
            "p2p_size": {"type": "int", "default": 64},
            "p2p_min_bandwidth": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    try:
        result = check(module.params, module.check_mode)
    except CheckError as error:
        fail(module, *error.parts, **error.extra)
    done(module, changed=False, result=result)


def check(args: Dict[str, Any], look_only: bool) -> Dict[str, Any]:
    """The reports of the checks that were asked for. Raises CheckError, also when one of them fails."""
    check_values(args)
    python = os.path.join(args["root"], "probe", "env", "bin", "python")
    account = account_of(args["user"])
    present = os.access(python, os.X_OK)
    result = {"schema": SCHEMA, "verdict": "pass", "cuda": None, "p2p": None}  # type: Dict[str, Any]
    if look_only and not (present and account):
        result["verdict"] = "skipped"
        return result
    fix = "apply the role rackwell.gpu.gpu_probe"
    if account is None:
        what = "the user {0} does not exist".format(args["user"])
        raise CheckError("user-missing", what, "user", "the checks run as the user that serves", fix)
    if not present:
        raise CheckError(
            "probe-missing", "the probe is not installed", python, "no release is active in the slot probe", fix
        )
    for name, options in wanted(args).items():
        result[name] = run([python, "-m", "rackwell.probe", name, "--json", *options], args["timeout"], account)
        if result[name]["problems"] or result[name]["verdict"] != "pass":
            result["verdict"] = "fail"
            raise failure(name, result[name]["problems"], result)
    return result


def check_values(args: Dict[str, Any]) -> None:
    """Refuse numbers that the probe would refuse, by the option's name."""
    for option, least in (("timeout", 1), ("gpus", 1), ("p2p_size", 1), ("p2p_min_bandwidth", 0)):
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


def wanted(args: Dict[str, Any]) -> Dict[str, List[str]]:
    """The checks in their order, with their options."""
    common = ["--timeout", str(args["timeout"])]
    if args["gpus"] is not None:
        common += ["--gpus", str(args["gpus"])]
    checks = {"cuda": common}
    if args["p2p"]:
        p2p = ["--size", str(args["p2p_size"]), "--min-bandwidth", str(args["p2p_min_bandwidth"])]
        checks["p2p"] = common + p2p
    return checks


def run(command: List[str], timeout: int, account: pwd.struct_passwd) -> Dict[str, Any]:
    """One check as the service user: its report. Raises CheckError when it gives none."""
    where = " ".join(command)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
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
        out, err = process.communicate(timeout=timeout + ALLOWANCE)
    except subprocess.TimeoutExpired as error:
        kill(process)
        why = "no report after {0} s, although its own deadline is {1} s".format(timeout + ALLOWANCE, timeout)
        fix = "on the Proxmox host look at `dmesg | grep -E 'NVRM|Xid'`"
        raise CheckError("probe-hang", "the probe did not end", where, why, fix) from error
    report = report_in(out)
    if report is None:
        why = "it ended with status {0}: {1}".format(process.returncode, err.decode("utf-8", "replace").strip()[-500:])
        fix = "build it anew and apply the role rackwell.gpu.gpu_probe"
        raise CheckError("probe-failed", "the probe gave no report", where, why, fix)
    return report


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


def failure(name: str, problems: List[Dict[str, str]], result: Dict[str, Any]) -> CheckError:
    """The first problem as the task's error, and all of them beside it."""
    first = problems[0] if problems else {}
    what = first.get("what") or "the {0} check failed without a reason".format(name)
    if len(problems) > 1:
        what += " (and {0} more)".format(len(problems) - 1)
    parts = [first.get(key) or "" for key in ("where", "why", "fix")]
    return CheckError(first.get("code") or "gpu-check-failed", what, *parts, problems=problems, rackwell_result=result)


if __name__ == "__main__":
    main()
