# SPDX-License-Identifier: Apache-2.0
"""Options of the driver's modules: written for modprobe, and read back from what was loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Optional

#: name of the one option that holds a list of further keys
DWORDS = "NVreg_RegistryDwords"
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
_WORD = re.compile(r"[A-Za-z0-9_.,:;=/+-]*")

#: (module, name, value) as modprobe gets it
Parameters = tuple[tuple[str, str, str], ...]


def wanted(options: Mapping[str, Mapping[str, Any]], registry: Mapping[str, Any]) -> Parameters:
    """Declared options by module, and keys of the registry, in one order.

    Raises:
        ValueError: one of them cannot be written.
    """
    found = [
        (module.replace("-", "_"), name, _value(value))
        for module in sorted(options)
        for name, value in sorted(options[module].items())
    ]
    if registry:
        found.append(("nvidia", DWORDS, ";".join("%s=%s" % (k, _value(v)) for k, v in sorted(registry.items()))))
    for module, name, value in found:
        if module not in MODULES:
            raise ValueError("%s is no module of the driver: %s" % (module, ", ".join(MODULES)))
        if not re.fullmatch(r"\w+", name) or not _WORD.fullmatch(value):
            raise ValueError("%s of %s cannot be %r" % (name, module, value))
    return tuple(sorted(found))


def line(module: str, name: str, value: str) -> str:
    """For a file of modprobe.d."""
    return 'options %s %s="%s"' % (module, name, value) if ";" in value else "options %s %s=%s" % (module, name, value)


def look(host: Any) -> dict[str, str]:
    """What the loaded modules have, as ``module.name``: NVIDIA shows its own in /proc, without their ``NVreg_``."""
    found = {}
    for row in host.read("/proc/driver/nvidia/params").splitlines():
        name, separator, value = row.partition(":")
        if separator:
            found["nvidia.NVreg_" + name.strip()] = value.strip().strip('"')
    for module in MODULES:
        place = host.at("/sys/module/%s/parameters" % module)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
            found.setdefault(
                "%s.%s" % (module, name), host.read("/sys/module/%s/parameters/%s" % (module, name)).strip()
            )
    return found


def difference(want: Parameters, found: Mapping[str, str]) -> list[tuple[str, str, Optional[str]]]:
    """(module.name, wanted, what is loaded or None when the driver has no such parameter) of each that differs."""
    return [
        (module + "." + name, value, found.get(module + "." + name))
        for module, name, value in want
        if not _same(name, value, found.get(module + "." + name))
    ]


def _same(name: str, value: str, loaded: Optional[str]) -> bool:
    if loaded is None:
        return False
    if name == DWORDS:
        return _dwords(value) == _dwords(loaded)
    return bool(_plain(value) == _plain(loaded))


def _dwords(text: str) -> dict[str, Any]:
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {name.strip(): _plain(value) for name, _, value in pairs}


def _plain(text: str) -> Any:
    bare = text.strip().strip('"')
    if bare in ("Y", "y", "N", "n"):
        return int(bare in "Yy")
    try:
        return int(bare, 0)
    except ValueError:
        return bare


def _value(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).strip()
