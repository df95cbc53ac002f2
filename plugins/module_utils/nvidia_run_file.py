# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's ``.run`` file: checked before it runs, run for a container's user space or for a host, its failure told."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING

from ansible_collections.rackwell.gpu.plugins.module_utils import bounded
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import VERSION, DriverError

if TYPE_CHECKING:
    import subprocess

# Seconds; unpacking and linking the largest driver on a slow disk takes a small part of it.
DEADLINE_S = 900
# The kernel module is the host's; what only a desktop, a host or an interactive installation needs is left out.
CONTAINER_FLAGS = (
    "--silent",
    "--no-kernel-modules",
    "--no-install-compat32-libs",
    "--no-nvidia-modprobe",
    "--no-systemd",
    "--no-x-check",
    "--no-nouveau-check",
    "--no-backup",
    "--no-check-for-alternate-installs",
)
LOG = "/var/log/nvidia-installer.log"
LOG_LINES = 30
# The archive unpacks to about three times its size, and about two of them stay.
UNPACKED, INSTALLED = 3, 2
_IDENTIFICATION = re.compile(r"^\s*Identification\s*:\s*(.*\S)\s*$", re.MULTILINE)
_CHUNK = 1 << 20


def sha256_of(path: str) -> str:
    """Hash of a file, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def check_sha256_form(sha256: str) -> None:
    """Raises DriverError when it cannot be a sha256."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise DriverError(
            "sha256-unclear",
            "that is no sha256",
            "sha256",
            sha256,
            "give the 64 hexadecimal digits that `sha256sum FILE` prints",
        )


def check_sha256(
    path: str, expected: str, declared: tuple[str, str] = ("nvidia_userspace_run_file", "nvidia_userspace_sha256")
) -> None:
    """Raises DriverError when the file is not there or is not the declared one.

    Args:
        declared: the variables that name the file and its hash.
    """
    try:
        found = sha256_of(path)
    except OSError as error:
        raise DriverError(
            "run-file-missing",
            "the driver's .run file cannot be read",
            path,
            error.strerror or str(error),
            "correct %s, or put the file there" % declared[0],
        ) from error
    if found != expected:
        raise DriverError(
            "run-file-checksum",
            "the driver's .run file is not the declared one",
            path,
            "its sha256 is %s, declared is %s; it was not run" % (found, expected),
            "download it anew, or correct %s after comparing it with NVIDIA's page" % declared[1],
        )


def check_version(path: str, version: str) -> None:
    """Ask the file itself. Raises DriverError when it is of another version, or no driver at all."""
    answer = _run(["sh", path, "--info"], dict(os.environ))
    found = _IDENTIFICATION.search(answer.stdout)
    told = VERSION.search(found.group(1)) if found else None
    if answer.returncode != 0 or found is None or told is None:
        raise DriverError(
            "run-file-unknown",
            "the file does not say that it is an NVIDIA driver",
            path,
            "`sh FILE --info` ended with %d and printed: %s" % (answer.returncode, _last(answer.stdout)),
            "give the NVIDIA-Linux-x86_64-%s.run from NVIDIA" % version,
        )
    if told.group(0) != version:
        raise DriverError(
            "run-file-version",
            "the driver's .run file is of another version",
            path,
            "it is %s, needed is %s" % (told.group(0), version),
            "give the NVIDIA-Linux-x86_64-%s.run and its sha256" % version,
        )


def place_to_unpack(
    size: int,
    candidates: tuple[str, ...],
    library_directory: str,
    fix: str = "free space in the container, or give it a larger disk (pve_container_disk_size)",
) -> str:
    """The first of the directories where the file can unpack and run, with room left to install.

    Args:
        size: of the .run file, bytes. library_directory: where the libraries will lie. fix: what makes room.

    Raises DriverError when none will do.
    """
    told = []
    for directory in candidates:
        try:
            place = os.statvfs(directory)
            target = os.statvfs(library_directory)
            same = os.stat(directory).st_dev == os.stat(library_directory).st_dev
        except OSError as error:
            told.append("%s: %s" % (directory, error.strerror or error))
            continue
        if place.f_flag & os.ST_NOEXEC:
            told.append("%s is mounted noexec" % directory)
            continue
        needed = {directory: UNPACKED * size, library_directory: INSTALLED * size}
        if same:
            needed = {directory: (UNPACKED + INSTALLED) * size}
        lacking = [
            "%s has %s MiB free, needed are %s MiB" % (where, free >> 20, _mib(needed[where]))
            for where, free in ((directory, _free(place)), (library_directory, _free(target)))
            if where in needed and free < needed[where]
        ]
        if not lacking:
            return directory
        told.extend(lacking)
    raise DriverError(
        "no-space",
        "there is no room to install the driver",
        ", ".join(candidates),
        "; ".join(told) + "; nothing was touched",
        fix,
    )


def install(path: str, directory: str, log: str = LOG, flags: tuple[str, ...] = CONTAINER_FLAGS) -> None:
    """Run the installer. Raises DriverError, with the end of its log, when it fails.

    Args:
        path: the checked .run file. directory: where it unpacks. log: what it writes. flags: for the user space only,
            unless others are given.
    """
    started = time.time()
    answer = _run(["sh", path, *flags], {**os.environ, "TMPDIR": directory, "LC_ALL": "C"})
    if answer.returncode == 0:
        return
    lines = _log_tail(log, started) or answer.stdout.splitlines()[-LOG_LINES:]
    # the last of them only says that it failed and where the log is
    errors = [_plain(line) for line in lines if line.startswith("ERROR:") and "Installation has failed" not in line]
    raise DriverError(
        "installer-failed",
        "NVIDIA's installer failed",
        log,
        "; ".join(errors) if errors else "it ended with %d and printed: %s" % (answer.returncode, _last(answer.stdout)),
        "mend what it says and run again; its log is in that file, the end of it is shown",
        log=lines,
    )


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        answer: subprocess.CompletedProcess[str] = bounded.run(command, DEADLINE_S, env=environment)
    except bounded.DeadlineError as error:
        raise DriverError(
            **error.parts(
                "NVIDIA's installer did not end",
                "%s (its log: %s)" % (command[1], LOG),
                "look at load and disk of the machine and at the log, then run again; what is half there is replaced",
            )
        ) from error
    return answer


def _log_tail(log: str, started: float) -> list[str]:
    """The log's last lines, when this run wrote it (whole seconds: some file systems keep no more)."""
    try:
        if os.stat(log).st_mtime < int(started):
            return []
        with open(log, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()[-LOG_LINES:]
    except OSError:
        return []


def _free(place: os.statvfs_result) -> int:
    return place.f_bavail * place.f_frsize


def _mib(size: int) -> int:
    """Rounded up: what is needed; what is free is rounded down."""
    return -(-size // (1 << 20))


def _plain(line: str) -> str:
    return line[len("ERROR:") :].strip()


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"
