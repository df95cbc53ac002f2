# SPDX-License-Identifier: Apache-2.0
"""modprobe's configuration of a host, as far as it is about who gets the GPUs and with which options."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

#: as modprobe reads them: of two files of one name the first directory's counts
DIRECTORIES = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/lib/modprobe.d")
_ABOUT = re.compile(r"nvidia|nouveau|nova_core|nova-core|vfio|v000010de", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Line:
    """One statement. ``first`` and ``last``: the lines of the file that it takes."""

    path: str
    first: int
    last: int
    text: str

    @property
    def told(self) -> str:
        """Place and text."""
        return "%s:%d: %s" % (self.path, self.first, self.text)


def statements(text: str, path: str = "") -> list[Line]:
    """Statements without comments; what ends with a backslash goes on in the next line."""
    found, words, first = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        if line.rstrip().endswith("\\") and not line.lstrip().startswith("#"):
            words += line.rstrip()[:-1] + " "
            continue
        whole = " ".join((words + line).split())
        if whole and not whole.startswith("#"):
            found.append(Line(path, first, number, whole))
        words, first = "", 0
    return found


def about_gpus(text: str) -> frozenset[str]:
    """The statements about GPU drivers and vfio, for a comparison of two places."""
    return frozenset(line.text for line in statements(text) if _ABOUT.search(line.text))


def read(host: Any) -> list[Line]:
    """All statements of the host's files that modprobe reads."""
    found, seen = [], set()
    for directory in DIRECTORIES:
        place = host.at(directory)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
            if name.endswith(".conf") and name not in seen:
                seen.add(name)
                path = os.path.join(directory, name)
                found += statements(host.read(path), path)
    return found


def gpu_lines(host: Any) -> frozenset[str]:
    """The statements about GPU drivers that an initramfs made now would hold."""
    return frozenset(
        line.text
        for line in read(host)
        # mkinitramfs takes these two directories
        if line.path.startswith(("/etc/", "/lib/")) and _ABOUT.search(line.text)
    )
