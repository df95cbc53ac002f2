# SPDX-License-Identifier: Apache-2.0
"""How a release came to be: an in-toto statement with SLSA's provenance.

Unlike the manifest and the bill of materials it says who, when and with what, so it differs from one run to the next
and is no part of the digest.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import getpass
import hashlib
import importlib.metadata
import json
import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rackwell
from rackwell.build import gitbuild, gitcommand
from rackwell.build.lock import Lock, LockedWheel
from rackwell.build.model import BuildSpec
from rackwell.build.sbom import purl
from rackwell.build.series import Patch
from rackwell.errors import RackwellError

NAME = "provenance.json"
_BUILD_TYPE = "urn:rackwell:build:1"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a release was made of, and when that began."""

    spec: BuildSpec
    lock_path: Path
    lock: Lock
    patches: Sequence[Patch]
    started: dt.datetime


def now() -> dt.datetime:
    """The time, in UTC."""
    return dt.datetime.now(dt.UTC)


def render(run: Run, manifest: dict[str, Any], digest: str, sbom: bytes) -> bytes:
    """The statement."""
    spec = run.spec
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "manifest.json", "digest": {"sha256": digest}},
            {"name": "sbom.cdx.json", "digest": _sha256(sbom)},
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    "build": spec.name,
                    "build_file": {"name": spec.path.name, "digest": _sha256(spec.path.read_bytes())},
                    "lock": {"name": run.lock_path.name, "digest": _sha256(run.lock_path.read_bytes())},
                    "python": manifest["python"],
                    "platform": manifest["platform"],
                    "site": _repository(spec.path.absolute().parent),
                },
                "internalParameters": {"network_cut": gitbuild.network_is_cut()} if run.lock.git else {},
                "resolvedDependencies": _dependencies(run, manifest),
            },
            "runDetails": {
                "builder": {"id": f"urn:rackwell:builder:{_user()}@{socket.gethostname()}", "version": _versions(run)},
                "metadata": {"startedOn": _time(run.started), "finishedOn": _time(now())},
            },
        },
    }
    return json.dumps(statement, sort_keys=True, indent=1).encode() + b"\n"


def _dependencies(run: Run, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that went in, with its hash, and as what."""
    lock = run.lock
    found = [_wheel(lock.installer, "installer")]
    found += [_wheel(wheel, "source") for wheel in sorted(lock.sources)]
    for git in sorted(lock.git):
        source = run.spec.sources[git.wheel.project]
        found.append(
            {
                "uri": f"git+{source.git}@{git.commit}",
                "digest": {"gitCommit": git.commit, "gitTree": git.tree},
                "name": git.wheel.project,
                "annotations": {
                    "as": "git source",
                    "tag": source.tag,
                    "subdirectory": source.subdirectory,
                    "submodules": [dataclasses.asdict(sub) for sub in git.submodules],
                    "wheel": git.wheel.filename,
                    "wheel_sha256": git.wheel.sha256,
                },
            }
        )
        found += [_wheel(tool, f"builds {git.wheel.project}") for tool in gitbuild.fitting(sorted(git.tools))]
    found += [
        {
            "uri": f"urn:rackwell:patch:{patch.meta.name}",
            "digest": {"sha256": patch.sha256},
            "name": patch.diff.name,
            "annotations": {"as": "patch", "project": patch.meta.project, "status": patch.meta.status}
            | ({"accept_risk": patch.accept_risk} if patch.accept_risk else {}),
        }
        for patch in run.patches
    ]
    found += [_wheel(wheel, "dependency") for wheel in sorted(lock.dependencies)]
    told = {wheel.sha256 for wheel in lock.wheels} | {git.wheel.sha256 for git in lock.git}
    projects = {wheel.project for wheel in lock.sources} | {git.wheel.project for git in lock.git}
    found += [
        {
            "uri": purl(wheel["project"], wheel["version"], checksum=f"sha256:{wheel['sha256']}"),
            "digest": {"sha256": wheel["sha256"]},
            "name": wheel["filename"],
            "annotations": {"as": "own wheel"},
        }
        for wheel in manifest["wheels"]
        if wheel["sha256"] not in told and wheel["project"] not in projects
    ]
    return found


def _wheel(wheel: LockedWheel, role: str) -> dict[str, Any]:
    return {
        "uri": purl(wheel.project, wheel.version),
        "digest": {"sha256": wheel.sha256},
        "name": wheel.filename,
        "annotations": {"as": role},
    }


def _versions(run: Run) -> dict[str, str]:
    found = {
        "rackwell": rackwell.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "uv": importlib.metadata.version("uv"),
        "pip": importlib.metadata.version("pip"),
    }
    return found | ({"git": gitcommand.version()} if run.lock.git else {})


def _repository(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository that the site is in, and whether the site differs from it; None without one."""
    try:
        head = gitcommand.run(["-C", str(folder), "rev-parse", "--verify", "HEAD"], str(folder), seconds=20)
        state = ["-C", str(folder.parent), "status", "--porcelain", "--untracked-files=normal", "--", "."]
        changed = gitcommand.run(state, str(folder), seconds=20)
    except (RackwellError, OSError):
        return None
    if head.returncode != 0 or changed.returncode != 0:
        return None
    # the site's state and the lock that this very run wrote are no changes of what was declared
    lines = [line[3:] for line in changed.stdout.splitlines()]
    declared = [name for name in lines if ".rackwell/" not in f"{name}/" and not name.endswith(".lock")]
    return {"commit": head.stdout.strip(), "changed": bool(declared)}


def _user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    asked = os.environ.get("SUDO_USER")
    return f"{asked},{user}" if asked and asked != user else user


def _sha256(data: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(data).hexdigest()}


def _time(value: dt.datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")
