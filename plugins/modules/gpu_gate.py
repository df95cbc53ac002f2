#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The boot gate of a container: no inference server before its GPUs were checked."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_gate
short_description: Check the GPUs of a container at each boot, before its inference server may start
version_added: 0.2.0
description:
  - Writes the unit C(rackwell-gpu-gate.service) and its configuration C(/etc/rackwell/gate.json), and enables the unit.
    At each start of the container it runs C(rackwell.probe gate) as the service user, which leaves its verdict in
    C(/run/rackwell/gate.json). The server's unit asks for that verdict before it starts.
  - The quick check is made first, and the full one when that is not clean or is asked for.
  - A verdict counts for the start of the container that it was given in.
options:
  root:
    description: Directory of the releases, whose slot C(probe) leads to the probe.
    type: path
    default: /opt/rackwell
  user:
    description: User that the checks run as, the one that the server runs as.
    type: str
    default: rackwell
  gpus:
    description: How many GPUs there must be.
    type: int
    default: 8
  expect:
    description: What is expected of them, as the probe's option C(--expect) takes it.
    type: dict
    default: {}
  hold_on:
    description: The mildest verdict that holds the server.
    type: str
    choices: [fail, degraded]
    default: fail
  timeout:
    description: Deadline of the checks in seconds.
    type: int
    default: 600
  size:
    description: MiB of one buffer; every GPU gives two.
    type: int
    default: 256
  container:
    description: Name of the container in the inventory, for the advice that a held server gives.
    type: str
    required: true
  baseline:
    description: File of the container's baseline. It need not be there.
    type: path
    default: /var/lib/rackwell/baseline/gpu.json
  gate:
    description: Whether there is a gate at all. Without it, unit, configuration and verdict are removed.
    type: bool
    default: true
  report:
    description: Whether the result holds the whole report of the checks.
    type: bool
    default: true
  state:
    description:
      - V(present) writes and enables the unit.
      - V(passed) also requires a verdict of this boot that does not hold the server. It runs the unit when there is
        none, or when what decides over it was declared anew.
      - V(rerun) also runs it now, with the full check.
      - V(checked) reads the verdict and changes nothing.
    type: str
    choices: [present, passed, rerun, checked]
    default: present
attributes:
  check_mode:
    support: full
    description: Tells what would be written, and whether the gate would be run.
  diff_mode:
    support: full
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Have the gate, and have it passed
  rackwell.gpu.gpu_gate:
    gpus: 8
    container: glm5-01
    state: passed
"""

RETURN = r"""
rackwell_result:
  description:
    - The verdict, schema C(rackwell.gate/1), and beside it C(state), what it is worth now. V(passed), V(held),
      V(absent), V(running), V(interrupted), V(other-boot) or V(damaged).
    - In check mode C(would_run) says whether the gate would be run.
  returned: when there is a gate and the probe is installed
  type: dict
rackwell_error:
  description: Why the server is held, and what releases it.
  returned: failure
  type: dict
problems:
  description: Everything that the checks found, when they hold the server.
  returned: failure
  type: list
  elements: dict
held:
  description: Whether it is the gate that holds the server, which a person has to look at.
  returned: failure
  type: bool
