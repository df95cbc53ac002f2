# SPDX-License-Identifier: Apache-2.0
"""Values of a container's Proxmox VE configuration: read into parts, written back, compared by meaning."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

# the part of a property string that may stand without a name
DEFAULT_KEYS = {"dev": "path", "mp": "volume", "rootfs": "volume", "startup": "order"}
# what PVE assumes when a part is absent; absent and default are the same to a comparison
DEFAULTS = {
    "dev": {"mode": "0660", "uid": "0", "gid": "0", "deny-write": "0"},
    "mp": {"ro": "0", "backup": "0", "quota": "0", "shared": "0", "keepattrs": "0", "replicate": "1"},
    "net": {"type": "veth", "firewall": "0", "link_down": "0"},
    "features": {},
}
# parts that hold several values, in no order
_LISTS = ("mount", "mountoptions")
_TRUE = ("1", "on", "yes", "true")


def kind_of(key: str) -> str:
    """``dev3`` -> ``dev``; a key without a number stays as it is."""
    match = re.match(r"(dev|mp|net)\d+$", key)
    return match.group(1) if match else key


def index_of(key: str) -> int:
    """``dev3`` -> 3."""
    return int(re.sub(r"\D", "", key))


def parse_properties(kind: str, text: str) -> dict[str, str]:
    """A property string as its parts: ``/dev/nvidia0,mode=0666`` of ``dev`` -> ``{path: /dev/nvidia0, mode: 0666}``."""
    parts: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            parts[name.strip()] = value.strip()
        elif part.strip():
            parts[DEFAULT_KEYS.get(kind, "")] = part.strip()
    return parts


def print_properties(kind: str, parts: Mapping[str, str]) -> str:
    """The parts as PVE writes them: the unnamed one, ``name``, then by name."""
    default = DEFAULT_KEYS.get(kind)
    words = [parts[default]] if default and default in parts else []
    rest = sorted((name for name in parts if name != default), key=lambda name: (name != "name", name))
    words += [f"{name}={parts[name]}" for name in rest]
    return ",".join(words)


def size_gib(text: str) -> Optional[float]:
    """A size such as ``32G``, ``500M`` or ``2T`` in GiB; None when it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    if not match:
        return None
    return float(match.group(1)) * float(
        {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1, "T": 1024}[match.group(2)]
    )


def meaning(kind: str, parts: Mapping[str, str], ignore: Iterable[str] = ()) -> dict[str, str]:
    """The parts without those that say what is assumed anyway; flags as 0 and 1."""
    assumed = DEFAULTS.get(kind, {})
    found = {}
    for name, raw in parts.items():
        value = "1" if raw.lower() in _TRUE[1:] else "0" if raw.lower() in ("off", "no", "false") else raw
        if name in _LISTS:
            value = ";".join(sorted(filter(None, value.split(";"))))
        if name in ignore or assumed.get(name) == value or (kind == "features" and value == "0"):
            continue
        found[name] = value
    return found


@dataclasses.dataclass(frozen=True)
class Conf:
    """A container's configuration as PVE holds it.

    Attributes:
        current: what the running container has. pending: new values that wait for its next start.
        deleted: keys that the next start removes.
        raw: the ``lxc.*`` lines in their order; a start takes them, none is ever pending.
        digest: of the file, which a change names so that it is refused when somebody else was faster.
    """

    current: dict[str, str]
    pending: dict[str, str] = dataclasses.field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    raw: tuple[tuple[str, str], ...] = ()
    digest: str = ""

    @classmethod
    def from_api(cls, rows: Iterable[Mapping[str, Any]], config: Optional[Mapping[str, Any]] = None) -> Conf:
        """From the rows of ``/nodes/N/lxc/ID/pending``: ``{key, value, pending, delete}``.

        Args:
            config: what ``/nodes/N/lxc/ID/config`` shows, for the raw lines and the digest.
        """
        current, pending, deleted = {}, {}, set()
        for row in rows:
            key = str(row["key"])
            if key in ("digest", "lxc"):  # no options
                continue
            if row.get("value") is not None:
                current[key] = str(row["value"])
            if row.get("pending") is not None:
                pending[key] = str(row["pending"])
            if row.get("delete"):
                deleted.add(key)
        known = config or {}
        raw = tuple((str(line[0]), str(line[1])) for line in known.get("lxc") or [] if len(line) == 2)
        return cls(current, pending, frozenset(deleted), raw, str(known.get("digest") or ""))

    def effective(self) -> dict[str, str]:
        """What holds after the next start."""
        merged = {**self.current, **self.pending}
        return {key: value for key, value in merged.items() if key not in self.deleted}

    def waiting(self) -> list[str]:
        """Keys with a change that waits for the next start."""
        return sorted({*self.pending, *self.deleted})

    def tags(self) -> list[str]:
        """The tags; PVE separates them by ``;``, older ones by ``,`` or a space."""
        return [tag for tag in re.split(r"[;, ]+", self.effective().get("tags", "")) if tag]


@dataclasses.dataclass(frozen=True)
class Change:
    """One key that has to change.

    Attributes:
        before, after: its text in the file; None: absent.
        restart: a running container takes it at its next start only.
    """

    key: str
    before: Optional[str]
    after: Optional[str]
    restart: bool

    def inverse(self) -> Change:
        """The change that takes this one back."""
        return Change(self.key, self.after, self.before, self.restart)


def order(key: str) -> tuple[str, int]:
    """Sorts dev2 before dev10."""
    kind = kind_of(key)
    return kind, index_of(key) if kind != key else 0


def lines(values: Mapping[str, str]) -> str:
    """The configuration's text, a line a key."""
    return "".join(f"{key}: {values[key]}\n" for key in sorted(values, key=order))
