#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases on a container: stage one by sending what is missing, and switch a slot to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_store
short_description: Stage a release in a container and let a slot lead to it
version_added: 0.1.0
description:
  - Brings a release that C(rackwell build) made to a container. Only the wheels that the container lacks travel, each
    is checked by its SHA-256, and uv installs them offline, by hash, into the release's own environment.
  - A release counts as staged when its C(complete) file is there, which is written last. A half-made release is made
    anew, a damaged wheel is sent anew; whatever was interrupted, the next run brings it to an end.
  - Before anything is sent the space is counted (wheels, what they take installed, caches as large as the present
    release's) and held against what is free; the result tells it, and what C(rackwell gc) could free.
  - Bill of materials, provenance and signature travel with the release when they lie beside its manifest.
  - A slot is a symbolic link in O(root) and is replaced by rename, after the release is complete. A failure never
    touches it.
options:
  bundle:
    description: Directory of the release on the controller, or a link to it, as C(.rackwell/builds/NAME) is.
    type: path
    required: true
  root:
    description: Directory of the releases in the container.
    type: path
    default: /opt/rackwell
  cache:
    description: Directory of the releases' caches (compiled kernels and the like) in the container.
    type: path
    default: /var/cache/rackwell
  slot:
    description: Name of the link in O(root). Needed with O(state=active); with O(state=staged) it is only looked at.
    type: str
  user:
    description: User that runs the release and owns its caches.
    type: str
    default: rackwell
  state:
    description: V(staged) leaves the slot as it is, V(active) lets it lead to the release.
    type: str
    choices: [staged, active]
    default: staged
  verify:
    description:
      - Compare each installed file with its wheel, also when the release is complete, and install anew what differs. In
        check mode it is only told. What is installed now is always compared.
    type: bool
    default: false
  allowed_signers:
    description:
      - File on the controller in the form that C(ssh-keygen) calls allowed signers. With it a release that is not
        signed by one of them is refused before anything is sent.
    type: path
  step:
    description: Set by the action plugin, which calls the module several times.
    type: str
    choices: [query, receive, install]
    default: query
  manifest:
    description: Set by the action plugin, the text of the release's manifest.
    type: str
  requirements:
    description: Set by the action plugin, the text of the release's requirements.
    type: str
  extras:
    description: Set by the action plugin, name and text of what lies beside the manifest.
    type: dict
    default: {}
  archive:
    description: Set by the action plugin, path of what was sent.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells what would be sent, installed and switched.
  diff_mode:
    support: full
    description: Shows the release and the slot before and after.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Stage the release
  rackwell.gpu.release_store:
    bundle: "{{ inventory_dir }}/.rackwell/builds/glm5"
    slot: current

- name: Stage the probe and use it at once
  rackwell.gpu.release_store:
    bundle: "{{ inventory_dir }}/.rackwell/builds/probe"
    slot: probe
    state: active
"""

RETURN = r"""
rackwell_result:
  description: What was found and done.
  returned: success
  type: dict
  contains:
    schema:
      description: Always C(rackwell.release_store/1).
      type: str
    name:
      description: Name of the build.
      type: str
    digest:
      description: Digest of the release.
      type: str
    path:
      description: Directory of the release in the container.
      type: str
    python:
      description: Version of Python that the release was made for.
      type: str
    staged:
      description: Whether the release is complete now.
      type: bool
    staged_before:
      description: Whether the release was complete before this task.
      type: bool
    slot:
      description: Name of the slot, if one was given.
      type: str
    slot_before:
      description: Digest that the slot led to before.
      type: str
    slot_after:
      description: Digest that the slot leads to now, or would lead to in check mode.
      type: str
    blobs_missing:
      description: SHA-256 of the wheels that were absent or damaged.
      type: list
      elements: str
    blobs_damaged:
      description: Those of them that were there but damaged.
      type: list
      elements: str
    todo:
      description: What else was missing, of environment, settings, caches and files (installed, but damaged).
      type: list
      elements: str
    files_damaged:
      description: Installed files that are not what their wheels say, the first 20, with project and reason.
      type: list
      elements: dict
    files_damaged_count:
      description: How many there are.
      type: int
    beside:
      description: What lies beside the manifest, of bill of materials, provenance and signature.
      type: list
      elements: str
    signed_by:
      description: Who signed the release, when O(allowed_signers) was given.
      type: str
    budget:
      description:
        - Bytes that staging takes, C(blobs), C(installed) and C(caches), together C(needed), what is C(available) and
          what C(rackwell gc) could free, C(could_free). None when nothing is to be staged.
      type: dict
    sent_bytes:
      description: Bytes of wheels that were sent, or would be sent in check mode.
      type: int
    transfers:
      description: In how many transfers they were sent.
      type: int
"""

import errno
import os
from typing import Any, Dict, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.release_gc import Collector, used
from ansible_collections.rackwell.gpu.plugins.module_utils.release_installed import summary
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import Manifest, ReleaseError, check_slot
from ansible_collections.rackwell.gpu.plugins.module_utils.release_target import Store


def main() -> None:
    """Take one of the steps that the action plugin asks for."""
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "path", "required": True},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "cache": {"type": "path", "default": "/var/cache/rackwell"},
            "slot": {"type": "str"},
            "user": {"type": "str", "default": "rackwell"},
            "state": {"type": "str", "choices": ["staged", "active"], "default": "staged"},
            "verify": {"type": "bool", "default": False},
            "allowed_signers": {"type": "path"},
            "extras": {"type": "dict", "default": {}},
            "step": {"type": "str", "choices": ["query", "receive", "install"], "default": "query"},
            "manifest": {"type": "str"},
            "requirements": {"type": "str"},
            "archive": {"type": "path"},
        },
        required_if=[("state", "active", ["slot"])],
        supports_check_mode=True,
    )
    args: Dict[str, Any] = module.params
    if args["manifest"] is None:
        fail(
            module,
            "not-through-action",
            "release_store was called without its action plugin",
            why="the action plugin reads the release on the controller",
            fix="call it as rackwell.gpu.release_store from a playbook",
        )
    os.umask(0o022)
    store = Store(args["root"], args["cache"])
    try:
        manifest = Manifest(args["manifest"])
        if args["slot"] is not None:
            check_slot(args["slot"])
        if args["step"] == "query":
            _query(module, store, manifest)
        _change(module, store, manifest)
    except ReleaseError as error:
        parts = error.parts
        fail(module, parts["code"], parts["what"], parts["where"], parts["why"], parts["fix"])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            available = store.space([args["root"]])[0]["available"]
            fail(
                module,
                "no-space",
                "the container ran out of space while the release was staged",
                args["root"],
                "{0:,} bytes are available now; the slot was not touched".format(available),
                "free space there, then run again",
            )
        where = str(error.filename or args["root"])
        fix = "make it readable and writable for root, then run again"
        fail(module, "filesystem", "a file operation failed", where, error.strerror or str(error), fix)


def _query(module: AnsibleModule, store: Store, manifest: Manifest) -> None:
    """Tell what is there; touches nothing."""
    args: Dict[str, Any] = module.params
    store.check_machine(manifest)
    missing = store.missing(manifest)
    todo = store.unfinished(manifest, args["user"], args["extras"])
    staged = "environment" not in todo
    # a wheel that is damaged itself is no measure: what was installed from it is compared when it was sent anew
    wrong = store.damaged(manifest) if args["verify"] and staged and not missing else []
    if wrong:
        todo.append("files")
    before = store.slot(args["slot"]) if args["slot"] else None
    after = manifest.digest if args["state"] == "active" else before
    result = {
        "schema": "rackwell.release_store/1",
        "name": manifest.name,
        "digest": manifest.digest,
        "path": store.release(manifest.digest),
        "python": manifest.python,
        "staged": staged,
        "staged_before": staged,
        "slot": args["slot"],
        "slot_before": before,
        "slot_after": after,
        "blobs_missing": sorted(missing),
        "blobs_damaged": sorted(sha256 for sha256, state in missing.items() if state == "damaged"),
        "todo": todo,
        "files_damaged": summary(wrong),
        "files_damaged_count": len(wrong),
        "beside": sorted(args["extras"]),
        "budget": None,
        "sent_bytes": sum(manifest.blobs[sha256] for sha256 in missing),
        "transfers": 0,
    }
    diff = {
        "before": _picture(result, staged and not missing and not wrong, before),
        "after": _picture(result, True, after),
        "before_header": "releases before",
        "after_header": "releases after",
    }
    # not module.tmpdir, which would be made: a full disk must not keep this from telling that it is full
    transfers = os.path.expanduser(str(getattr(module, "_remote_tmp", None) or "/tmp"))  # noqa: S108
    extra: Dict[str, Any] = {"rackwell_space": store.space([store.root, transfers, store.cache])}
    if missing or not staged:
        extra["rackwell_room"] = _room(store, manifest)
    done(module, bool(missing or todo or before != after), result, diff=diff, **extra)


def _room(store: Store, manifest: Manifest) -> Dict[str, Any]:
    """What the budget needs from here: what is unpacked already, how large caches become, and what could be freed."""
    collector = Collector(store.root, store.cache)
    current = collector.slots().get("current", "")
    mine = used("%s/%s" % (store.cache, manifest.digest))
    return {
        "unpacked": store.unpacked(manifest),
        "caches": max(used("%s/%s" % (store.cache, current)) - mine, 0) if current else 0,
        "could_free": collector.plan(wanted=[manifest.digest]).bytes,
    }


def _change(module: AnsibleModule, store: Store, manifest: Manifest) -> None:
    """Take in what was sent; then, in the last step, install and switch."""
    args: Dict[str, Any] = module.params
    if module.check_mode:
        done(module, False)
    store.lock()
    changed = False
    if args["archive"]:
        try:
            store.receive(manifest, args["archive"])
        finally:
            if os.path.exists(args["archive"]):
                os.unlink(args["archive"])
        changed = True
    if args["step"] == "install":
        changed = (
            store.install(manifest, args["requirements"] or "", args["user"], args["extras"], args["verify"]) or changed
        )
        store.tidy()
        if args["state"] == "active":
            changed = store.switch(args["slot"], manifest.digest) or changed
    done(module, changed)


def _picture(result: Dict[str, Any], staged: bool, slot: Optional[str]) -> str:
    lines = ["%s %s: %s" % (result["name"], result["digest"][:12], "staged" if staged else "not staged")]
    if result["slot"]:
        lines.append("slot %s: %s" % (result["slot"], slot[:12] if slot else "none"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
