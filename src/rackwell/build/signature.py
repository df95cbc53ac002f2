# SPDX-License-Identifier: Apache-2.0
"""Signatures of releases, by SSH keys: ``ssh-keygen -Y`` makes them and checks them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rackwell import bounded
from rackwell.build.files import telling_file_errors, write_atomically
from rackwell.errors import ExitCode, Problem, RackwellError

NAMESPACE = "rackwell-release"
"""What a signature is for; one made for something else does not count."""
SUFFIX = ".sig"
_SECONDS = 60


def require(key: Path | None, allowed_signers: Path | None) -> None:
    """Refuse files that are not there before anything is built. Raises RackwellError (exit 2)."""
    if key is not None and not key.expanduser().is_file():
        why = f"{key} does not exist"
        raise _error(
            "key-missing", "the key to sign with is not there", str(key), why, "give its path", ExitCode.INVALID
        )
    if allowed_signers is not None and not allowed_signers.expanduser().is_file():
        line = f'make it, a line each: NAME namespaces="{NAMESPACE}" ssh-ed25519 KEY'
        what = "the file of allowed signers is not there"
        raise _error("signers-missing", what, str(allowed_signers), "it does not exist", line, ExitCode.INVALID)


def sign(path: Path, key: Path) -> Path:
    """Sign the file `path`.

    Args:
        key: a private key without a passphrase; or a public one whose private key the ssh-agent holds.

    Returns:
        the signature, ``<path>.sig``.

    Raises:
        RackwellError: the key is not there (exit 2), or it cannot be signed with (exit 1).
    """
    require(key, None)
    key = key.expanduser().absolute()
    with tempfile.TemporaryDirectory(prefix="rackwell-sign-") as folder:
        signed = Path(folder) / "signed.sig"
        done = _keygen(["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE], path, stdout=signed)
        if done.returncode != 0:
            raise _error(
                "signing-failed",
                f"{path.name} could not be signed",
                str(key),
                _said(done),
                "a key with a passphrase: `ssh-add` it, and give its .pub file; nobody is asked for one here",
            )
        data = signed.read_bytes()
    target = path.with_name(path.name + SUFFIX)
    with telling_file_errors(target):
        if not (target.is_file() and target.read_bytes() == data):
            write_atomically(target, data)
    return target


def verify(path: Path, allowed_signers: Path) -> str:
    """Who signed the file `path`.

    Args:
        allowed_signers: a file as `ssh-keygen(1)` describes it under ALLOWED SIGNERS.

    Returns:
        the principal, as `allowed_signers` has it.

    Raises:
        RackwellError: there is no signature, or none that holds (exit 1); or no `allowed_signers` (exit 2).
    """
    require(None, allowed_signers)
    allowed = allowed_signers.expanduser().absolute()
    signature = path.with_name(path.name + SUFFIX)
    fix = "find out who made it; if it is yours, sign it: rackwell build NAME --sign KEY"
    if not signature.is_file():
        raise _error("unsigned", "the release is not signed", str(signature), "there is no such file", fix)
    arguments = ["-f", str(allowed), "-n", NAMESPACE, "-s", str(signature)]
    found = _keygen(["-Y", "find-principals", *arguments], None)
    names = [line.strip() for line in found.stdout.splitlines() if line.strip()]
    why = f"no line of {allowed} has its key: {_said(found)}"
    for name in names if found.returncode == 0 else []:
        done = _keygen(["-Y", "verify", *arguments, "-I", name], path)
        if done.returncode == 0:
            return name
        why = _said(done)
    raise _error("wrongly-signed", "the release's signature does not hold", str(signature), why, fix)


def _keygen(
    arguments: Sequence[str], stdin: Path | None, stdout: Path | None = None
) -> subprocess.CompletedProcess[str]:
    late = bounded.timed_out(
        "ssh-keygen did not end in time", "ssh-keygen", _SECONDS, "it waits for a key's device or agent", "see to it"
    )
    try:
        return bounded.run(
            ["ssh-keygen", *arguments],
            _SECONDS,
            late=late,
            env={**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"},
            stdin=stdin,
            stdout=stdout,
        )
    except FileNotFoundError as error:
        if stdin is not None and not stdin.exists():
            raise
        raise _error(
            "ssh-keygen-missing", "there is no ssh-keygen", "", "it signs and checks", "install OpenSSH's client"
        ) from error


def _said(done: subprocess.CompletedProcess[str]) -> str:
    said = (done.stderr.strip() or done.stdout.strip()).replace("\r", "").splitlines()
    return " ".join(line.strip() for line in said)[-300:] or f"ssh-keygen ended with {done.returncode}"


def _error(
    code: str, what: str, where: str, why: str, fix: str, exit_code: ExitCode = ExitCode.FAILED
) -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), exit_code)
