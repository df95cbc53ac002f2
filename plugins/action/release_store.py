# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of release_store: asks what the container lacks, sends that, and has it installed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from typing import Any, Dict, List, Optional

from ansible import constants as C  # noqa: N812 (ansible's own name for it)
from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import (
    CHUNK_BYTES,
    Manifest,
    Piece,
    ReleaseError,
    pack,
    pieces,
)

_MODULE = "rackwell.gpu.release_store"
_MARGIN = 64 << 20
_OWN = ("step", "manifest", "requirements", "archive")


class Bundle:
    """A release on the controller, checked against its digest."""

    def __init__(self, path: str) -> None:
        """Raises ReleaseError when it is missing, damaged, or its wheels are not there."""
        self.path = os.path.realpath(path)
        name = os.path.basename(path.rstrip("/"))
        fix = "run `rackwell build %s`" % name
        try:
            with open(os.path.join(self.path, "manifest.json"), encoding="utf-8") as stream:
                text = stream.read()
            with open(os.path.join(self.path, "requirements.txt"), encoding="utf-8") as stream:
                self.requirements = stream.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ReleaseError(
                "bundle-missing", "there is no release of build %s" % name, path, str(reason), fix
            ) from error
        self.manifest = Manifest(text, os.path.join(self.path, "manifest.json"))
        if self.manifest.digest != os.path.basename(self.path):
            why = "its manifest has the digest %s" % self.manifest.digest
            raise ReleaseError("bundle-damaged", "the release is not what its name says", self.path, why, fix)
        if hashlib.sha256(self.requirements.encode()).hexdigest() != self.manifest.requirements_sha256:
            where = os.path.join(self.path, "requirements.txt")
            raise ReleaseError("bundle-damaged", "the release's requirements were changed", where, "", fix)
        self.blobs = os.path.join(os.path.dirname(os.path.dirname(self.path)), "blobs", "sha256")
        self._fix = fix

    def blob(self, sha256: str) -> str:
        """A wheel on the controller. Raises ReleaseError when it is not there, or not what its name says."""
        path = os.path.join(self.blobs, sha256)
        try:
            with open(path, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ReleaseError(
                "bundle-damaged", "a wheel of the release is missing", path, reason, self._fix
            ) from error
        if found != sha256:
            why = "its content has the hash %s" % found
            raise ReleaseError("bundle-damaged", "a wheel of the release is damaged", path, why, self._fix)
        return path

    def unpacked(self) -> int:
        """About how many bytes all wheels take when they are unpacked."""
        total = 0
        for sha256, size in self.manifest.blobs.items():
            try:
                with zipfile.ZipFile(os.path.join(self.blobs, sha256)) as wheel:
                    total += sum(info.file_size for info in wheel.infolist())
            except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
                # the container has it already, the controller no longer
                total += 3 * size
        return total


class ActionModule(ActionBase):  # type: ignore[misc]
    """One query; and only when something is missing, transfers and the installation."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        try:
            if internal := [name for name in _OWN if name in given]:
                why = "%s is set by the action plugin" % internal[0]
                raise ReleaseError("wrong-option", "option %s cannot be given" % internal[0], "", why, "remove it")
            if not given.get("bundle"):
                raise ReleaseError("missing-option", "option bundle is missing", "", "", "give the release's directory")
            bundle = Bundle(self._loader.path_dwim(os.path.expanduser(str(given["bundle"]))))
            result.update(self._converge(given, bundle, task_vars or {}))
        except ReleaseError as error:
            result.update(failed=True, changed=False, **failure(**error.parts))
        return result

    def _converge(self, given: Dict[str, Any], bundle: Bundle, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        given["manifest"] = bundle.manifest.text
        query = self._call(given, {"step": "query"}, task_vars)
        space = query.pop("rackwell_space", [])
        if query.get("failed") or not query.get("changed"):
            return query
        found = query["rackwell_result"]
        missing = {sha256: bundle.manifest.blobs[sha256] for sha256 in found["blobs_missing"]}
        for sha256 in sorted(missing):
            bundle.blob(sha256)
        _check_space(space, missing, 0 if found["staged"] else bundle.unpacked())
        chunks = pieces(missing)
        found["transfers"] = len(chunks)
        if self._task.check_mode:
            return query
        archive = ""
        for number, chunk in enumerate(chunks, start=1):
            size = sum(length for _sha256, _offset, length in chunk)
            self._display.v("release_store: transfer %d of %d, %s bytes" % (number, len(chunks), format(size, ",")))
            archive = self._send(bundle, chunk)
            if number < len(chunks):
                received = self._call(given, {"step": "receive", "archive": archive}, task_vars)
                if received.get("failed"):
                    return received
        last = {"step": "install", "requirements": bundle.requirements}
        if archive:
            last["archive"] = archive
        installed = self._call(given, last, task_vars)
        if installed.get("failed"):
            return installed
        found["staged"] = True
        return query

    def _call(self, given: Dict[str, Any], step: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        result: Dict[str, Any] = self._execute_module(
            module_name=_MODULE, module_args={**given, **step}, task_vars=task_vars
        )
        result.pop("invocation", None)  # it repeats the manifest
        return result

    def _send(self, bundle: Bundle, chunk: List[Piece]) -> str:
        """Bring one archive to the container; returns its path there."""
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        remote = self._connection._shell.join_path(folder, "release.tar")
        handle, local = tempfile.mkstemp(prefix="rackwell-release-", suffix=".tar", dir=C.DEFAULT_LOCAL_TMP)
        os.close(handle)
        try:
            pack(chunk, bundle.blobs, local)
            self._transfer_file(local, remote)
        finally:
            os.unlink(local)
        self._fixup_perms2((folder, remote))
        return str(remote)


def _check_space(space: List[Dict[str, Any]], missing: Dict[str, int], unpacked: int) -> None:
    """Refuse before anything is sent when the container has too little room."""
    chunk = min(sum(missing.values()), CHUNK_BYTES)
    needed: Dict[int, int] = {}
    for place, size in zip(space, (sum(missing.values()) + unpacked + _MARGIN, chunk)):
        needed[place["device"]] = needed.get(place["device"], 0) + size
    for place in space:
        wanted = needed[place["device"]]
        if wanted > place["available"]:
            raise ReleaseError(
                "no-space",
                "the container has too little space for the release",
                place["path"],
                "{0:,} bytes are needed, {1:,} bytes are available; nothing was sent".format(
                    wanted, place["available"]
                ),
                "free space there, or give the container a larger disk",
            )
