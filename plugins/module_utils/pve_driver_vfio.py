# SPDX-License-Identifier: Apache-2.0
"""What an earlier passthrough of the GPUs into virtual machines left: it keeps NVIDIA's driver away from them."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_driver_conf

NVIDIA = "10de"
CMDLINE = "/proc/cmdline"
#: what the next boot's command line is made of
BOOT_FILES = ("/etc/kernel/cmdline", "/etc/default/grub", "/etc/default/grub.d/*.cfg")
MODULE_FILES = ("/etc/modules", "/etc/modules-load.d/*.conf", "/etc/initramfs-tools/modules")
MARK = "# rackwell: "
_OWN = r"nvidia(?:[_-](?:uvm|modeset))?"
_KEPT_AWAY = re.compile(
    r"(?:blacklist %s|install %s /(?:usr/)?bin/(?:true|false)|softdep %s pre:.*\bvfio[_-]pci)(?![\w-])"
    % (_OWN, _OWN, _OWN)
)
_ALIAS = re.compile(r"alias pci:v000010DE.* vfio[_-]pci$", re.IGNORECASE)
_IDS = re.compile(r"\bids=(\S+)")
_TOKEN = re.compile(r"\b(vfio[_-]pci\.ids)=([0-9A-Fa-f:,*]+)|\b(modprobe\.blacklist|module_blacklist)=([\w,-]+)")
_OWN_NAME = re.compile(_OWN + "$")


@dataclasses.dataclass(frozen=True)
class Leftover:
    """What keeps the driver away. ``first`` and ``last``: lines of a file, 0 for what is seen of the kernel.
    ``instead``: what the line becomes, empty for nothing. ``now``: it acts already."""

    path: str
    first: int
    last: int
    text: str
    instead: str = ""
    now: bool = False

    @property
    def told(self) -> str:
        """Place and text."""
        return "%s:%d: %s" % (self.path, self.first, self.text) if self.first else "%s: %s" % (self.path, self.text)


def look(host: Any) -> tuple[Leftover, ...]:
    """Everything that is left, in files and now."""
    found = []
    for line in pve_driver_conf.read(host):
        instead = _without(line.text)
        if instead != line.text:
            found.append(Leftover(line.path, line.first, line.last, line.text, instead))
    for path in _files(host, BOOT_FILES):
        for number, text in enumerate(host.read(path).splitlines(), 1):
            instead = _without_tokens(text)
            if instead != text and not text.lstrip().startswith("#"):
                found.append(Leftover(path, number, number, text.strip(), instead))
    running = host.read(CMDLINE).strip()
    if _without_tokens(running) != running:
        tokens = [
            match.group(0) for match in _TOKEN.finditer(running) if _without_tokens(match.group(0)) != match.group(0)
        ]
        found.append(Leftover(CMDLINE, 0, 0, " ".join(tokens), now=True))
    found += [
        Leftover("/sys/bus/pci/devices/" + bus_id, 0, 0, "vfio-pci holds this GPU", now=True) for bus_id in held(host)
    ]
    # the module alone takes nothing: others may need it for their virtual machines
    loads = [
        Leftover(path, line.first, line.last, line.text, _without(line.text, module_file=True))
        for path in _files(host, MODULE_FILES)
        for line in pve_driver_conf.statements(host.read(path), path)
        if re.match(r"vfio[_-]pci\b", line.text)
    ]
    found += [one for one in loads if found or NVIDIA + ":" in one.text.lower()]
    return tuple(found)


def held(host: Any) -> list[str]:
    """Bus ids of NVIDIA's GPUs that vfio-pci has."""
    found = []
    for place in sorted(glob.glob(host.at("/sys/bus/pci/devices") + "/*")):
        if not _read(place + "/vendor").startswith("0x" + NVIDIA) or not _read(place + "/class").startswith("0x03"):
            continue
        link = place + "/driver"
        if os.path.islink(link) and os.path.basename(os.readlink(link)) == "vfio-pci":
            found.append(os.path.basename(place))
    return found


def machines(host: Any) -> list[str]:
    """Virtual machines that name PCI devices, such as ``100 (hostpci0: 0000:11:00.0)``; they may be the GPUs' users."""
    found = []
    for path in sorted(glob.glob(host.at("/etc/pve/qemu-server") + "/*.conf")):
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line.strip() for line in stream if re.match(r"hostpci\d+:", line)]
        if lines:
            found.append("%s (%s)" % (os.path.basename(path)[: -len(".conf")], "; ".join(lines)))
    return found


def remove(host: Any, found: tuple[Leftover, ...]) -> list[str]:
    """Take the lines out: they stay as comments. Returns the files that were written."""
    written = []
    for path in dict.fromkeys(one.path for one in found if one.first):
        lines = host.read(path).splitlines()
        for one in found:
            if one.path == path:
                for number in range(one.first, one.last + 1):
                    old = lines[number - 1]
                    # in a shell file the line itself stays, without the token
                    lines[number - 1] = one.instead if path in _files(host, BOOT_FILES) else MARK + old
                if one.instead and path not in _files(host, BOOT_FILES):
                    lines[one.last - 1] += "\n" + one.instead
        place = host.at(path)
        with open(place + ".new", "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
        os.chmod(place + ".new", os.stat(place).st_mode & 0o7777)
        os.replace(place + ".new", place)
        written.append(path)
    return written


def _files(host: Any, patterns: tuple[str, ...]) -> list[str]:
    base = "" if host.root == "/" else host.root
    return [path[len(base.rstrip("/")) :] for pattern in patterns for path in sorted(glob.glob(host.at(pattern)))]


def _without(text: str, module_file: bool = False) -> str:
    """The statement without what takes the GPUs; empty when nothing of it is left."""
    if _KEPT_AWAY.match(text) or _ALIAS.match(text):
        return ""
    if not (module_file or re.match(r"options vfio[_-]pci\b", text)):
        return text
    ids = _IDS.search(text)
    if ids is None:
        return "" if module_file else text
    others = [one for one in ids.group(1).split(",") if not one.lower().startswith(NVIDIA)]
    if len(others) == len(ids.group(1).split(",")):
        return text
    if others:
        return text[: ids.start()] + "ids=" + ",".join(others) + text[ids.end() :]
    bare = " ".join((text[: ids.start()] + text[ids.end() :]).split())
    return "" if re.fullmatch(r"(options )?vfio[_-]pci", bare) else bare


def _without_tokens(text: str) -> str:
    """A command line without its tokens that take the GPUs."""

    def kept(match: re.Match[str]) -> str:
        if match.group(1):
            name, values = match.group(1), match.group(2).split(",")
            others = [one for one in values if not one.lower().startswith(NVIDIA)]
        else:
            name, values = match.group(3), match.group(4).split(",")
            others = [one for one in values if not _OWN_NAME.match(one)]
        if others == values:
            return match.group(0)
        return name + "=" + ",".join(others) if others else "\0"

    return re.sub(r" ?\0|\0 ?", "", _TOKEN.sub(kept, text))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip().lower()
    except OSError:
        return ""
