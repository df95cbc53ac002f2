# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of release_store: asks what the container lacks, sends that, and has it installed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from typing import Any, Dict, Iterable, List, Optional

from ansible import constants as C  # noqa: N812 (ansible's own name for it)
from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure
from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import (
    BESIDE,
    CHUNK_BYTES,
    Manifest,
    Piece,
    ReleaseError,
    pack,
    pieces,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.release_signature import signer

_MODULE = "rackwell.gpu.release_store"
_MARGIN = 64 << 20
_OWN = ("step", "manifest", "requirements", "extras", "archive")
_BLOCK = 4096


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
        self.extras = {name: text for name in BESIDE for text in [_text(os.path.join(self.path, name))] if text}
        self._fix = fix

    def signer(self, allowed: str) -> str:
        """Who of the file `allowed` signed the manifest. Raises ReleaseError when nobody did."""
        path = os.path.join(self.path, "manifest.json")
        name: str = signer(path, self.manifest.text, allowed, self.manifest.name)
        return name

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

    def unpacked(self, there: Iterable[str] = ()) -> int:
        """About how many bytes the wheels take when they are unpacked, but for those that are `there` already."""
        total = 0
        for sha256, size in self.manifest.blobs.items():
            if sha256 in there:
                continue
            try:
                with zipfile.ZipFile(os.path.join(self.blobs, sha256)) as wheel:
                    total += sum(-(-info.file_size // _BLOCK) * _BLOCK for info in wheel.infolist())
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
            signers = given.pop("allowed_signers", None)
            signed_by = bundle.signer(self._loader.path_dwim(os.path.expanduser(str(signers)))) if signers else None
            result.update(self._converge(given, bundle, task_vars or {}))
            if signed_by and "rackwell_result" in result:
                result["rackwell_result"]["signed_by"] = signed_by
        except ReleaseError as error:
            result.update(failed=True, changed=False, **failure(**error.parts))
        return result

    def _converge(self, given: Dict[str, Any], bundle: Bundle, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        given["manifest"] = bundle.manifest.text
        given["extras"] = bundle.extras
        query = self._call(given, {"step": "query"}, task_vars)
        space, room = query.pop("rackwell_space", []), query.pop("rackwell_room", None)
        if query.get("failed") or not query.get("changed"):
            return query
        found = query["rackwell_result"]
        missing = {sha256: bundle.manifest.blobs[sha256] for sha256 in found["blobs_missing"]}
        for sha256 in sorted(missing):
            bundle.blob(sha256)
        if room is not None:
            found["budget"] = budget(bundle, found, missing, room, space)
            _check_space(space, missing, found["budget"])
            self._display.v("release_store: %s" % told(found["budget"]))
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


def budget(
    bundle: Bundle, found: Dict[str, Any], missing: Dict[str, int], room: Dict[str, Any], space: List[Dict[str, Any]]
) -> Dict[str, int]:
    """What staging takes, in bytes, what is available where the releases lie, and what could be freed there."""
    blobs = sum(missing.values())
    installed = 0 if found["staged"] else bundle.unpacked(room["unpacked"])
    return {
        "blobs": blobs,
        "installed": installed,
        "caches": room["caches"],
        "needed": blobs + installed + room["caches"] + _MARGIN,
        "available": space[0]["available"],
        "could_free": room["could_free"],
    }


def told(budget: Dict[str, int]) -> str:
    """A budget in a line."""
    return (
        "{needed:,} bytes are needed ({blobs:,} wheels, {installed:,} installed, {caches:,} caches), "
        "{available:,} are available, rackwell gc could free {could_free:,}".format(**budget)
    )


def _check_space(space: List[Dict[str, Any]], missing: Dict[str, int], budget: Dict[str, int]) -> None:
    """Refuse before anything is sent when the container has too little room."""
    chunk = min(sum(missing.values()), CHUNK_BYTES)
    needed: Dict[int, int] = {}
    for place, size in zip(space, (budget["needed"] - budget["caches"], chunk, budget["caches"])):
        needed[place["device"]] = needed.get(place["device"], 0) + size
    for place in space:
        wanted = needed[place["device"]]
        if wanted > place["available"]:
            enough = budget["could_free"] and wanted <= place["available"] + budget["could_free"]
            raise ReleaseError(
                "no-space",
                "the container has too little space for the release",
                place["path"],
                "{0:,} bytes are needed, {1:,} bytes are available; nothing was sent. {2}".format(
                    wanted, place["available"], told(budget)
                ),
                "run `rackwell gc` for this container, then again"
                if enough
                else "free space there, or give the container a larger disk",
            )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError):
        return ""
