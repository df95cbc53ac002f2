#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Caches of compiled kernels: captured on one container, unpacked on others of the same kind."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_cache
short_description: Carry a release's caches of compiled kernels from one container to others of the same kind
version_added: 0.1.0
description:
  - What the engine compiled and tuned at its first start lies in a directory of its release. V(captured) brings it to
    the controller; V(restored) unpacks it on another container before the first start there, so that only one pays it.
  - A cache belongs to a key of release, GPU architecture and name, driver, directories and C library. One whose key
    differs in any part, or in which the hash of one file does not hold, is not used, and that is told.
  - A cache that is there already is never touched. What is captured must not be written at that moment; compiled Python
    and links stay.
options:
  bundle:
    description: Directory of the release on the controller, or a link to it. Needed with O(state=restored).
    type: path
  caches:
    description: Directory of the captured caches on the controller.
    type: path
    required: true
  root:
    description: Directory of the releases in the container.
    type: path
    default: /opt/rackwell
  cache:
    description: Directory of the releases' caches in the container.
    type: path
    default: /var/cache/rackwell
  user:
    description: User that runs the release and owns its caches.
    type: str
    default: rackwell
  state:
    description: V(captured) brings the cache of the active release to the controller, V(restored) unpacks one here.
    type: str
    choices: [captured, restored]
    required: true
  step:
    description: Set by the action plugin, which calls the module several times.
    type: str
    choices: [look, pack, unpack, discard]
    default: look
  digest:
    description: Set by the action plugin, digest of the release.
    type: str
  paper:
    description: Set by the action plugin, what is known of the captured cache.
    type: str
  archive:
    description: Set by the action plugin, path of what was sent.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells what would be captured or unpacked.
  diff_mode:
    support: none
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Unpack what another container compiled
  rackwell.gpu.release_cache:
    bundle: "{{ inventory_dir }}/.rackwell/builds/glm5"
    caches: "{{ inventory_dir }}/.rackwell/caches"
    state: restored
"""

RETURN = r"""
rackwell_result:
  description: What became of the cache.
  returned: success
  type: dict
  contains:
    schema:
      description: Always C(rackwell.release_cache/1).
      type: str
    state:
      description: captured, unchanged, restored, kept (one was here), none (none of this release), or refused.
      type: str
    id:
      description: Name of the key.
      type: str
    key:
      description: Its parts.
      type: dict
    differs:
      description: Parts in which the captured caches of this release differ from this container.
      type: list
      elements: dict
    why:
      description: Why none was used.
      type: str
    files:
      description: How many files.
      type: int
    bytes:
      description: Bytes of the files.
      type: int
"""

import os
import tempfile
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.release_cache import Cache
from ansible_collections.rackwell.gpu.plugins.module_utils.release_cache_key import key_id, read_paper
from ansible_collections.rackwell.gpu.plugins.module_utils.release_gc import Collector
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import DIGEST, ReleaseError


def main() -> None:
    """Take one of the steps that the action plugin asks for."""
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "path"},
            "caches": {"type": "path", "required": True},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "cache": {"type": "path", "default": "/var/cache/rackwell"},
            "user": {"type": "str", "default": "rackwell"},
            "state": {"type": "str", "choices": ["captured", "restored"], "required": True},
            "step": {"type": "str", "choices": ["look", "pack", "unpack", "discard"], "default": "look"},
            "digest": {"type": "str"},
            "paper": {"type": "str"},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    args: Dict[str, Any] = module.params
    try:
        if args["step"] == "discard":
            _discard(module)
        slots = Collector(args["root"], args["cache"]).slots()
        digest = args["digest"] or slots.get("current", "")
        if not DIGEST.match(digest):
            why, fix = "the slot `current` leads nowhere", "provision the container first"
            raise ReleaseError("no-release", "no release is active here", args["root"], why, fix)
        cache = Cache(args["root"], args["cache"], digest)
        # each step is a function of its name, and ends the module
        {"look": _look, "pack": _pack, "unpack": _unpack}[args["step"]](module, cache)
    except ReleaseError as error:
        parts = error.parts
        fail(module, parts["code"], parts["what"], parts["where"], parts["why"], parts["fix"])
    except KeyError:
        why = "user %s is not there" % args["user"]
        fail(module, "user-missing", "the service user is unknown", "user", why, "provision the container first")
    except OSError as error:
        where = str(error.filename or args["cache"])
        fail(module, "filesystem", "a file operation failed", where, error.strerror or str(error), "run again")


def _look(module: AnsibleModule, cache: Cache) -> None:
    key = cache.key()
    listing = cache.listing()
    running = Collector(cache.root, cache.caches).running([cache.digest])
    done(
        module,
        False,
        None,
        look={
            "id": key_id(key),
            "key": key,
            "untouched": cache.untouched() and not running,
            "files": len(listing),
            "bytes": sum(entry.size for entry in listing.values()),
        },
    )


def _pack(module: AnsibleModule, cache: Cache) -> None:
    handle, archive = tempfile.mkstemp(prefix="rackwell-cache-", suffix=".tar.gz", dir=cache.caches)
    os.close(handle)
    try:
        paper = cache.pack(archive, module.params["user"])
    except BaseException:
        os.unlink(archive)
        raise
    done(module, False, None, paper=paper, archive=archive)


def _unpack(module: AnsibleModule, cache: Cache) -> None:
    archive = module.params["archive"]
    try:
        cache.unpack(archive, read_paper(module.params["paper"], cache.path), module.params["user"])
    finally:
        if os.path.exists(archive):
            os.unlink(archive)
    done(module, True)


def _discard(module: AnsibleModule) -> None:
    """Remove what was packed, and what an interrupted capture left."""
    folder = module.params["cache"]
    for name in os.listdir(folder):
        if name.startswith("rackwell-cache-") and name.endswith(".tar.gz"):
            os.unlink(os.path.join(folder, name))
    done(module, False)


if __name__ == "__main__":
    main()