"""

import os
import pwd
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import gpu_gate as gates
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_access as access
from ansible_collections.rackwell.gpu.plugins.module_utils import sandbox_probe as sandboxes
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.sandbox_options import Needs, groups, lines

SCHEMA = "rackwell.gate/1"


class Run:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        p = module.params
        self._check_values()
        self.state: str = p["state"]
        sandbox = tuple(self._sandbox()) if p["gate"] else ()
        wanted = gates.Wanted(*(p[name] for name in gates.Wanted._fields if name != "sandbox"), sandbox=sandbox)
        try:
            self.gate = gates.Gate(wanted, p["gate"], gates.Places(), System())
        except ValueError as error:
            fail(module, "invalid-option", str(error), "root", "", "give a plain absolute path")
        self.changed = False
        self.diff: list[dict[str, str]] = []

    def _sandbox(self) -> list[str]:
        """What holds of systemd's sandbox on this machine, as lines of a unit."""
        needs = Needs(self.module.params["user"])
        if not access.has_user(needs.user):
            # check mode, before the step that makes the user: nothing can be tried as nobody
            found: list[str] = lines([option for group in groups(needs) for option in group.options])
        else:
            found = sandboxes.found(needs, keep=not self.module.check_mode and self.state != "checked").lines
        return found

    def _check_values(self) -> None:
        for option in ("gpus", "timeout", "size"):
            value = self.module.params[option]
            if value < 1:
                what, why = f"{option} is {value}", "it must be at least 1"
                fail(self.module, "invalid-option", what, option, why, "give a number of at least 1")

    # -- the steps -----------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Do what the state asks for."""
        if not self.gate.declared:
            if self.state in ("present", "passed"):
                self._put()
            done(self.module, self.changed, diff=self.diff)
        if self.state == "checked":
            self._end(self._look())
        would_run = self.state == "rerun" or self.gate.deciding_changed()
        self._put()
        if self.state == "present":
            self._done(None)
        if self.module.check_mode:
            self._foretell(would_run)
        self._require_probe()
        if self.state == "rerun" or self._look().state != "passed":
            self.changed = True
            said = self._run()
            look = self._look()
            if look.state in ("absent", "interrupted", "running") and said:
                why = f"{look.line}; systemd says: {' '.join(said.split())}"
                look = look._replace(line=why)
            self._end(look)
        self._end(self._look())

    def _put(self) -> None:
        """Write what differs, and enable."""
        differences = self.gate.differences()
        self.diff = [
            {"before_header": path, "after_header": path, "before": before or "", "after": after or ""}
            for path, (before, after) in differences.items()
        ]
        enable = self.gate.declared and not self.gate.enabled()
        self.changed = bool(differences) or enable
        if not self.changed or self.module.check_mode:
            return
        try:
            self.gate.put()
        except (OSError, CommandError) as error:
            where = str(getattr(error, "filename", "") or gates.UNIT)
            fail(
                self.module,
                "cannot-write",
                "the boot gate cannot be put in place",
                where,
                str(error),
                "mend that, then run again",
            )

    def _require_probe(self) -> None:
        fix = "apply the role rackwell.gpu.gpu_probe"
        python, user = gates.python(self.gate.wanted.root), self.gate.wanted.user
        if not os.access(python, os.X_OK):
            why = "no release is active in the slot probe"
            fail(self.module, "probe-missing", "the probe is not installed", python, why, fix)
        try:
            pwd.getpwnam(user)
        except KeyError:
            why = "the checks run as the user that serves"
            fail(self.module, "user-missing", f"the user {user} does not exist", "user", why, fix)

    def _run(self) -> str:
        try:
            return str(self.gate.run(full=self.state == "rerun"))
        except OSError as error:
            fix = "look at df /run and at the mounts, then run again"
            fail(
                self.module, "cannot-write", "the full check cannot be asked for", str(error.filename), str(error), fix
            )
            raise

    def _look(self) -> gates.Look:
        self._require_probe()
        try:
            return self.gate.look()
        except (OSError, ValueError) as error:
            where = gates.python(self.gate.wanted.root)
            fix = "build it anew and apply the role rackwell.gpu.gpu_probe"
            fail(self.module, "probe-failed", "the probe does not tell the gate's verdict", where, str(error), fix)
            raise

    # -- ends ----------------------------------------------------------------------------------------------------

    def _result(self, look: gates.Look) -> dict[str, Any]:
        verdict = self.gate.verdict(self.module.params["report"])
        line = {} if "line" in verdict else {"code": look.code, "line": look.line}
        return {**verdict, **line, "schema": SCHEMA, "state": look.state}

    def _done(self, look: gates.Look | None, **more: Any) -> None:
        result = None if look is None else {**self._result(look), **more}
        done(self.module, self.changed, result, diff=self.diff)

    def _foretell(self, would_run: bool) -> None:
        """The end in check mode: nothing is run, so nothing is judged."""
        if not os.access(gates.python(self.gate.wanted.root), os.X_OK):
            done(self.module, True, {"schema": SCHEMA, "state": "absent", "would_run": True}, diff=self.diff)
        look = self._look()
        would_run = would_run or look.state != "passed"
        self.changed = self.changed or would_run
        self._done(look, would_run=would_run)

    def _end(self, look: gates.Look) -> None:
        if look.state == "passed":
            self._done(look)
        found = (self.gate.verdict(True).get("report") or {}).get("problems") if look.state == "held" else None
        extra: dict[str, Any] = {"problems": found} if found else {}
        what = "the boot gate holds the server" if look.state == "held" else "the boot gate has not passed"
        fix = f"mend what it names, then: {look.fix}" if look.state == "held" else look.fix
        extra.update(held=True, rackwell_result=self._result(look), changed=self.changed, diff=self.diff)
        fail(self.module, "gate-held", what, self.gate.places.out, look.line, fix, **extra)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/rackwell"},
            "user": {"type": "str", "default": "rackwell"},
            "gpus": {"type": "int", "default": 8},
            "expect": {"type": "dict", "default": {}},
            "hold_on": {"type": "str", "choices": ["fail", "degraded"], "default": "fail"},
            "timeout": {"type": "int", "default": 600},
            "size": {"type": "int", "default": 256},
            "container": {"type": "str", "required": True},
            "baseline": {"type": "path", "default": "/var/lib/rackwell/baseline/gpu.json"},
            "gate": {"type": "bool", "default": True},
            "report": {"type": "bool", "default": True},
            "state": {"type": "str", "choices": ["present", "passed", "rerun", "checked"], "default": "present"},
        },
        supports_check_mode=True,
    )
    Run(module).execute()


if __name__ == "__main__":
    main()
