# SPDX-License-Identifier: Apache-2.0
"""One pass over a text: which expressions of the rules are found in which lines, and where a new start begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rackwell.diagnose import facts, reading, starts, unknown
from rackwell.diagnose.hits import Hit, Store
from rackwell.diagnose.patterns import Filter
from rackwell.diagnose.prefix import split
from rackwell.diagnose.reading import Block, Origin, Reading, Source
from rackwell.diagnose.rules import Rule

_GROUP = 16
_CACHED = 20_000
_SHOWN = 2000
_LITERALLESS = 20_000
"""Lines in which expressions without any literal are looked for."""


class Matcher:
    """The expressions of rules, ready for texts."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = list(rules)
        mine = {leaf.pattern for rule in self.rules for leaf in (*rule.tree.leaves, *rule.tree.none)}
        self.patterns = sorted(mine)
        self.lasting = {leaf.pattern for rule in self.rules if rule.stays for leaf in rule.tree.leaves}
        everything = [*self.patterns, *facts.PATTERNS, *starts.PATTERNS, unknown.PATTERN]
        self._all = Filter(everything)
        self.everything = everything
        self._cache: dict[str, list[int]] = {}
        # those without a literal are possible in any text, also in this one
        self.bare = set(self._all.possible(b"\x01"))

    def possible(self, text: bytes) -> bool:
        """Whether something with a literal may be found in `text`."""
        found = self._all.possible(text)
        return bool(found) and (not self.bare or any(index not in self.bare for index in found))

    def found(self, message: str) -> list[int]:
        """What is found in a message."""
        known = self._cache.get(message)
        if known is None:
            known = self._all.found(message.encode("utf-8", "replace"))
            if len(message) < 1000:
                if len(self._cache) > _CACHED:
                    self._cache.clear()
                self._cache[message] = known
        return known


@dataclasses.dataclass
class Earlier:
    """The lines of one earlier start."""

    first: int
    last: int
    store: Store
    source: str


class Scan:
    """The state of one pass."""

    def __init__(self, matcher: Matcher) -> None:
        self.store = Store()
        self.lasting = Store()
        self.facts = facts.Reader()
        self.telling = unknown.Telling()
        self.earlier: list[Earlier] = []
        self.starts_seen = 0
        self.reading = Reading()
        self.notes: list[str] = []
        self.last: list[Hit] = []
        self._matcher = matcher
        self._offset = 0
        self._source = ""
        self._starts = starts.Starts()
        self._first_fact = len(matcher.patterns)
        self._first_start = self._first_fact + len(facts.PATTERNS)
        self._telling = len(matcher.everything) - 1

    def read(self, source: Source, name: str = "") -> None:
        """One text; several are taken as of one machine."""
        before = self.store
        self.store = Store()
        self.reading, self._source, self._starts = Reading(), name, starts.Starts()
        for block in reading.blocks(source, self.reading):
            self._block(block)
        self._offset += self.reading.lines + 1000
        before.take(self.store)
        self.store = before
        prefix = f"{name}: " if name else ""
        told = list(self.reading.notes)
        if self.reading.cut:
            told.append(
                f"{self.reading.cut} lines are longer than {reading.LONGEST >> 10} KiB (the first is line "
                f"{self.reading.first_cut}); what is beyond was not looked at"
            )
        self.notes += [prefix + note for note in told]

    def _block(self, block: Block) -> None:
        if block.origins is not None:
            numbers = block.numbers or []
            for raw, origin, number in zip(block.data.split(b"\n"), block.origins, numbers, strict=True):
                self._new(self._starts.origin(origin, number), number)
                self._line(raw, number, origin)
            return
        early = self._matcher.bare and block.number <= _LITERALLESS
        if not early and not self._matcher.possible(block.data):
            self._remember(block)
            return
        lines = block.data.split(b"\n")
        for start in range(0, len(lines), _GROUP):
            group = lines[start : start + _GROUP]
            if early or self._matcher.possible(b"\n".join(group)):
                for index, raw in enumerate(group):
                    if raw:
                        self._line(raw, block.number + start + index, None)
        self._remember(block)

    def _remember(self, block: Block) -> None:
        """The last lines, for texts in which nothing at all is found."""
        tail = [line for line in block.data[-4000:].split(b"\n") if line.strip()][-3:]
        count = block.data.count(b"\n")
        self.last = [
            self._hit(split(raw.decode("utf-8", "replace")).message, raw, block.number + count, "") for raw in tail
        ]

    def _line(self, raw: bytes, number: int, origin: Origin | None) -> None:
        if len(raw) > reading.LONGEST:
            self.reading.cut += 1
            self.reading.first_cut = self.reading.first_cut or number
            raw = raw[: reading.LONGEST]
        text = raw.decode("utf-8", "replace")
        for part in text.split("\x0b") if "\x0b" in text else (text,):
            self._part(part, number, origin)

    def _part(self, text: str, number: int, origin: Origin | None) -> None:
        line = split(text)
        found = self._matcher.found(line.message)
        if not found:
            return
        name = origin.name if origin is not None else line.name
        everything, first_fact, first_start = self._matcher.everything, self._first_fact, self._first_start
        for index in found:
            if first_start <= index < self._telling:
                self._new(self._starts.line(everything[index], line.message, line.rank, number), number)
        hit = Hit(number + self._offset, number, text[:_SHOWN], line.message, line.rank, self._source)
        kernel = name == "kernel" or _of_kernel(line.message)
        for index in found:
            if index < first_fact:
                pattern = everything[index]
                self.store.add(pattern, hit)
                if kernel and pattern in self._matcher.lasting:
                    self.lasting.add(pattern, hit)
            elif index < first_start:
                self.facts.read(everything[index], line.message)
            elif index == self._telling:
                self.telling.add(hit)

    def _hit(self, message: str, raw: bytes, number: int, rank: str) -> Hit:
        return Hit(number + self._offset, number, raw.decode("utf-8", "replace")[:_SHOWN], message, rank, self._source)

    def _new(self, kind: str, number: int) -> None:
        """A new start, or boot, begins with line `number`."""
        if not kind:
            return
        self.starts_seen += 1
        first = self.earlier[-1].last + 1 if self.earlier and self.earlier[-1].source == self._source else 1
        self.earlier.append(Earlier(first, number - 1, self.store, self._source))
        del self.earlier[:-3]
        self.store, self.telling = Store(), unknown.Telling()
        if kind == "boot":
            self.lasting = Store()


def _of_kernel(message: str) -> bool:
    return message.startswith(("NVRM:", "AMD-Vi:", "DMAR:", "pcieport ", "nvidia ", "nvidia-modeset:", "nvidia:"))


def chosen(hits: Iterator[Hit], most: int) -> list[Hit]:
    """The first of `hits`, each line once."""
    seen: dict[int, Hit] = {}
    for hit in hits:
        seen.setdefault(hit.number, hit)
        if len(seen) >= most:
            break
    return sorted(seen.values(), key=lambda hit: hit.number)
