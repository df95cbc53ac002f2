#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A model repository at a commit, on the Proxmox host, whole and verified."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_snapshot
short_description: Bring a Hugging Face snapshot at a commit to a directory
version_added: 0.1.0
description:
  - Brings all files of a repository at a full commit to C(DIRECTORY/ORG--NAME/COMMIT), each held against the hash that
    the hub tells. The directory is seen when it is whole, and has a manifest with sizes and hashes.
  - huggingface_hub does the work in a transient unit of systemd, as a user without rights. The unit goes on when the
    connection is cut; the next run waits for it, or goes on from the bytes that are there.
  - A snapshot that is whole is only looked at, by sizes or by hashes, and what is damaged in it is brought anew, file
    by file, while it is in use.
options:
  directory:
    description: Directory of all snapshots.
    type: path
    required: true
  repository:
    description: The repository, C(ORG/NAME).
    type: str
    required: true
  revision:
    description: The commit, all 40 digits.
    type: str
    required: true
  include:
    description: Patterns of files to bring; empty for all. C(*) also stands for slashes.
    type: list
    elements: str
    default: []
  ignore:
    description: Patterns of files to leave out.
    type: list
    elements: str
    default: []
  origin:
    description: V(host) asks the hub from here, V(directory) takes the files from O(source).
    type: str
    choices: [host, directory]
    default: host
  source:
    description:
      - Directory with the files, for O(origin=directory). A snapshot of another host, what C(hf download --local-dir)
        left, or the cache of huggingface_hub.
    type: path
  endpoint:
    description: Address of the hub or of its mirror; empty for the public one.
    type: str
    default: ""
  token:
    description: Token for the hub.
    type: str
    default: ""
  environment:
    description: Further environment of the fetch, such as C(HTTPS_PROXY). It is no place for secrets.
    type: dict
    default: {}
  workers:
    description: Files that arrive at once.
    type: int
    default: 8
  xet:
    description: Use hf_xet where the hub offers it. Faster, but a cut file then begins anew.
    type: bool
    default: false
  verify:
    description: How a snapshot that is whole is looked at.
    type: str
    choices: [size, sha256]
    default: size
  user:
    description: User that fetches. It owns the files.
    type: str
    default: rackwell-weights
  python:
    description: Python of an environment with huggingface_hub.
    type: path
    default: /opt/rackwell/weights/env/bin/python
  wait:
    description: Wait until it is whole; else only until it is known that it can be brought.
    type: bool
    default: true
  state:
    description: V(absent) removes this one revision.
    type: str
    choices: [present, absent]
    default: present
  step:
    description: Set by the action plugin, which calls the module until the fetch has ended.
    type: str
    choices: [begin, wait]
    default: begin
  run:
    description: Set by the action plugin, the run that it waits for.
    type: str
    default: ""
  before:
    description: Set by the action plugin, the state that was found first.
    type: str
    default: ""
  poll:
    description: Set by the action plugin, seconds that one call waits.
    type: int
    default: 20
attributes:
  check_mode:
    support: full
    description: Tells whether something would be brought. Asks no hub.
  diff_mode:
    support: full
    description: Shows the snapshot before and after.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Bring the weights
  rackwell.gpu.model_snapshot:
    directory: /srv/models
    repository: nvidia/GLM-5-NVFP4
    revision: 0123456789abcdef0123456789abcdef01234567
    token: "{{ model_weights_token }}"
