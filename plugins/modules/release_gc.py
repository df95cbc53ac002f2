#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Removes from a container the releases, wheels and caches that nothing needs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_gc
short_description: Remove releases, wheels and caches that nothing needs
version_added: 0.1.0
description:
  - A release stays when a slot leads to it, when the server could return to it (those that were active before the
    present one, as the host's journal tells, and what the last activation names), when a process runs from it, or when
    O(wanted) names it. Wheels, unpacked copies and installers stay when a release that stays is made of them; caches
    stay with their release.
  - A release first loses its C(complete) file and its name, so that an interrupted run leaves nothing that counts as
    whole. The next run goes on.
options:
  root:
    description: Directory of the releases.
    type: path
    default: /opt/rackwell
  cache:
    description: Directory of the releases' caches.
    type: path
    default: /var/cache/rackwell
  state_dir:
    description: Where the host keeps its journal of activations.
    type: path
    default: /var/lib/rackwell
  keep:
    description: How many of the releases that were active before the present one stay; those of the last activation
      stay whatever this is.
    type: int
    default: 1
  wanted:
    description: Digests of releases that stay though nothing uses them yet, such as the declared ones.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Tells what would go, and how many bytes that frees.
  diff_mode:
    support: full
    description: Lists what goes.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Remove what nothing needs, and keep two releases to return to
  rackwell.gpu.release_gc:
    keep: 2
"""

RETURN = r"""
rackwell_result:
  description: What stays and why, what went or would go, and the bytes.
  returned: success
  type: dict
  sample:
    schema: rackwell.release_gc/1
    kept:
      - digest: 3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b
        build: glm5
        why: [slot current]
    removed:
      - kind: cache
        name: 5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b5d1e0f0e0c8f6c8f1d7c3c8b3b0c449b
        build: ""
    bytes: 1048576
    bytes_by_kind: {cache: 1048576}
    available_before: 4194304
    available_after: 5242880
    notes: []
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.release_gc import Collector, Plan
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import DIGEST, ReleaseError
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store

SCHEMA = "rackwell.release_gc/1"


def main() -> None:
    """Look, and unless in check mode, remove."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/rackwell"},
            "cache": {"type": "path", "default": "/var/cache/rackwell"},
            "state_dir": {"type": "path", "default": "/var/lib/rackwell"},
            "keep": {"type": "int", "default": 1},
            "wanted": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    args: Dict[str, Any] = module.params
    store = Store(args["root"], args["cache"])
    collector = Collector(args["root"], args["cache"], args["state_dir"])
    wanted = [one for one in args["wanted"] if DIGEST.match(one)]
    keep = max(args["keep"], 0)
    try:
        before = store.space([store.root])[0]["available"]
        if module.check_mode:
            plan = collector.plan(keep, wanted)
            _end(module, collector, plan, before, before + plan.bytes)
        # another run may be about to make what would go: nothing is even looked at before the lock is held
        store.lock()
        plan = collector.plan(keep, wanted)
        collector.remove(plan)
        _end(module, collector, plan, before, store.space([store.root])[0]["available"])
    except ReleaseError as error:
        parts = error.parts
        fail(module, parts["code"], parts["what"], parts["where"], parts["why"], parts["fix"])
    except OSError as error:
        where = str(error.filename or args["root"])
        fail(module, "filesystem", "a file operation failed", where, error.strerror or str(error), "run again")


def _end(module: AnsibleModule, collector: Collector, plan: Plan, before: int, after: int) -> None:
    removed = [{"kind": item.kind, "name": item.name, "build": item.build} for item in plan.items]
    result = {
        "schema": SCHEMA,
        "kept": [
            {"digest": digest, "build": collector.build(digest), "why": why}
            for digest, why in sorted(plan.kept.items())
        ],
        "removed": removed,
        "bytes": plan.bytes,
        "bytes_by_kind": plan.sizes,
        "available_before": before,
        "available_after": after,
        "notes": plan.notes,
    }
    lines = sorted(
        "%s %s%s\n" % (one["kind"], one["name"][:12], " " + one["build"] if one["build"] else "") for one in removed
    )
    diff = {"before": "".join(lines), "after": "", "before_header": "not needed", "after_header": "after"}
    done(module, bool(removed), result, diff=diff)


if __name__ == "__main__":
    main()
