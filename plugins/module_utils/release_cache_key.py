# SPDX-License-Identifier: Apache-2.0
"""What a cache of compiled kernels and tuned tactics is good for, and the paper that travels with it. Both ends."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List

from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import DIGEST, ReleaseError

SCHEMA = "rackwell.release_cache/1"
PARTS = {
    "release": "release",
    "gpu_architecture": "GPU architecture",
    "gpu": "GPU",
    "driver": "driver",
    "releases": "directory of the releases",
    "caches": "directory of the caches",
    "libc": "C library",
}
"""Part of a key -> its name for people. All of them are in what is compiled, or in its path."""


def key_id(key: Dict[str, str]) -> str:
    """The name of a key: readable, and unique by a hash over all parts."""
    whole = hashlib.sha256(_canonical({part: key.get(part, "") for part in PARTS})).hexdigest()
    architecture = "sm" + key.get("gpu_architecture", "").replace(".", "").replace(",", "-")
    return "-".join((key.get("release", "")[:12], architecture, key.get("driver", ""), whole[:8]))


def differences(here: Dict[str, str], captured: Dict[str, str]) -> List[Dict[str, str]]:
    """The parts in which two keys differ."""
    return [
        {"part": name, "here": here.get(part, ""), "captured": captured.get(part, "")}
        for part, name in PARTS.items()
        if here.get(part, "") != captured.get(part, "")
    ]


def differs(found: List[Dict[str, str]]) -> str:
    """The parts in a line."""
    return "; ".join("%(part)s: %(captured)s there, %(here)s here" % one for one in found)


def seal(paper: Dict[str, Any]) -> Dict[str, Any]:
    """A cache's paper with the digest over all else in it."""
    rest = {name: value for name, value in paper.items() if name != "digest"}
    return {**rest, "digest": hashlib.sha256(_canonical(rest)).hexdigest()}


def content(files: List[Dict[str, Any]]) -> str:
    """Digest of what the files hold; times do not count."""
    return hashlib.sha256(_canonical(sorted([one["path"], one["sha256"]] for one in files))).hexdigest()


def read_paper(text: str, where: str) -> Dict[str, Any]:
    """The paper of a captured cache.

    Raises:
        ReleaseError: ``cache-damaged``: it is none, or was changed.
    """
    fix = "capture it again: rackwell cache capture CONTAINER"
    try:
        paper = json.loads(text)
        if paper["schema"] != SCHEMA:
            raise ValueError("its schema is %s" % paper["schema"])
        if seal(paper)["digest"] != paper["digest"]:
            raise ValueError("it was changed after it was written")
        if paper["id"] != key_id(paper["key"]):
            raise ValueError("its name does not fit its key")
        for one in paper["files"]:
            if not safe(one["path"]) or not DIGEST.match(one["sha256"]) or one["size"] < 0:
                raise ValueError("it names a file as %r" % (one,))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ReleaseError(
            "cache-damaged", "the paper of a captured cache is damaged", where, str(error), fix
        ) from error
    result: Dict[str, Any] = paper
    return result


def safe(path: str) -> bool:
    """Whether a relative path stays where it is unpacked."""
    parts = path.split("/")
    return bool(path) and "\0" not in path and not any(part in {"", ".", ".."} for part in parts)


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
