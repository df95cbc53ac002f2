# SPDX-License-Identifier: Apache-2.0
"""The file of a container, line by line: what stands where, what Proxmox VE does not read, and an edit of raw lines.

Values are asked of Proxmox VE itself; the file is read for its line numbers, for what a hand has left in it, and
because raw ``lxc.*`` lines can be changed nowhere else. An edit touches these lines of the main part and nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import Kept, Line, text_of

PENDING = "pve:pending"
_HEADER = re.compile(r"\[((?:pve|special):[a-z][a-z0-9_-]*|[a-z][a-z0-9_-]+)\]\s*", re.IGNORECASE)
_LXC = re.compile(r"(lxc\.[A-Za-z0-9_.-]+?)(:|\s*=)\s*(.*?)\s*")
_KEY = re.compile(r"([a-z][a-z_]*\d*):\s*(.+?)\s*")
_MARKER = re.compile(r"#\s*(BEGIN|END) ANSIBLE MANAGED BLOCK")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line. ``kind``: key, lxc, comment, blank, header or unknown (Proxmox VE leaves it out); section "": main."""

    number: int
    section: str
    kind: str
    key: str
    value: str
    text: str


@dataclasses.dataclass(frozen=True)
class Oddity:
    """Something that a hand left in the file. ``severity``: warning or note."""

    code: str
    severity: str
    entry: Entry
    what: str
    fix: str