"""

RETURN = r"""
rackwell_result:
  description: What is there.
  returned: success
  type: dict
  contains:
    schema:
      description: Always C(rackwell.model_snapshot/1).
      type: str
    repository:
      description: The repository.
      type: str
    revision:
      description: The commit.
      type: str
    path:
      description: Where the snapshot lies on this host.
      type: str
    state:
      description: C(complete), C(running), C(damaged), C(incomplete), C(unverified) (no manifest) or C(absent).
      type: str
    before:
      description: The state before this task.
      type: str
    verified:
      description: How it was looked at, C(size) or C(sha256).
      type: str
    files:
      description: Files that are wanted.
      type: int
    bytes:
      description: Their size.
      type: int
    left_out:
      description: Files of the repository that are not there, since nobody wants them.
      type: int
    damaged:
      description: Files that were missing or damaged, the first 20.
      type: list
      elements: str
    fetched_files:
      description: Files that were brought.
      type: int
    fetched_bytes:
      description: Bytes that were brought.
      type: int
    resumed_bytes:
      description: Bytes that an earlier run had brought already.
      type: int
    refetched:
      description: Files that were damaged on the way and brought again.
      type: list
      elements: str
    others:
      description: Other revisions of the repository that lie here, with C(revision), C(complete), C(bytes).
      type: list
      elements: dict
    unit:
      description: The unit that fetches.
      type: str
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import os
import shutil
import sys
import uuid
from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_store import (
    COMMIT,
    REPOSITORY,
    Place,
    SnapshotError,
    chosen,
    fault,
    others,
    read_manifest,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_unit import Unit, ensure_parent

_START_S = 90


def look(place: Place, include: list[str], ignore: list[str]) -> dict[str, Any]:
    """What is there, by sizes."""
    found: dict[str, Any] = {"state": "absent", "files": 0, "bytes": 0, "left_out": 0, "damaged": []}
    manifest = read_manifest(place.final, place.repository, place.revision)
    if manifest is None:
        if os.path.isdir(place.final):
            found["state"] = "unverified"
        elif os.path.isdir(place.staging):
            found["state"] = "incomplete"
        return found
    wanted = chosen(manifest.all, include, ignore)
    held = {one.path for one in manifest.files}
    bad = [one.path for one in wanted if one.path in held and fault(place.final, one)]
    lacking = [one for one in wanted if one.path not in held]
    found.update(files=len(wanted), bytes=sum(one.size for one in wanted), damaged=bad[:20])
    found["left_out"] = len(manifest.left_out)
    found["state"] = "damaged" if bad else "incomplete" if lacking or not wanted else "complete"
    return found


class Task:
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.args: dict[str, Any] = module.params
        args = self.args
        if not REPOSITORY.fullmatch(args["repository"]):
            why, fix = "%r" % args["repository"], "write ORG/NAME, as in the repository's address"
            raise SnapshotError("wrong-repository", "that is not a repository's name", "repository", why, fix)
        if not COMMIT.fullmatch(args["revision"]):
            why = "%r is a branch, a tag or a part of a commit id: it can come to mean other weights" % args["revision"]
            fix = "give the 40 digits of the commit, from the repository's history"
            raise SnapshotError("wrong-revision", "that is not a full commit", "revision", why, fix)
        self.place = Place(args["directory"], args["repository"], args["revision"])
        self.unit = Unit(self.place)

    def seen(self) -> dict[str, Any]:
        """What is there, by sizes."""
        return look(self.place, self.args["include"], self.args["ignore"])

    def begin(self) -> None:
        """See what there is, and begin what is needed."""
        args, found = self.args, self.seen()
        before = str(found["state"])
        whole = before == "complete"
        if self.unit.active():
            if self.module.check_mode:
                self.end({**found, "state": "running"}, before, changed=not whole)
            self.running(self.unit.run_id(), before)
        if whole and args["verify"] == "size":
            self.end(found, before, changed=False)
        if self.module.check_mode and not whole:
            self.end(found, before, changed=True)
        run = self.start(repair=not self.module.check_mode)
        self.running(run, before)

    def start(self, repair: bool) -> str:
        """Begin the unit. Returns its run."""
        args = self.args
        python, user = (args["python"], args["user"]) if repair else (sys.executable, self._reader())
        if not os.access(python, os.X_OK):
            why = "the release of the build `weights` is not staged on this host"
            fix = "rackwell build, then provision again"
            raise SnapshotError("environment-missing", "there is no huggingface_hub here", python, why, fix)
        if repair:
            ensure_parent(self.place, user)
        environment = {
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "30",
            "HF_HUB_ETAG_TIMEOUT": "30",
            "HF_HUB_VERBOSITY": "error",
            **({} if args["xet"] else {"HF_HUB_DISABLE_XET": "1"}),
            **{name: str(value) for name, value in args["environment"].items()},
        }
        job = {
            "run": uuid.uuid4().hex,
            "directory": args["directory"],
            "repository": args["repository"],
            "revision": args["revision"],
            "include": args["include"],
            "ignore": args["ignore"],
            "from": args["origin"],
            "source": args["source"] or "",
            "endpoint": args["endpoint"],
            "workers": args["workers"],
            "verify": args["verify"],
            "repair": repair,
            "xet": args["xet"],
            "piece": 1 << 20,
            "attempts": 4,
            "pause": 2,
            "environment": environment,
        }
        with self.unit.locked():
            if self.unit.active():
                return str(self.unit.run_id())
            self.unit.start(job, user, python, args["token"] if repair else "")
            return str(job["run"])

    def running(self, run: str, before: str) -> None:
        """End this call while the unit runs, or with what it came to."""
        if self.args["step"] == "begin":
            runs = self.unit.wait(_START_S, enough="verifying" if not self.args["wait"] else None)
        else:
            runs = self.unit.wait(self.args["poll"])
        told = self.unit.read()
        if runs:
            progress = {name: told.get(name) for name in ("phase", "bytes", "done_bytes", "files", "seconds")}
            result = self.result({**self.seen(), "state": "running"}, before, told)
            done(self.module, True, result, rackwell_run=run, rackwell_progress=progress)
        self.ended(run, before, told)

    def ended(self, run: str, before: str, told: dict[str, Any]) -> None:
        """The unit has ended: well, with an error, or without a word."""
        mine = told.get("run") == run
        if mine and told.get("error"):
            result = self.result(self.seen(), before, told)
            error = told["error"]
            if error["code"] == "weights-damaged":
                result["state"] = "damaged"
            parts = [error[name] for name in ("code", "what", "where", "why", "fix")]
            fail(self.module, *parts, rackwell_result=result)
        found = self.seen()
        if found["state"] != "complete":
            if mine and told.get("phase") == "done":
                why = "it was removed or changed meanwhile"
            else:
                why = "the program ended without a verdict; its last words: %s" % (self.unit.last_words() or "none")
            raise SnapshotError(
                "fetch-died", "the model is not whole after the fetch", self.place.final, why, "run again"
            )
        changed = bool(told.get("fetched_files")) or before != "complete"
        self.end(found, before, changed, told)

    def end(self, found: dict[str, Any], before: str, changed: bool, told: Optional[dict[str, Any]] = None) -> None:
        """End well."""
        name = "%s at %s: " % (self.place.repository, self.place.revision[:12])
        after = "complete" if changed else str(found["state"])
        diff = {"before": name + before + "\n", "after": name + after + "\n"}
        done(self.module, changed, self.result(found, before, told or {}), diff=diff)

    def result(self, found: dict[str, Any], before: str, told: dict[str, Any]) -> dict[str, Any]:
        """What the command line reads."""
        return {
            "schema": "rackwell.model_snapshot/1",
            "repository": self.place.repository,
            "revision": self.place.revision,
            "path": self.place.final,
            "before": before,
            "verified": self.args["verify"],
            "fetched_files": told.get("fetched_files", 0),
            "fetched_bytes": told.get("fetched_bytes", 0),
            "resumed_bytes": told.get("resumed_bytes", 0),
            "refetched": told.get("refetched", []),
            "others": others(self.place),
            "unit": self.unit.name,
            **found,
            "damaged": sorted({*found["damaged"], *told.get("damaged", [])}),
        }

    def remove(self) -> None:
        """Take one revision away."""
        there = [path for path in (self.place.final, self.place.staging) if os.path.lexists(path)]
        before = str(self.seen()["state"])
        if there and self.unit.active():
            fix = "systemctl stop %s, then again" % self.unit.name
            raise SnapshotError("fetch-running", "the snapshot is being fetched", self.place.final, self.unit.name, fix)
        if there and not self.module.check_mode:
            for path in there:
                # out of sight in one step, so that nobody finds half of it
                gone = os.path.join(self.place.parent, ".%s.removed" % uuid.uuid4().hex)
                os.rename(path, gone)
                shutil.rmtree(gone)
        absent = {"state": "absent", "files": 0, "bytes": 0, "left_out": 0, "damaged": []}
        diff = {"before": before + "\n", "after": "absent\n"}
        done(self.module, bool(there), self.result(absent, before, {}), diff=diff)

    def _reader(self) -> str:
        """Who only looks: the snapshot can be read by everybody."""
        import pwd

        try:
            pwd.getpwnam(self.args["user"])
        except KeyError:
            return "nobody"
        return str(self.args["user"])


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "include": {"type": "list", "elements": "str", "default": []},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "origin": {"type": "str", "choices": ["host", "directory"], "default": "host"},
            "source": {"type": "path"},
            "endpoint": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "environment": {"type": "dict", "default": {}},
            "workers": {"type": "int", "default": 8},
            "xet": {"type": "bool", "default": False},
            "verify": {"type": "str", "choices": ["size", "sha256"], "default": "size"},
            "user": {"type": "str", "default": "rackwell-weights"},
            "python": {"type": "path", "default": "/opt/rackwell/weights/env/bin/python"},
            "wait": {"type": "bool", "default": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "step": {"type": "str", "choices": ["begin", "wait"], "default": "begin"},
            "run": {"type": "str", "default": ""},
            "before": {"type": "str", "default": ""},
            "poll": {"type": "int", "default": 20},
        },
        required_if=[("origin", "directory", ["source"])],
        supports_check_mode=True,
    )
    os.umask(0o022)
    try:
        task = Task(module)
        if module.params["state"] == "absent":
            task.remove()
        elif module.params["step"] == "wait":
            task.running(module.params["run"], module.params["before"])
        else:
            task.begin()
    except SnapshotError as error:
        parts = error.parts
        fail(module, parts["code"], parts["what"], parts["where"], parts["why"], parts["fix"])
    except OSError as error:
        where, why = str(error.filename or module.params["directory"]), error.strerror or str(error)
        fail(module, "filesystem", "a file operation failed", where, why, "make it writable for root, then run again")


if __name__ == "__main__":
    main()
