# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel loads a module that DKMS builds: with Secure Boot only one that is signed with a key it knows."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from typing import Any, Optional

_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
#: where DKMS keeps the key that it signs with, unless its configuration names another place
DKMS_KEY = "/var/lib/dkms/mok.pub"


@dataclasses.dataclass(frozen=True)
class Secure:
    """``enforced``: why only signed modules are loaded; empty when any is. ``key``: the certificate that DKMS signs
    with, ``there``: it exists. ``enrolled``: whether the firmware's list has it, None when that is not known."""

    enforced: str = ""
    key: str = DKMS_KEY
    there: bool = False
    enrolled: Optional[bool] = None

    @property
    def problem(self) -> str:
        """Why a module that is built now would not be loaded; empty when it would, or nothing is known against it."""
        if not self.enforced:
            return ""
        if not self.there:
            return "%s, and DKMS has no key to sign with (%s)" % (self.enforced, self.key)
        if self.enrolled is False:
            return "%s, and the key that DKMS signs with (%s) is not enrolled" % (self.enforced, self.key)
        return ""

    @property
    def fix(self) -> str:
        """What an operator does, at the machine's own console."""
        make = "" if self.there else "dkms generate_mok; "
        return (
            "apt install dkms mokutil; %smokutil --import %s (it asks for a password once); reboot, and at the console "
            "choose Enroll MOK and give that password; mokutil --test-key %s has to say that it is enrolled. Or turn "
            "Secure Boot off in the firmware" % (make, self.key, self.key)
        )


def look(host: Any) -> Secure:
    """Read it."""
    enforced = _enforced(host)
    key = _key(host)
    there = os.path.isfile(host.at(key))
    enrolled = None
    if enforced and there and host.tool("mokutil"):
        said = host.run(["mokutil", "--test-key", host.at(key)]).stdout
        enrolled = True if "already enrolled" in said else False if "is not enrolled" in said else None
    return Secure(enforced, key, there, enrolled)


def _enforced(host: Any) -> str:
    try:
        with open(host.at(_VARIABLE), "rb") as stream:
            # four bytes of attributes, then the value
            if stream.read(5)[4:5] == b"\1":
                return "Secure Boot is on"
    except OSError:
        pass
    if host.read("/sys/module/module/parameters/sig_enforce").strip() == "Y":
        return "the kernel takes signed modules only (module.sig_enforce)"
    lockdown = re.search(r"\[(\w+)\]", host.read("/sys/kernel/security/lockdown"))
    if lockdown and lockdown.group(1) != "none":
        return "the kernel is locked down (%s)" % lockdown.group(1)
    return ""


def _key(host: Any) -> str:
    for path in [
        *sorted(glob.glob(host.at("/etc/dkms/framework.conf.d") + "/*.conf")),
        host.at("/etc/dkms/framework.conf"),
    ]:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                found = re.search(r"^\s*mok_certificate\s*=\s*[\"']?([^\"'\s]+)", stream.read(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return found.group(1)
    return DKMS_KEY
