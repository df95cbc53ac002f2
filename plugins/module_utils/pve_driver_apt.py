# SPDX-License-Identifier: Apache-2.0
"""The driver from packages: pinned by apt's preferences to one version, installed, and compared with what came."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import nvidia_driver
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError

PREFERENCES = "/etc/apt/preferences.d/rackwell-nvidia"
#: what NVIDIA's repository calls them for Debian 12 and 13: libraries and tools, and the open modules' sources
PACKAGES = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")
#: of the proprietary modules: Blackwell does not run with them
PROPRIETARY = re.compile(r"nvidia-(?:kernel-|legacy-.*)?dkms(?:-\d+)?$|nvidia-driver(?:-\d+)?$|cuda-drivers(?:-\d+)?$")
_NAMES = "*nvidia* libcuda* libnv* cuda-drivers* firmware-nvidia-gsp"
#: seconds; the driver is 400 MB from a mirror
INSTALL_S, UPDATE_S = 3600.0, 600.0
_OURS = "# Written by rackwell. Changes made here are undone by its next run.\n"


def preferences(version: str, held: bool = False) -> str:
    """apt's preferences for one driver.

    Args:
        held: the driver here came from a ``.run`` file: no package of another version may come beside it.
    """
    text = _OURS
    if held:
        # the container toolkit has versions of its own, and is no part of the driver
        text += "Package: libnvidia-container* nvidia-container-*\nPin: release *\nPin-Priority: 500\n\n"
    text += "Package: %s\nPin: version %s*\nPin-Priority: 1001\n" % (_NAMES if not held else DRIVER_NAMES, version)
    if held:
        text += "\nPackage: %s\nPin: release *\nPin-Priority: -1\n" % DRIVER_NAMES
    return text


#: packages that bring a file of the driver's user space or its module, by Debian's, Ubuntu's and NVIDIA's names
DRIVER_NAMES = (
    "libcuda1* libcudadebugger1* libnvcuvid1* libnvoptix1* libnvidia-* nvidia-smi* nvidia-driver* nvidia-open* "
    "nvidia-kernel-* nvidia-dkms* nvidia-utils* nvidia-headless* nvidia-compute-utils* nvidia-alternative* "
    "nvidia-persistenced* nvidia-modprobe* cuda-drivers* xserver-xorg-video-nvidia* firmware-nvidia-*"
)


def owner(host: Any) -> str:
    """``package version`` of what has the driver's library here; empty when no package has it."""
    if host.tool("dpkg-query") is None:
        return ""
    answer = host.run(["dpkg-query", "--search", "*/libcuda.so.*"])
    for line in answer.stdout.splitlines():
        package, separator, path = line.partition(": ")
        if separator and not line.startswith("diversion by ") and nvidia_driver.VERSION.search(path):
            name = package.split(",")[0].strip()
            told = host.run(["dpkg-query", "--show", "--showformat", "${Version}", name])
            return "%s %s" % (name, told.stdout.strip())
    return ""


def candidates(host: Any, packages: tuple[str, ...]) -> dict[str, tuple[str, list[str]]]:
    """Package -> (what apt would install, every version that the repositories have)."""
    found = {}
    for name in packages:
        text = host.run(["apt-cache", "policy", name]).stdout
        candidate = re.search(r"^\s*Candidate:\s*(\S+)", text, re.MULTILINE)
        versions = re.findall(r"^(?: \*\*\*|    ) (\S+) -?\d+$", text, re.MULTILINE)
        found[name] = (candidate.group(1) if candidate and candidate.group(1) != "(none)" else "", versions)
    return found


def fits(package_version: str, version: str) -> bool:
    """Whether a package's version, such as ``1:595.58.03-1``, is that of the driver."""
    bare = package_version.partition(":")[2] or package_version
    return bare == version or bare.startswith((version + "-", version + "+", version + "~"))


def check(host: Any, version: str, packages: tuple[str, ...]) -> None:
    """The repositories have this version of each package, and the pin chooses it.

    Raises:
        DriverError: ``package-version-missing``; nothing was installed.
    """
    told = []
    for name, (candidate, versions) in candidates(host, packages).items():
        if fits(candidate, version):
            continue
        if any(fits(each, version) for each in versions):
            told.append("%s: apt would take %s, another pin in /etc/apt is stronger" % (name, candidate or "none"))
        else:
            told.append("%s: the repositories have %s" % (name, ", ".join(versions) or "none"))
    if told:
        raise DriverError(
            "package-version-missing",
            "apt cannot install the driver %s" % version,
            "/etc/apt",
            "; ".join(told),
            "add the repository that has it, or declare the .run file of this version (run_file, sha256): a repository "
            "does not keep every version",
        )


def install(host: Any, version: str, packages: tuple[str, ...]) -> None:
    """Have apt install them. Raises DriverError with the end of what it said."""
    # a mirror that is away is told by what is missing then
    host.run(["apt-get", "update"], UPDATE_S)
    check(host, version, packages)
    words = [
        "apt-get",
        "install",
        "--yes",
        "--no-install-recommends",
        "--allow-downgrades",
        "-o",
        "Dpkg::Options::=--force-confold",
    ]
    done = host.run(["env", "DEBIAN_FRONTEND=noninteractive", *words, *packages], INSTALL_S)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "dpkg: error", "Error!", "ERROR"))]
    raise DriverError(
        "installer-failed",
        "apt could not install the driver",
        " ".join(packages),
        "; ".join(errors[:3]) or "it ended with %d: %s" % (done.returncode, " ".join(lines[-2:])),
        "mend what it says (apt-get -f install), and run again",
        log=lines[-30:],
    )


def other_form(wants_packages: bool, facts: Mapping[str, Any]) -> str:
    """Why the other form of the driver has to go first; empty when it is not there."""
    if wants_packages and facts["uninstaller"] and not facts["owner"]:
        return "a .run file installed the driver that is here; the packages would lie over its files"
    if not wants_packages and facts["owner"]:
        return (
            "package %s has the driver's libraries; the .run file would be written over by the next upgrade"
            % facts["owner"]
        )
    return ""
