# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of release_cache: keeps what was captured, and finds what fits a container."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.action.release_store import Bundle
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure
from ansible_collections.rackwell.gpu.plugins.module_utils.release_cache_key import (
    SCHEMA,
    differences,
    differs,
    key_id,
    read_paper,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError

_MODULE = "rackwell.gpu.release_cache"
_OWN = ("step", "digest", "paper", "archive")
_FOLDER_MODE = 0o755
PAPER, ARCHIVE = "manifest.json", "cache.tar.gz"


class _StepError(Exception):
    """A step on the container failed; `result` is what it said."""

    def __init__(self, result: Dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.result = result


class ActionModule(ActionBase):  # type: ignore[misc]
    """Looks first; sends or fetches only what is wanted."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        try:
            if internal := [name for name in _OWN if name in given]:
                why = "%s is set by the action plugin" % internal[0]
                raise ReleaseError("wrong-option", "option %s cannot be given" % internal[0], "", why, "remove it")
            folder = self._loader.path_dwim(os.path.expanduser(str(given.get("caches") or "")))
            if given.get("state") == "restored":
                result.update(self._restore(given, folder, task_vars or {}))
            else:
                result.update(self._capture(given, folder, task_vars or {}))
        except ReleaseError as error:
            result.update(failed=True, changed=False, **failure(**error.parts))
        except _StepError as error:
            result.update(error.result)
        return result

    def _call(self, given: Dict[str, Any], task_vars: Dict[str, Any], **step: Any) -> Dict[str, Any]:
        result: Dict[str, Any] = self._execute_module(
            module_name=_MODULE, module_args={**given, **step}, task_vars=task_vars
        )
        result.pop("invocation", None)
        if result.get("failed"):
            raise _StepError(result)
        return result

    # from the container

    def _capture(self, given: Dict[str, Any], folder: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        if self._task.check_mode:
            look = self._call(given, task_vars, step="look")["look"]
            return _ended("captured", look["id"], look["key"], look["files"], look["bytes"], changed=True)
        packed = self._call(given, task_vars, step="pack")
        try:
            paper = packed["paper"]
            state = self._keep(paper, packed["archive"], folder)
        finally:
            self._call(given, task_vars, step="discard")
        return _ended(
            state, paper["id"], paper["key"], len(paper["files"]), paper["bytes"], changed=state == "captured"
        )

    def _keep(self, paper: Dict[str, Any], remote: str, folder: str) -> str:
        """Fetch, check, and put in place. Returns ``captured``, or ``unchanged`` when the same files lie there."""
        place = os.path.join(folder, paper["id"])
        try:
            held = load(place)
            if held["content"] == paper["content"]:
                check_archive(place, held)
                return "unchanged"
        except ReleaseError:
            pass  # there is none, or a damaged one, which this one replaces
        os.makedirs(folder, exist_ok=True)
        fresh = tempfile.mkdtemp(prefix=".%s." % paper["id"], suffix=".partial", dir=folder)
        try:
            self._connection.fetch_file(remote, os.path.join(fresh, ARCHIVE))
            check_archive(fresh, paper)
            with open(os.path.join(fresh, PAPER), "w", encoding="utf-8") as stream:
                json.dump(paper, stream, indent=1, sort_keys=True)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(fresh, _FOLDER_MODE)
            old = fresh + ".old"
            if os.path.exists(place):
                os.rename(place, old)
            os.rename(fresh, place)
            shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return "captured"

    # to the container

    def _restore(self, given: Dict[str, Any], folder: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        bundle = Bundle(self._loader.path_dwim(os.path.expanduser(str(given.get("bundle") or ""))))
        digest = bundle.manifest.digest
        papers, broken = known(folder)
        mine = [paper for paper in papers if paper["key"]["release"] == digest]
        wrong = [why for name, why in broken.items() if name.startswith(digest[:12])]
        if not mine and wrong:
            return {**_ended("refused", why="; ".join(wrong)), "warnings": wrong}
        if not mine:
            return _ended("none", why="no cache of release %s was captured" % digest[:12])
        look = self._call(given, task_vars, step="look", digest=digest)["look"]
        key = look["key"]
        if not look["untouched"]:
            return _ended("kept", look["id"], key, look["files"], look["bytes"], why="the container has one of its own")
        place = os.path.join(folder, look["id"])
        paper = next((one for one in mine if one["id"] == look["id"]), None)
        if paper is None:
            found = [one for other in mine for one in differences(key, other["key"])]
            why = "what was captured of this release differs in " + differs(found)
            return _ended("refused", look["id"], key, why=why, differs=found)
        try:
            check_archive(place, paper)
        except ReleaseError as error:
            why = "%(what)s: %(why)s" % error.parts
            return {**_ended("refused", look["id"], key, why=why), "warnings": ["%s (%s)" % (why, place)]}
        done = _ended("restored", look["id"], key, len(paper["files"]), paper["bytes"], changed=True)
        if self._task.check_mode:
            return done
        remote = self._send(os.path.join(place, ARCHIVE))
        self._call(given, task_vars, step="unpack", digest=digest, paper=json.dumps(paper), archive=remote)
        return done

    def _send(self, path: str) -> str:
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        remote = self._connection._shell.join_path(folder, ARCHIVE)
        self._transfer_file(path, remote)
        self._fixup_perms2((folder, remote))
        return str(remote)


def load(place: str) -> Dict[str, Any]:
    """The paper of the captured cache in directory `place`. Raises ReleaseError."""
    path = os.path.join(place, PAPER)
    try:
        with open(path, encoding="utf-8") as stream:
            paper: Dict[str, Any] = read_paper(stream.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        fix = "capture it again: rackwell cache capture CONTAINER"
        raise ReleaseError("cache-damaged", "a captured cache has no paper", path, str(error), fix) from error
    if not os.path.basename(place).startswith("."):
        name = os.path.basename(place.rstrip("/"))
        if name != key_id(paper["key"]):
            raise ReleaseError(
                "cache-damaged", "a captured cache lies under a wrong name", place, paper["id"], "move it"
            )
    return paper


def check_archive(place: str, paper: Dict[str, Any]) -> None:
    """Raises ReleaseError when the archive in `place` is not the one of `paper`."""
    path = os.path.join(place, ARCHIVE)
    fix = "capture it again: rackwell cache capture CONTAINER"
    try:
        with open(path, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ReleaseError("cache-damaged", "a captured cache is not there", path, str(error), fix) from error
    if found != paper["archive"]["sha256"]:
        raise ReleaseError("cache-damaged", "a captured cache is damaged", path, "its hash does not hold", fix)


def known(folder: str) -> Tuple[List[Dict[str, Any]], Dict[str, str]]:
    """The papers in `folder` that hold, and why the others do not: name -> reason."""
    found, broken = [], {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if not name.startswith("."):
            try:
                found.append(load(os.path.join(folder, name)))
            except ReleaseError as error:
                broken[name] = "%(what)s: %(why)s (%(where)s)" % error.parts
    return found, broken


def _ended(
    state: str,
    name: str = "",
    key: Optional[Dict[str, str]] = None,
    files: int = 0,
    size: int = 0,
    *,
    changed: bool = False,
    why: str = "",
    differs: Optional[List[Dict[str, str]]] = None,
) -> Dict[str, Any]:
    result = {
        "schema": SCHEMA,
        "state": state,
        "id": name,
        "key": key or {},
        "files": files,
        "bytes": size,
        "why": why,
        "differs": differs or [],
    }
    return {"changed": changed, "rackwell_result": result}
