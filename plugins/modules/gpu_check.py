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

import json
import os
import pwd
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_check_probe as probe
from ansible_collections.rackwell.gpu.plugins.module_utils.gpu_check_probe import CheckError
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

SCHEMA = "rackwell.gpu/1"
BASELINE_SCHEMA = "rackwell.gpu_baseline/1"


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
    account = probe.account_of(args["user"])
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
        beside = probe.server_runs()
    if args["record_runs"] is not None and beside:
        what = "a baseline cannot be recorded while the server runs"
        why = "the server uses the GPUs and their links, so the figures would be too low"
        raise CheckError("server-running", what, probe.SERVER_UNIT, why, "stop the server first", held=True)
    with probe.workplace() as place:
        command = [python, "-m", "rackwell.probe", *probe.wanted(args, place, beside)]
        probe.hand_over(place, account)
        if args["record_runs"] is None:
            return judged(probe.run(command, args["timeout"], account, args["host_facts"])[0])
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
    report, code = probe.run(command, timeout, account, args["host_facts"], may_be_silent=True)
    if report.get("schema") == SCHEMA:
        judged(report)
    try:
        # never through a link: the directory is the user's, and this is root
        with open(os.open(probe.baseline_in(place), os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as handle:
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
