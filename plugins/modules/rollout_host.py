#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installs the host's own side of a roll."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_host
short_description: Install the program that lets a host return by itself
version_added: 0.1.0
description:
  - During a roll a host switches, waits, and returns by itself when nobody confirms the change. The program that does
    it needs no controller and no network, is started by systemd, and consists of the sources that this module brings.
  - A unit of its own puts back, at boot and before the server starts, what ran before a change that nobody confirmed.
  - With O(run), what that roll is going to switch to is laid down on the host as well, and checked against it. Nothing
    that serves is touched, and the switch needs no rendering any more.
options:
  run:
    description: Id of the roll that prepares its switch.
    type: str
    default: ""
  wanted:
    description:
      - What it is going to switch to. The keys C(unit), C(environment), C(release), C(user), C(model_path),
        C(condition) and C(fatal) are as the options of that name of M(rackwell.gpu.inference_server); C(check) holds
        its C(host), C(port), C(served_name), C(api_key), C(ready_timeout) and the keys of C(sane).
    type: dict
    default: {}
  connection:
    description: How the host is reached, resolved by Ansible. It comes back with what the host knows.
    type: dict
    default: {}
  unit_name:
    description: Unit of the inference server.
    type: str
    default: rackwell-inference.service
  environment_file:
    description: The server's environment file.
    type: path
    default: /etc/rackwell/inference.env
  root:
    description: Where the releases are.
    type: path
    default: /opt/rackwell
  state_directory:
    description: Where rackwell keeps what it knows of this host.
    type: path
    default: /var/lib/rackwell
attributes:
  check_mode:
    support: full
    description: Tells what would be written.
  diff_mode:
    support: none
    description: The files are rackwell's own sources.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Have the program that returns by itself
  rackwell.gpu.rollout_host:

- name: Lay down what a roll is going to switch to
  rackwell.gpu.rollout_host:
    run: 20261130T081500Z-1a2b
    wanted: "{{ wanted }}"
"""

RETURN = r"""
rackwell_result:
  description:
    - Where the program is, and the paths that were written or would be. With O(run), what the host knows, as
      M(rackwell.gpu.rollout_ask) tells it.
  returned: success
  type: dict
  sample:
    schema: rackwell.rollout_agent/1
    launcher: /usr/local/lib/rackwell/rollout-agent
    written: []
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import rollout_install
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_system import CommandError, System
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.rollout_agent import Place, agent_of

SCHEMA = "rackwell.rollout_agent/1"


def prepared(module: AnsibleModule, place: Place) -> dict[str, Any]:
    """Lay down what a roll is going to switch to, and tell what the host knows. Fails on what is missing."""
    run = module.params["run"]
    agent = agent_of(place, [rollout_install.LAUNCHER])
    try:
        lacking = agent.ask({"op": "prepare", "run": run, "wanted": module.params["wanted"]})["lacking"]
    except OSError as error:
        why = f"{error.strerror or error}; nothing was touched"
        fix = "free space, then run again"
        fail(module, "cannot-write", "the switch cannot be prepared", str(error.filename or ""), why, fix)
    except (TypeError, KeyError, ValueError) as error:
        fail(module, "bad-request", "what the roll wants does not hold", "wanted", f"{type(error).__name__}: {error}")
    for lack in lacking:
        fail(module, **lack)
    known: dict[str, Any] = agent.look(0, run)
    return known


def hide_secrets_only(module: AnsibleModule) -> None:
    """Ansible would hide each value of `wanted` wherever it stands, the release's digest too: only the secrets are."""
    wanted = module.params["wanted"]
    texts = (str(wanted.get(name) or "") for name in ("unit", "environment"))
    secrets = {secret for text in texts for secret in files.secrets_in(text)}
    secrets |= files.secret_values(str(wanted.get("secrets") or ""))
    key = str((wanted.get("check") or {}).get("api_key") or "")
    module.no_log_values = secrets | ({key} if key else set())


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "run": {"type": "str", "default": ""},
            # unit and environment may hold tokens and keys, the check holds the API key
            "wanted": {"type": "dict", "default": {}, "no_log": True},
            "connection": {"type": "dict", "default": {}},
            "unit_name": {"type": "str", "default": "rackwell-inference.service"},
            "environment_file": {"type": "path", "default": "/etc/rackwell/inference.env"},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "state_directory": {"type": "path", "default": "/var/lib/rackwell"},
        },
        supports_check_mode=True,
    )
    p = module.params
    place = Place(p["unit_name"], p["environment_file"], p["root"], p["state_directory"])
    wanted = rollout_install.install(place, sys.executable)
    system = System()
    written = rollout_install.differences(wanted)
    enabled = system.show(rollout_install.BOOT_UNIT).enabled
    changed = bool(written) or not enabled
    if changed and not module.check_mode:
        try:
            rollout_install.put(wanted)
            if not enabled or any(path.endswith(".service") for path in written):
                system.systemctl("daemon-reload")
                system.systemctl("enable", rollout_install.BOOT_UNIT)
        except (OSError, CommandError) as error:
            where = str(getattr(error, "filename", "") or rollout_install.LIBRARY)
            what = "the program that returns by itself cannot be installed"
            fail(module, "cannot-write", what, where, str(error), "mend that, then run again")
    result = {"schema": SCHEMA, "launcher": rollout_install.LAUNCHER, "written": written}
    if p["run"] and not module.check_mode:
        hide_secrets_only(module)
        known = prepared(module, place)
        done(module, changed, {**result, **known, "installed": True, "connection": p["connection"]})
    done(module, changed, result)


if __name__ == "__main__":
    main()
