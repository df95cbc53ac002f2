# SPDX-License-Identifier: Apache-2.0
"""Whether a release was signed by somebody who may: ``ssh-keygen -Y`` on the controller."""

from __future__ import annotations

import os
import subprocess
from typing import NoReturn

from ansible_collections.rackwell.gpu.plugins.module_utils.release_manifest import ReleaseError

NAMESPACE = "rackwell-release"
_DEADLINE_S = 30


def signer(manifest: str, text: str, allowed: str, build: str) -> str:
    """The principal, of the file `allowed`, that signed `text`, which is the content of the file `manifest`.

    Raises:
        ReleaseError: ``unsigned``, ``wrongly-signed``, or the file or the program is not there.
    """
    signature = manifest + ".sig"
    fix = "sign it: rackwell build %s --sign KEY" % build
    if not os.path.isfile(allowed):
        raise ReleaseError(
            "signers-missing",
            "the file of allowed signers is not there",
            allowed,
            "release_allowed_signers names it",
            'make it, a line each: NAME namespaces="%s" ssh-ed25519 KEY' % NAMESPACE,
        )
    if not os.path.isfile(signature):
        why = "only signed releases are let in here (%s)" % allowed
        raise ReleaseError("unsigned", "the release is not signed", signature, why, fix)
    found = _keygen(["-Y", "find-principals", "-f", allowed, "-s", signature, "-n", NAMESPACE], "")
    names = [line.strip() for line in found.stdout.splitlines() if line.strip()]
    if found.returncode != 0 or not names:
        _wrong(signature, "no line of %s fits its key: %s" % (allowed, _said(found)), fix)
    for name in names:
        arguments = ["-Y", "verify", "-f", allowed, "-I", name, "-n", NAMESPACE, "-s", signature]
        found = _keygen(arguments, text)
        if found.returncode == 0:
            return name
    return _wrong(signature, _said(found), fix)


def _keygen(arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments], input=text, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(
            "ssh-keygen-missing",
            "the signature cannot be checked",
            "ssh-keygen",
            str(error),
            "install OpenSSH's client",
        ) from error


def _said(found: subprocess.CompletedProcess[str]) -> str:
    return (found.stderr.strip() or found.stdout.strip() or "ssh-keygen ended with %d" % found.returncode)[-300:]


def _wrong(signature: str, why: str, fix: str) -> NoReturn:
    raise ReleaseError("wrongly-signed", "the release's signature does not hold", signature, why, fix)
