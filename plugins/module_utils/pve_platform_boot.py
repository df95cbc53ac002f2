# SPDX-License-Identifier: Apache-2.0
"""The kernel's command line: which file of which boot loader holds it, what the next boot gets, and how it is edited.

Proxmox VE boots by GRUB, or by systemd-boot (root on ZFS with UEFI); each reads a file of its own, and the other's is
there too on many hosts. Which one booted stands in the running kernel's own command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Optional

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_words as words
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import Host
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import problem

GRUB, SYSTEMD_BOOT = "grub", "systemd-boot"
GRUB_FILE, GRUB_PARTS, GRUB_CONFIG = "/etc/default/grub", "/etc/default/grub.d", "/boot/grub/grub.cfg"
CMDLINE_FILE, ESPS = "/etc/kernel/cmdline", "/etc/kernel/proxmox-boot-uuids"
#: seconds: it looks through all disks for other systems
APPLY_S = 600.0
_ASSIGNMENT = re.compile(
    r"^(?P<head>[ \t]*(?:export[ \t]+)?GRUB_CMDLINE_LINUX(?P<kind>_DEFAULT)?=)(?P<quote>[\"']?)(?P<value>.*?)(?P=quote)"
    r"(?P<rest>[ \t]*(?:#.*)?)$",
    re.MULTILINE,
)
# as grub-mkconfig does it: the file, then the parts, all of them shell
_EVALUATE = (
    '. "$1"; for part in "$2"/*.cfg; do [ ! -e "$part" ] || . "$part"; done; '
    'printf "\\n%s\\n" "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'
)
# what every command line has besides options: they differ between file and kernel by nature
_NO_OPTION = re.compile(r"(BOOT_IMAGE|initrd|root|rootflags|boot)=.*|ro|rw|single")


@dataclasses.dataclass(frozen=True)
class Boot:
    """How the host boots.

    Attributes:
        loader: :data:`GRUB`, :data:`SYSTEMD_BOOT`, or empty when that cannot be told. why: what tells it.
        running: words of the kernel that runs.
        files: the loader's files with their text, in the order in which they count.
        declared: words that they give to the next boot, once the loader is told of them; None when they cannot be read.
        generated: words of each entry of GRUB's own configuration; None where they lie on partitions that are not
            mounted.
        elsewhere: a file that this loader does not read, with those of its words that are nowhere else.
    """

    loader: str
    why: str
    running: tuple[str, ...]
    files: dict[str, str]
    declared: Optional[tuple[str, ...]] = None
    generated: Optional[tuple[tuple[str, ...], ...]] = None
    elsewhere: tuple[str, tuple[str, ...]] = ("", ())

    @property
    def apply(self) -> str:
        """The command that tells the loader."""
        return "proxmox-boot-tool refresh" if self.loader == SYSTEMD_BOOT else "update-grub"

    @property
    def stale(self) -> list[str]:
        """By what GRUB's configuration differs from its file: somebody edited it, and did not run update-grub."""
        if self.declared is None or not self.generated:
            return []
        every = [word for entry in self.generated for word in words.differences(options(self.declared), entry)]
        return list(dict.fromkeys(every))

    @property
    def pending(self) -> list[str]:
        """By what the files differ from the kernel that runs."""
        return [] if self.declared is None else words.differences(options(self.declared), options(self.running))


def options(every: Sequence[str]) -> tuple[str, ...]:
    """The words without those that say what is booted and from where."""
    return tuple(word for word in every if not _NO_OPTION.fullmatch(word))


def look(host: Host) -> Boot:
    """Read it all."""
    running = tuple(host.read("/proc/cmdline").split())
    loader, why = _loader(host, running)
    if loader == SYSTEMD_BOOT:
        text = host.read(CMDLINE_FILE)
        declared = tuple(text.split()) if text.strip() else None
        stray = [w for w in options(_evaluated(host, grub_files(host)) or ()) if w not in (*(declared or ()), "quiet")]
        return Boot(loader, why, running, {CMDLINE_FILE: text}, declared, None, (GRUB_FILE, tuple(stray)))
    if loader == GRUB:
        files = grub_files(host)
        declared = _evaluated(host, files)
        stray = [w for w in options(host.read(CMDLINE_FILE).split()) if w not in (*(declared or ()), "quiet")]
        entries = None if host.read(ESPS).strip() else _entries(host.read(GRUB_CONFIG))
        return Boot(loader, why, running, files, declared, entries, (CMDLINE_FILE, tuple(stray)))
    return Boot("", why, running, {})


def _loader(host: Host, running: Sequence[str]) -> tuple[str, str]:
    for word in running:
        if re.match(r"initrd=\\EFI\\proxmox\\", word, re.IGNORECASE):
            return SYSTEMD_BOOT, "the running kernel was started with " + word
        if word.startswith("BOOT_IMAGE="):
            return GRUB, "the running kernel was started with " + word
    there = [path for path in (GRUB_FILE, CMDLINE_FILE) if os.path.isfile(host.at(path))]
    if len(there) == 1:
        return (GRUB if there[0] == GRUB_FILE else SYSTEMD_BOOT), "there is %s only" % there[0]
    return "", "the running kernel's command line names no loader, and there %s" % (
        "are both %s and %s" % tuple(there) if there else "is neither %s nor %s" % (GRUB_FILE, CMDLINE_FILE)
    )


