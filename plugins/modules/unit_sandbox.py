#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of systemd's sandbox holds for a GPU service on this machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_sandbox
short_description: Find out which options of systemd's sandbox hold here, by transient units
version_added: 0.2.0
description:
  - Runs a transient unit with all options that are wanted, and compares what it reaches (device nodes, caches, the
    model, the container's memory) with what a unit without them reaches. Only when that fails is each group tried, and
    of a group that fails each option. Options that do not hold are left out.
  - The answer of this start of the machine is kept in C(/run/rackwell-sandbox.json), and the record of what holds in
    C(/var/lib/rackwell/sandbox.json).
options:
  user:
    description: User that the service runs as.
    type: str
    default: rackwell
  writable:
    description: Directories that the service writes to, beside C(/var/cache/rackwell).
    type: list
    elements: path
    default: []
  readable:
    description: What the service must be able to read, as the directory of its model.
    type: list
    elements: path
    default: []
  state:
    description:
      - V(present) finds out, and writes the record.
      - V(checked) finds out, and writes nothing.
    type: str
    choices: [present, checked]
    default: present
attributes:
  check_mode:
    support: full
    description: Transient units run in check mode too; they change nothing. The record is not written.
  diff_mode:
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Find out what holds
  rackwell.gpu.unit_sandbox:
    readable: [/srv/models/glm-5]
  register: sandbox
"""

RETURN = r"""
rackwell_result:
  description:
    - What holds. C(form) is V(full), V(partial) (some options do not hold) or V(reduced) (nothing that needs a mount
      namespace). C(options) are lines of a unit file, C(exposure) is what C(systemd-analyze security) gives them, lower
      is safer. C(dropped) says of each option that does not hold why, C(fix) what mends it.
  returned: success
  type: dict
  sample:
    schema: rackwell.unit_sandbox/1
    form: full
    options: [NoNewPrivileges=yes]
    dropped: []
    credentials: true
    exposure: 3.7
    problem: ""
    fix: ""
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_access as access
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import sandbox_probe as probes
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.sandbox_options import Needs, groups


def run(module: AnsibleModule, places: probes.Places) -> None:
    """Find out, and record."""
    p = module.params
    needs = Needs(p["user"], tuple(p["writable"]), tuple(p["readable"]))
    writes = p["state"] == "present" and not module.check_mode
    try:
        if module.check_mode and not access.has_user(needs.user):
            # made by the steps before this one: nothing can be tried as a user that is not there yet
            options = [option for group in groups(needs) for option in group.options]
            sandbox = probes.Sandbox(probes.FULL, options, [], True)
        else:
            sandbox = probes.found(needs, places, keep=writes)
        score = probes.exposure(sandbox.lines, needs.user)
        text = probes.record_text(sandbox, score)
        changed = p["state"] == "present" and files.read_text(places.record) != text
        if changed and writes:
            files.write(places.record, text, 0o644)
    except ValueError as error:
        fail(module, "invalid-option", str(error), "writable", "", "give plain absolute paths")
        raise
    except OSError as error:
        where = str(error.filename or places.record)
        fail(module, "cannot-write", "what holds cannot be recorded", where, error.strerror or "", "free space there")
        raise
    result = json.loads(text)
    result["fix"] = probes.NESTING if sandbox.form != probes.FULL else ""
    result["units"] = sandbox.units
    done(module, changed, result)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "default": "rackwell"},
            "writable": {"type": "list", "elements": "path", "default": []},
            "readable": {"type": "list", "elements": "path", "default": []},
            "state": {"type": "str", "choices": ["present", "checked"], "default": "present"},
        },
        supports_check_mode=True,
    )
    run(module, probes.Places())


if __name__ == "__main__":
    main()
