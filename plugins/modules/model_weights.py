#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asserts that a model is where it is declared and can be read by who serves it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: Assert that a model is there and readable
version_added: 0.1.0
description:
  - Looks for the model's directory and the files that must be in it, and reads from each as the user that will serve
    them. Changes nothing.
options:
  path:
    description: Directory of the model.
    type: path
    required: true
  files:
    description: Files that must be in it, relative to O(path).
    type: list
    elements: str
    default: [config.json]
  user:
    description: User that must be able to read them.
    type: str
    default: rackwell
attributes:
  check_mode:
    support: full
    description: Does the same, since nothing is changed.
  diff_mode:
    support: none
    description: Nothing is changed.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Assert the weights
  rackwell.gpu.model_weights:
    path: /srv/models/glm-5
    files: [config.json, tokenizer.json]
"""

RETURN = r"""
rackwell_result:
  description: What was found.
  returned: success
  type: dict
  sample:
    schema: rackwell.model_weights/1
    path: /srv/models/glm-5
    files: [config.json]
    user: rackwell
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_access import has_user, unreadable_as
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail


def problem(path: str, files: list[str], user: str) -> tuple[str, str, str, str, str] | None:
    """What is wrong with a model: code, what, where, why, fix; ``None`` when nothing is."""
    mount = "declare its mount in pve_container_mounts (source: directory on the Proxmox host), or correct the path"
    if not os.path.isdir(path):
        why = "no such directory in this container"
        return "model-missing", "the model is not there", path, why, mount
    wanted = [os.path.join(path, name) for name in files]
    absent = [name for name in wanted if not os.path.exists(name)]
    if absent:
        entries = len(os.listdir(path))
        why = f"the directory has {entries} entries, and not {', '.join(os.path.basename(name) for name in absent)}"
        if not entries:
            why = "the directory is empty: nothing is mounted on it"
        fix = f"{mount}; if the download was cut short, finish it"
        return "model-missing", "the model is not complete", absent[0], why, fix
    if not has_user(user):
        why = "the model must be readable by the user that serves it"
        return "user-missing", f"user {user} does not exist", "/etc/passwd", why, f"useradd -r {user}"
    bad = unreadable_as(user, [path, *wanted])
    if bad:
        where, reason = bad[0]
        why = f"{reason}; in an unprivileged container root of the host is nobody's owner"
        fix = "give others read access on the Proxmox host: chmod -R o+rX on the mount's source directory"
        return "model-missing", f"user {user} cannot read the model", where, why, fix
    return None


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "str", "default": ["config.json"]},
            "user": {"type": "str", "default": "rackwell"},
        },
        supports_check_mode=True,
    )
    path, files, user = module.params["path"], module.params["files"], module.params["user"]
    # before the release is there, in check mode, its user may not be either: what can be told is told all the same
    if module.check_mode and not has_user(user):
        user = "root"
    wrong = problem(path, files, user)
    if wrong:
        fail(module, *wrong)
    done(module, False, {"schema": "rackwell.model_weights/1", "path": path, "files": files, "user": user})


if __name__ == "__main__":
    main()
