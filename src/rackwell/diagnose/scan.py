# SPDX-License-Identifier: Apache-2.0
"""One pass over a text: which expressions are found in which lines, and where a new start begins.

What makes a large text fast: a block, then each few lines of it, are first asked whether the literals of any expression
stand in them. An expression that was found often enough is not asked for any more, except around what is new; and
lines that give nothing but the same expressions again are only counted.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable

from rackwell.diagnose import facts, reading, starts, unknown
from rackwell.diagnose.blocks import LONGEST, Block, Origin, Reading
from rackwell.diagnose.hits import Hit, Store
from rackwell.diagnose.matcher import ENOUGH, Kind, Matcher
from rackwell.diagnose.patterns import Filter
from rackwell.diagnose.prefix import split
from rackwell.diagnose.reading import Source
from rackwell.diagnose.safe import shown

_GROUP = 16
_SHOWN = 2000
_BARE_LINES = 5000
"""Lines in which expressions without any literal are looked for everywhere."""
_AROUND = 400
"""Lines around something new in which everything is looked for, at most."""
_TIRED = 1000
"""Lines in which something was found, before it is asked again which expressions tell nothing new any more."""
_OURS = re.compile(
    r"(?:held by the boot gate|gate held): [a-z0-9-]+"
    r"|^ {2}(?:fix|do|not|known|follows|collect|check|what|earlier) {3,}\S"
)
_VAIN = 40
"""Blocks in which an expression was found, and in no message of them."""


@dataclasses.dataclass
class Earlier:
    """The lines of one earlier start."""

    first: int
    last: int
    store: Store
    source: str


@dataclasses.dataclass(slots=True)
class _Again:
    """Lines in which the same counted expressions were found once more."""

    indexes: list[int]
    count: int = 0
    last: collections.deque[tuple[int, bytes]] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=50))


class Scan:
    """The state of one pass; `read` may be called for several texts of one machine."""

    def __init__(self, matcher: Matcher) -> None:
        self.store = Store()
        self.lasting = Store()
        self.facts = facts.Reader()
        self.telling = unknown.Telling()
        self.earlier: list[Earlier] = []
        self.notes: list[str] = []
        self.last: list[Hit] = []
        self.lines = 0
        self._matcher = matcher
        self._offset = 0
        self._begin("")

    def _begin(self, name: str) -> None:
        self.reading, self._source, self._starts = Reading(), name, starts.Starts()
        self._before: tuple[list[bytes], int, set[int]] = ([], 1, set())
        self._pending: tuple[list[bytes], int, set[int], int] = ([], 1, set(), 0)
        self._prefixes: set[bytes] = set()
        self._kernel = Store()
        self._fresh()

    def _fresh(self) -> None:
        """At a new start everything is new."""
        self._counts: list[int] = [0] * len(self._matcher.everything)
        self._full: set[int] = set()
        self._seen_lines, self._tired = 0, _TIRED
        self._again: dict[tuple[int, ...], _Again] = {}
        self._counting: tuple[list[int], Filter] | None = None
        self._asked: set[int] = set()
        self._in_vain: dict[int, int] = {}
        self._known: frozenset[int] = frozenset()

    def read(self, source: Source, name: str = "", *, earlier: bool = False) -> None:
        """One text; one of an earlier start tells of that only."""
        name = shown(name, 80)
        before, self.store = self.store, Store()
        self._begin(name)
        for block in reading.blocks(source, self.reading):
            self._block(block)
        self._count()
        self._settle()
        if earlier:
            self._start_anew("start", self.reading.lines + 1)
        before.take(self.store)
        self.store = before
        self._offset += self.reading.lines + 10_000
        self.lines += self.reading.lines
        told = list(self.reading.notes)
        if self.reading.cut:
            many = "a line is" if self.reading.cut == 1 else f"{self.reading.cut} lines are"
            told.append(
                f"{many} longer than {LONGEST >> 10} KiB (line {self.reading.first_cut}"
                f"{' is the first' if self.reading.cut > 1 else ''}); what is beyond was not looked at"
            )
        self.notes += [f"{name}: {note}" if name else note for note in told]

    def _block(self, block: Block) -> None:
        lines = block.data.split(b"\n")
        if block.origins is not None:
            for raw, origin, number in zip(lines, block.origins, block.numbers or (), strict=True):
                self._start_anew(self._starts.origin(origin, number), number)
                self._line(raw, number, origin)
            return
        groups = range(0, len(lines), _GROUP)
        tested = lines
        if block.number <= _BARE_LINES:
            wanted = set(groups)
        else:
            data = self._stripped(block.data)
            tested = lines if data is block.data else data.split(b"\n")
            wanted = self._interesting(tested) if self._matcher.anything(data, self._known) else set()
        self._neighbours(wanted)
        self._count()
        self._pending = (tested, block.number, wanted, 0)
        before = {index: self._counts[index] for index in self._asked}
        for start in sorted(wanted):
            self._group(lines, start, block.number)
        self._vain(before)
        self._before = (lines, block.number, wanted)
        self._remember(lines, block.number)

    def _stripped(self, data: bytes) -> bytes:
        """Without the names of programs that stand before messages, which expressions must not find."""
        for prefix in self._prefixes:
            data = data.replace(prefix, b" ")
        return data

    def _interesting(self, lines: list[bytes]) -> set[int]:
        """The groups, by their first line's index, in which something new may be, and those around."""
        new, around = self._matcher.new, self._matcher.around
        self._asked.clear()
        groups = range(0, len(lines), _GROUP)
        wanted = set()
        for start in groups:
            found = new(b"\n".join(lines[start : start + _GROUP]), self._known)
            if found:
                wanted.add(start)
                self._asked.update(found)
                wide = max(around[index] for index in found) if self._known else 0
                if wide:
                    span = min(wide, _AROUND) // _GROUP + 1
                    at = start // _GROUP
                    wanted.update(g * _GROUP for g in range(at - span, min(at + span + 1, len(groups))))
        return wanted

    def _count(self, until: int | None = None) -> None:
        """Count known expressions in the lines that were passed over, before line `until` only when given."""
        lines, first, wanted, done = self._pending
        end = len(lines) if until is None else min(len(lines), until - first)
        self._pending = (lines, first, wanted, max(done, end))
        if self._counting is None or done >= end:
            return
        indexes, counting = self._counting
        again = self._again
        if not counting.possible(b"\n".join(lines)):
            return
        for index in range(done, end):
            if index - index % _GROUP in wanted:
                continue
            found = counting.found(lines[index])
            if found:
                key = tuple(found)
                known = again.get(key)
                if known is None:
                    known = again[key] = _Again(indexes)
                known.count += 1
                known.last.append((first + index, lines[index]))

    def _neighbours(self, wanted: set[int]) -> None:
        """What lies in the block before: it is looked at now."""
        early = sorted(start for start in wanted if start < 0)
        wanted.difference_update(early)
        lines, number, done = self._before
        groups = -(-len(lines) // _GROUP)
        for start in early:
            mine = (groups + start // _GROUP) * _GROUP
            if mine >= 0 and mine not in done:
                done.add(mine)
                self._group(lines, mine, number)

    def _group(self, lines: list[bytes], start: int, first: int) -> None:
        early = first <= _BARE_LINES
        for index in range(start, min(start + _GROUP, len(lines))):
            raw = lines[index]
            if raw and (early or self._matcher.anything(raw, ())):
                self._line(raw, first + index, None)
                self._seen_lines += 1
        if self._seen_lines >= self._tired and not early:
            self._tired += min(max(self._tired // 2, _TIRED), 10 * _TIRED)
            self._learn(first + start)

    def _vain(self, before: dict[int, int]) -> None:
        """Expressions that are always found before the messages, and never in them, are not asked for for ever."""
        for index, count in before.items():
            if self._counts[index] == count:
                self._in_vain[index] = self._in_vain.get(index, 0) + 1
                if self._in_vain[index] == _VAIN:
                    self._full.add(index)

    def _learn(self, at: int) -> None:
        """Which expressions tell nothing new any more: they are counted where their number is told, else left out."""
        if len(self._full) == len(self._known):
            return
        self._count(at)
        self._settle()
        self._known = frozenset(self._full)
        counted, everything, kinds = self._matcher.counted, self._matcher.everything, self._matcher.kinds
        wanted = [i for i in self._known if kinds[i] is Kind.RULE and everything[i] in counted]
        self._counting = self._matcher.only(wanted) if wanted else None

    def _remember(self, lines: list[bytes], first: int) -> None:
        """The last lines, for texts in which nothing at all is found."""
        kept: list[Hit] = []
        for index in range(len(lines) - 1, max(-1, len(lines) - 20), -1):
            text = lines[index][:_SHOWN].decode("utf-8", "replace")
            if text.strip() and len(kept) < 3:
                kept.append(self._hit(text, split(text).message, "", first + index))
        self.last = [*self.last, *reversed(kept)][-3:]

    def _line(self, raw: bytes, number: int, origin: Origin | None) -> None:
        if len(raw) > LONGEST:
            self.reading.cut += 1
            self.reading.first_cut = self.reading.first_cut or number
            raw = raw[:LONGEST]
        text = raw.decode("utf-8", "replace")
        for part in text.split("\x0b") if "\x0b" in text else (text,):
            self._part(part, number, origin)

    def _part(self, text: str, number: int, origin: Origin | None) -> None:
        line = split(text)
        matcher = self._matcher
        found = matcher.message(line.message)
        if not found:
            return
        kinds, everything = matcher.kinds, matcher.everything
        if _OURS.search(line.message):
            # what rackwell itself says of causes and cures is no sign of them
            found = [index for index in found if "gate" in everything[index] and kinds[index] is Kind.RULE]
        for index in found:
            if kinds[index] is Kind.START:
                self._start_anew(self._starts.line(everything[index], line.message, line.rank, number), number)
        name = origin.name if origin is not None else line.name
        if line.name and len(self._prefixes) < 16:
            pid = f"[{line.pid}]" if line.pid else ""
            self._prefixes.add(
                f" {line.host} {line.name}{pid}: ".encode() if line.host else f"{line.name}{pid}: ".encode()
            )
        kernel = name == "kernel" or _of_kernel(line.message)
        hit = self._hit(text, line.message, line.rank, number)
        for index in found:
            pattern, kind = everything[index], kinds[index]
            if kind is Kind.RULE:
                self.store.add(pattern, hit)
                if kernel and pattern in matcher.lasting:
                    self._kernel.add(pattern, hit)
            elif kind is Kind.FACT:
                self.facts.read(pattern, line.message)
            elif kind is Kind.TELLING:
                self.telling.add(hit)
            self._seen(index)

    def _seen(self, index: int) -> None:
        self._counts[index] += 1
        if self._counts[index] == ENOUGH and self._matcher.kinds[index] is not Kind.START:
            self._full.add(index)

    def _hit(self, text: str, message: str, rank: str, number: int) -> Hit:
        return Hit(number + self._offset, number, text[:_SHOWN], message, rank, self._source)

    def _settle(self) -> None:
        """Count what was found again and again."""
        for key, again in self._again.items():
            hits = []
            for number, raw in again.last:
                text = raw[:LONGEST].decode("utf-8", "replace")
                line = split(text)
                hits.append(self._hit(text, line.message, line.rank, number))
            for which in key:
                for hit in hits:
                    mine = self.store.add(self._matcher.everything[again.indexes[which]], hit)
                mine.count += again.count - len(hits)
        self._again = {}

    def _start_anew(self, kind: str, number: int) -> None:
        """A new start, or boot, begins with line `number`."""
        if not kind:
            return
        self._count(number)
        self._settle()
        mine = [start for start in self.earlier if start.source == self._source]
        first = mine[-1].last + 1 if mine else 1
        self.earlier.append(Earlier(first, number - 1, self.store, self._source))
        del self.earlier[:-3]
        self.store, self.telling = Store(), unknown.Telling()
        self._fresh()
        if kind == "boot":
            self.lasting = Store()
        else:
            self.lasting.take(self._kernel)
        self._kernel = Store()


def _of_kernel(message: str) -> bool:
    return message.startswith(("NVRM:", "AMD-Vi:", "DMAR:", "pcieport ", "nvidia ", "nvidia-modeset:", "nvidia:"))


def chosen(hits: Iterable[Hit], most: int) -> list[Hit]:
    """The first of `hits`, each line once, in their order in the text."""
    seen: dict[int, Hit] = {}
    for hit in hits:
        seen.setdefault(hit.number, hit)
        if len(seen) >= most:
            break
    return sorted(seen.values(), key=lambda hit: hit.number)
