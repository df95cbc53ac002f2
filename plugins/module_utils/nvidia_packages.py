# SPDX-License-Identifier: Apache-2.0
"""apt in a container with NVIDIA's user space: other versions of its packages are kept away, or taken out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from ansible_collections.rackwell.gpu.plugins.module_utils import bounded
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError, Leftover
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_apt import PREFERENCES, preferences

#: seconds
_PURGE_S, _LINK_S = 600.0, 120.0


def pinned(version: str) -> bool:
    """Whether the preferences are those of this version; also where there is no apt."""
    if not os.path.isdir("/etc/apt"):
        return True
    try:
        with open(PREFERENCES, encoding="utf-8") as stream:
            return bool(stream.read() == preferences(version, held=True))
    except OSError:
        return False


def pin(version: str) -> None:
    """Write them."""
    os.makedirs(os.path.dirname(PREFERENCES), exist_ok=True)
    with open(PREFERENCES + ".new", "w", encoding="utf-8") as stream:
        stream.write(preferences(version, held=True))
    os.chmod(PREFERENCES + ".new", 0o644)
    os.replace(PREFERENCES + ".new", PREFERENCES)


def remove(items: Sequence[Leftover]) -> None:
    """Purge the packages, and unlink what no package has. Raises DriverError."""
    packages = sorted({name.strip() for item in items if item.package for name in item.package.split(",")})
    if packages:
        done = _run(["apt-get", "purge", "--yes", *packages], _PURGE_S)
        if done.returncode != 0:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            raise DriverError(
                "driver-packages",
                "the packages of another driver version could not be purged",
                " ".join(packages),
                "apt-get ended with %d: %s" % (done.returncode, " ".join(lines[-3:])),
                "mend what it says (apt-get -f install), and run again",
                log=lines[-30:],
            )
    for item in items:
        if os.path.lexists(item.path):
            os.unlink(item.path)
    if items:
        links()


def links() -> None:
    """Have the loader's links made anew."""
    _run(["ldconfig"], _LINK_S)


def _run(words: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    environment["PATH"] = environment.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
    try:
        done: subprocess.CompletedProcess[str] = bounded.run(words, seconds, env=environment)
    except bounded.DeadlineError as error:
        raise DriverError(
            **error.parts("%s did not end" % words[0], words[0], "look at the load, and run again")
        ) from error
    return done