class ConfFile:
    """The text of ``/etc/pve/lxc/<vmid>.conf``, whoever wrote it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.entries: list[Entry] = []
        section = ""
        # Proxmox VE ends lines at \n only
        for number, raw in enumerate(text.split("\n"), 1):
            entry = _entry(number, section, raw)
            section = entry.section
            self.entries.append(entry)
        if self.entries and not self.entries[-1].text:
            self.entries.pop()

    @property
    def digest(self) -> str:
        """What Proxmox VE calls the digest of the file."""
        return hashlib.sha1(self.text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()

    def of(self, section: str, *kinds: str) -> list[Entry]:
        """The lines of a section."""
        return [entry for entry in self.entries if entry.section == section and entry.kind in kinds]

    def raw(self) -> list[Line]:
        """The raw lines of the main part."""
        return [(entry.key, entry.value) for entry in self.of("", "lxc")]

    def values(self, section: str = "") -> dict[str, str]:
        """The options of a section; of several lines the last one holds."""
        return {entry.key: entry.value for entry in self.of(section, "key")}

    def sections(self) -> list[str]:
        """The names of the sections after the main part, in their order."""
        return list(dict.fromkeys(entry.section for entry in self.entries if entry.section))

    def find(self, key: str, value: Optional[str] = None, section: str = "") -> Optional[Entry]:
        """The line that holds for a key; with `value` the one that says that."""
        found = [entry for entry in self.of(section, "key", "lxc") if entry.key == key]
        exact = [entry for entry in found if value is None or entry.value == value]
        return (exact or found or [None])[-1]  # type: ignore[list-item]

    def elsewhere(self, line: Line) -> Optional[Entry]:
        """A raw line that stands in another section, where it says nothing."""
        for entry in self.entries:
            if entry.section and entry.kind == "lxc" and (entry.key, entry.value.split()) == (line[0], line[1].split()):
                return entry
        return None

    def with_raw(self, after: Sequence[Kept]) -> str:
        """The file with these raw lines in its main part; every other line stays as it is, byte by byte."""
        kept = {entry.at: entry.line for entry in after if entry.at is not None}
        ending = "\r\n" if self.text.partition("\n")[0].endswith("\r") else "\n"
        numbers = {entry.number: at for at, entry in enumerate(self.of("", "lxc"))}
        body: list[str] = []
        rest: list[str] = []
        last = 0  # lines of the main part, without the blank ones before the first section
        for entry in self.entries:
            if entry.section:
                rest.append(entry.text)
                continue
            at = numbers.get(entry.number)
            if at is not None:
                if at not in kept:
                    continue
                same = kept[at] == (entry.key, entry.value)
                body.append(entry.text if same else text_of(kept[at]) + ending[:-1])
            else:
                body.append(entry.text)
            if entry.kind != "blank":
                last = len(body)
        new = [text_of(entry.line) + ending[:-1] for entry in after if entry.at is None]
        lines = [*body[:last], *new, *body[last:], *rest]
        return "".join(line + "\n" for line in lines)

    def oddities(self) -> list[Oddity]:
        """What a hand left: lines without effect, lines in the wrong place, lines given twice."""
        found = [*self._unread(), *self._twice(), *self._misplaced(), *self._comments(), *self._old_style()]
        return sorted(found, key=lambda odd: odd.entry.number)

    def _unread(self) -> Iterable[Oddity]:
        for entry in self.entries:
            if entry.kind == "unknown":
                yield Oddity(
                    "conf-unread-line",
                    "warning",
                    entry,
                    "Proxmox VE cannot read this line: it has no effect, and the next change of the container drops it",
                    "remove it, or write it as 'key: value' at the beginning of the line, before the first [section]",
                )

    def _twice(self) -> Iterable[Oddity]:
        last = {entry.key: entry for entry in self.of("", "key")}
        for entry in self.of("", "key"):
            holds = last[entry.key]
            if holds is not entry:
                yield Oddity(
                    "conf-duplicate-key",
                    "warning",
                    entry,
                    f"'{entry.key}' is given again in line {holds.number}, which is the one that holds",
                    "remove this line",
                )

    def _misplaced(self) -> Iterable[Oddity]:
        """Proxmox VE writes a section sorted and in one piece: what stands otherwise was put there by a hand."""
        for section in self.sections():
            where = "the pending changes" if section.lower() == PENDING else f"the snapshot [{section}]"
            entries = self.of(section, "key", "lxc", "comment", "blank")
            broken = gap = False
            key = ""
            for entry in entries:
                if entry.kind in ("blank", "comment"):
                    gap = gap or (entry.kind == "blank" and bool(key))
                    continue
                lxc_pending = entry.kind == "lxc" and section.lower() == PENDING
                by_hand = entry.kind == "lxc" and re.match(r"lxc\.[\w.-]+\s*=", entry.text)
                sorts = entry.key if entry.kind == "key" else "~"  # raw lines come last
                twice = entry.kind == "key" and sorts == key
                if gap or sorts < key or twice or lxc_pending or by_hand:
                    broken = True
                key = max(key, sorts)
                if broken:
                    yield Oddity(
                        "conf-misplaced-line",
                        "warning",
                        entry,
                        f"it stands in {where}, where a line added at the end of the file falls: "
                        "the container does not have it",
                        "move it before the first line that begins with '[' (pct set does it right), or remove it",
                    )

    def _comments(self) -> Iterable[Oddity]:
        for entry in self.of("", "comment"):
            if _MARKER.match(entry.text):
                yield Oddity(
                    "conf-marker-line",
                    "warning",
                    entry,
                    "a marker of blockinfile: Proxmox VE takes it for the description and moves it to the top, and "
                    "the next run of that playbook adds its block again",
                    "remove the marker, and change single lines, or use pct set, instead of blockinfile",
                )
        seen = False
        for entry in self.of("", "comment", "key", "lxc"):
            if entry.kind != "comment":
                seen = True
            elif seen and not _MARKER.match(entry.text):
                yield Oddity(
                    "conf-comment-line",
                    "note",
                    entry,
                    "Proxmox VE takes every comment for the description, and moves it to the top with its next change",
                    "nothing need be done",
                )

    def _old_style(self) -> Iterable[Oddity]:
        for entry in self.of("", "lxc"):
            if entry.key == "lxc.mount.entry" and entry.value.startswith("/dev/nvidia"):
                yield Oddity(
                    "conf-raw-device",
                    "warning",
                    entry,
                    "a GPU's device node is passed by a raw line: with 'optional' a node that is missing is left out "
                    "in silence, and its owner and mode in the container are the host's",
                    "declare it (pve_container_gpus, pve_container_devices), and remove this line and the "
                    "lxc.cgroup2.devices.allow lines that go with it",
                )
            elif entry.key.startswith("lxc.cgroup."):
                yield Oddity(
                    "conf-deprecated-line",
                    "warning",
                    entry,
                    "a line for cgroup v1, which Proxmox VE will refuse one day",
                    f"write lxc.cgroup2.{entry.key[len('lxc.cgroup.') :]}",
                )


def _entry(number: int, section: str, raw: str) -> Entry:
    if not raw.strip():
        return Entry(number, section, "blank", "", "", raw)
    header = _HEADER.fullmatch(raw)
    if header:
        return Entry(number, header.group(1), "header", header.group(1), "", raw)
    if raw.startswith("#"):
        return Entry(number, section, "comment", "", urllib.parse.unquote(raw[1:].rstrip("\r")), raw)
    lxc = _LXC.fullmatch(raw)
    if lxc:
        return Entry(number, section, "lxc", lxc.group(1), lxc.group(3), raw)
    key = _KEY.fullmatch(raw)
    if key:
        return Entry(number, section, "key", key.group(1), key.group(2), raw)
    return Entry(number, section, "unknown", "", "", raw)