def grub_files(host: Host) -> dict[str, str]:
    """GRUB's file and its parts with their text, in their order; empty without the file."""
    if not os.path.isfile(host.at(GRUB_FILE)):
        return {}
    parts = sorted(glob.glob(host.at(GRUB_PARTS) + "/*.cfg"))
    names = [GRUB_FILE, *("%s/%s" % (GRUB_PARTS, os.path.basename(part)) for part in parts)]
    return {name: host.read(name) for name in names}


def _evaluated(host: Host, files: Mapping[str, str]) -> Optional[tuple[str, ...]]:
    """The words that GRUB's files come to, read as grub-mkconfig reads them; None when a shell cannot."""
    if not files:
        return None
    with tempfile.TemporaryDirectory(prefix="rackwell-") as place:
        os.mkdir(os.path.join(place, "parts"))
        for path, text in files.items():
            name = "file" if path == GRUB_FILE else os.path.join("parts", os.path.basename(path))
            with open(os.path.join(place, name), "w", encoding="utf-8") as stream:
                stream.write(text)
        done = host.run(["sh", "-c", _EVALUATE, "sh", place + "/file", place + "/parts"], 20.0)
    lines = done.stdout.rstrip("\n").splitlines()
    return tuple(lines[-1].split()) if done.returncode == 0 and lines else None


def _entries(text: str) -> Optional[tuple[tuple[str, ...], ...]]:
    """The options of each entry that boots a kernel of this system, without those for recovery."""
    found = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[0] in ("linux", "linuxefi") and "single" not in parts and "vmlinuz" in parts[1]:
            found.append(options(parts[2:]))
    return tuple(found) or None


def edited(boot: Boot, policy_words: Sequence[str]) -> dict[str, str]:
    """The files' text with exactly these of the IOMMU's words; files that stay as they are are left out.

    Raises:
        PveError: ``boot-options-unclear``, it cannot be seen what an edit would come to.
    """
    if boot.loader == SYSTEMD_BOOT:
        text = boot.files[CMDLINE_FILE]
        kept = [word for word in text.split() if not words.is_iommu(word)]
        new = " ".join([*kept, *policy_words]) + "\n"
        return {} if new.split() == text.split() else {CMDLINE_FILE: new}
    return _edited_grub(boot.files, policy_words)


def _edited_grub(files: Mapping[str, str], policy_words: Sequence[str]) -> dict[str, str]:
    last = ""
    for path, text in files.items():
        if any(found["kind"] for found in _ASSIGNMENT.finditer(text)):
            last = path
    new = {}
    for path, text in files.items():
        count = sum(1 for found in _ASSIGNMENT.finditer(text) if found["kind"])
        seen = 0

        def change(found: re.Match[str], path: str = path, count: int = count) -> str:
            nonlocal seen
            seen += bool(found["kind"])
            added = policy_words if path == last and found["kind"] and seen == count else ()
            old = found["value"].split()
            kept = [word for word in old if not words.is_iommu(word)]
            if [*kept, *added] == old:
                return found[0]
            return '%s"%s"%s' % (found["head"], " ".join([*kept, *added]), found["rest"])

        new[path] = _ASSIGNMENT.sub(change, text)
        if not last and path == GRUB_FILE:
            new[path] = new[path].rstrip("\n") + '\nGRUB_CMDLINE_LINUX_DEFAULT="%s"\n' % " ".join(policy_words)
    return {path: text for path, text in new.items() if text != files[path]}


def check_edit(host: Host, boot: Boot, changed: Mapping[str, str], policy_words: Sequence[str]) -> tuple[str, ...]:
    """The words of the next boot after the edit.

    Raises:
        PveError: ``boot-options-unclear``, they are not the wanted ones: a file does what cannot be edited here.
    """
    if boot.loader == SYSTEMD_BOOT:
        return tuple((changed.get(CMDLINE_FILE) or boot.files[CMDLINE_FILE]).split())
    found = _evaluated(host, {**boot.files, **changed})
    if found is None or sorted(words.of(found)) != sorted(policy_words):
        told = "nothing that a shell could read" if found is None else " ".join(words.of(found)) or "no IOMMU option"
        raise problem(
            "boot-options-unclear",
            "the kernel's options cannot be edited here",
            ", ".join(boot.files) or GRUB_FILE,
            "after the edit GRUB's files would come to %s, wanted is %s: something in them composes the options"
            % (told, " ".join(policy_words)),
            "set the IOMMU's options by hand to: %s; then %s" % (" ".join(policy_words), boot.apply),
        )
    return found


def write(host: Host, changed: Mapping[str, str]) -> None:
    """Put the new texts there, each at once; mode and owner stay."""
    for path, text in changed.items():
        place = host.at(path)
        before = os.stat(place)
        with open(place + ".rackwell", "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(place + ".rackwell", before.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(place + ".rackwell", before.st_uid, before.st_gid)
        os.replace(place + ".rackwell", place)


def tell_loader(host: Host, boot: Boot) -> None:
    """Have the loader read its file.

    Raises:
        PveError: ``boot-loader-failed``, its tool did not end well: the next boot has the options of before.
    """
    commands = [[boot.apply]] if boot.loader == GRUB else [boot.apply.split()]
    if boot.loader == GRUB and host.read(ESPS).strip():
        commands.append(["proxmox-boot-tool", "refresh"])
    for command in commands:
        done = host.run(command, APPLY_S)
        if done.returncode:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            why = "it ended with %d: %s" % (done.returncode, " ".join(lines[-3:]) or "it said nothing")
            raise problem(
                "boot-loader-failed",
                "`%s` failed" % " ".join(command),
                command[0],
                why,
                "mend what it says, then run again: the files hold the new options, the next boot has those of before",
            )
