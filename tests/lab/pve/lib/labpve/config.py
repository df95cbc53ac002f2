# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). ``/etc/pve/lxc/<vmid>.conf``: read, and rewritten the way PVE does.

Keys are sorted, raw ``lxc.*`` lines come after them in their order, every ``#`` line becomes the description at the
top, and ``[pve:pending]`` and snapshot sections follow the main part.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

PENDING = "pve:pending"
# all but printable ASCII, ':' and '%', as PVE's encode_text
_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in ":%")


def encode_text(text: str) -> str:
    """Description text as it stands on one line."""
    return urllib.parse.quote(text, safe=_SAFE)


def decode_text(text: str) -> str:
    """The inverse of :func:`encode_text`."""
    return urllib.parse.unquote(text)


@dataclasses.dataclass
class Section:
    """One part of the file: ordinary keys, and raw ``lxc.*`` pairs in their order."""

    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    lxc: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    description: list[str] = dataclasses.field(default_factory=list)

    def all_keys(self) -> dict[str, str]:
        """The keys with the description among them."""
        text = {"description": "\n".join(self.description)} if self.description else {}
        return {**self.keys, **text}

    def write(self) -> str:
        """The text of this section, without its header."""
        lines = ["#" + encode_text(line) for line in self.description]
        lines += [f"{key}: {self.keys[key]}" for key in sorted(self.keys)]
        lines += [f"{key}: {value}" for key, value in self.lxc]
        return "".join(line + "\n" for line in lines)


@dataclasses.dataclass
class Config:
    """A container's whole file."""

    main: Section = dataclasses.field(default_factory=Section)
    pending: dict[str, str] = dataclasses.field(default_factory=dict)
    deleted: list[str] = dataclasses.field(default_factory=list)
    snapshots: dict[str, Section] = dataclasses.field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """The keys of the main part; change them here."""
        return self.main.keys

    def set_description(self, text: str) -> None:
        """Replace the description."""
        self.main.description = text.split("\n") if text else []

    def effective(self) -> dict[str, str]:
        """What holds after the next start: the main part with the pending changes in it."""
        merged = {**self.main.all_keys(), **self.pending}
        return {key: value for key, value in merged.items() if key not in self.deleted}

    def apply_pending(self) -> None:
        """What a start of the container does first."""
        for key in self.deleted:
            self.keys.pop(key, None)
        self.keys.update(self.pending)
        self.pending, self.deleted = {}, []

    def write(self) -> str:
        """The file."""
        text = self.main.write()
        if self.pending or self.deleted:
            keys = dict(self.pending)
            if self.deleted:
                keys["delete"] = ",".join(sorted(self.deleted))
            text += f"\n[{PENDING}]\n" + Section(keys=keys).write()
        for name, section in self.snapshots.items():
            text += f"\n[{name}]\n" + section.write()
        return text


def parse(text: str) -> Config:
    """Read a file, whoever wrote it: ``lxc.*`` may use ``=``, comments may stand anywhere.

    A line that is none of these, one with a space before it too, is left out, and gone with the next change.
    """
    sections: dict[str, Section] = {"": Section()}
    current = sections[""]
    for raw in text.split("\n"):
        line = raw.rstrip()
        header = re.fullmatch(r"\[(pve:pending|special:[a-z-]+|[A-Za-z][\w-]+)\]", line)
        if not line:
            continue
        if header:
            current = sections.setdefault(header[1], Section())
        elif line.startswith("#"):
            current.description.append(decode_text(line[1:]))
        elif lxc := re.fullmatch(r"(lxc\.[A-Za-z0-9_\-.]+)\s*[:=]\s*(.*)", line):
            if lxc[1] not in ("lxc.rootfs.path", "lxc.rootfs.options"):
                current.lxc.append((lxc[1].replace("lxc.limit.", "lxc.prlimit."), lxc[2]))
        elif key := re.fullmatch(r"([a-z][a-z_]*\d*):\s*(.+)", line):
            current.keys[key[1]] = key[2]
    main = sections.pop("")
    waiting = sections.pop(PENDING, Section()).keys
    gone = waiting.pop("delete", "")
    # PVE marks a forced deletion by '!'
    return Config(main, waiting, [key.lstrip("!") for key in gone.split(",") if key], sections)
