# SPDX-License-Identifier: Apache-2.0
"""One pass over a text: which expressions are found in which lines, and where a new start begins.

What makes a large text fast: lines that differ in numbers alone are looked at once (`shapes`), and a line that tells
nothing but what is known already is only counted, with the last ones of its kind kept.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence

from rackwell.diagnose import facts, prefix, reading, starts, unknown
from rackwell.diagnose.blocks import LONGEST, Block, Origin, Reading
from rackwell.diagnose.blur import ZEROS
from rackwell.diagnose.hits import MOST, Hit, Hits, Store
from rackwell.diagnose.matcher import Kind, Matcher
from rackwell.diagnose.reading import Source
from rackwell.diagnose.safe import shown
from rackwell.diagnose.shapes import LONGEST as REMEMBERED
from rackwell.diagnose.shapes import Asked, Shape

_SHOWN = 2000
#: lines of the beginning that are kept
_HEAD = 60
_NEAREST = 4
"""Lines of a frequent expression that are kept on either side of one of a rare one that rules want near it."""
_SHAPES = 20_000
_KINDS = 500
_RANKS = 2000
_OURS = re.compile(
    r"(?:held by the boot gate|gate held): [a-z0-9-]+"
    r"|^ {2}(?:fix|do|not|known|follows|collect|check|what|earlier) {3,}\S"
)


@dataclasses.dataclass
class Earlier:
    """The lines of one earlier start."""

    first: int
    last: int
    store: Store
    source: str


class _Kind:
    """Lines in which the same is found, of the present start.

    Attributes:
        epoch: the start that the rest is about. known: the start of which nothing new can be in such a line.
        count, last: of the lines that were only counted. ranks: those of which a line was looked at, also as bytes.
    """

    __slots__ = ("count", "epoch", "facts", "known", "last", "lasting", "ranks", "rules", "starts", "telling")

    def __init__(self, matcher: Matcher, found: Sequence[int], kernel: bool) -> None:
        def of(kind: Kind) -> tuple[str, ...]:
            return tuple(matcher.everything[index] for index in found if matcher.kinds[index] is kind)

        self.rules, self.facts, self.starts = of(Kind.RULE), of(Kind.FACT), of(Kind.START)
        self.telling = bool(of(Kind.TELLING))
        self.lasting = tuple(pattern for pattern in self.rules if pattern in matcher.lasting) if kernel else ()
        self.last: collections.deque[tuple[int, bytes, Shape]] = collections.deque(maxlen=MOST)
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """A new start: nothing of it is known."""
        self.epoch, self.known, self.count = epoch, 0, 0
        self.last.clear()
        self.ranks: set[str | bytes] = set()


@dataclasses.dataclass(slots=True)
class _Seen:
    """A shape, and what the present text knows of it.

    Attributes:
        start, asked: those of the shape; no start if a line's characters are not its bytes.
        rank: what in the bytes is the rank, or none of them, for a rank of several parts; None for no rank.
        kind, kinds: of its lines; of those that were asked by what they were found to have.
        told: the start whose most telling lines have it.
    """

    shape: Shape
    kernel: bool
    start: int | None = None
    asked: Asked | None = None
    rank: slice | None = None
    kind: _Kind | None = None
    kinds: dict[tuple[int, ...], _Kind | None] = dataclasses.field(default_factory=dict)
    told: int = 0


_UNSEEN: _Seen = object.__new__(_Seen)


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
        self.head: list[str] = []
        self.lines = 0
        self._matcher = matcher
        self._seen: dict[bytes, _Seen | None] = {b"": None}
        self._kinds: dict[tuple[tuple[int, ...], bool], _Kind] = {}
        self._offset = self._epoch = 0
        self._begin("")

    def _begin(self, name: str) -> None:
        self.reading, self._source, self._starts = Reading(), name, starts.Starts()
        self._kernel = Store()
        self._fresh()

    def _fresh(self) -> None:
        """At a new start everything is new."""
        self._epoch += 1
        self._with: dict[str, list[_Kind]] = {}
        self._open: dict[str, list[int]] = {}
        self._until = 0

    def read(self, source: Source, name: str = "", *, earlier: bool = False) -> None:
        """One text; one of an earlier start tells of that only."""
        name = shown(name, 80)
        before, self.store = self.store, Store()
        self._begin(name)
        for block in reading.blocks(source, self.reading):
            self._block(block)
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
                self._apart(raw, number, origin)
            return
        if b"\x0b" in block.data or max(map(len, lines)) > LONGEST:
            for number, raw in enumerate(lines, block.number):
                self._apart(raw, number, None)
        else:
            self._lines(lines, block.data.translate(ZEROS).split(b"\n"), block.number)
        self._remember(lines, block.number)

    def _apart(self, raw: bytes, number: int, origin: Origin | None) -> None:
        """A line that may be too long, or hold several, or has an origin."""
        if len(raw) > LONGEST:
            self.reading.cut += 1
            self.reading.first_cut = self.reading.first_cut or number
            raw = raw[:LONGEST]
        for part in raw.split(b"\x0b"):
            seen = self._look(part.translate(ZEROS))
            if seen is None:
                continue
            kernel = seen.kernel if origin is None else origin.name == "kernel"
            kind = self._kind(seen.shape, part, seen.shape.places(part), kernel)
            if kind is not None:
                self._line(part, number, seen, kind)

    def _lines(self, lines: list[bytes], zeros: list[bytes], first: int) -> None:
        """Lines, and the same with zeros for digits: what is known is counted, what is not is looked at.

        This is what a large log takes its time for.
        """
        epoch, until = self._epoch, self._until
        known = map(self._seen.get, zeros, itertools.repeat(_UNSEEN))
        for number, raw, seen in zip(itertools.count(first), lines, known, strict=False):
            if seen is None:
                continue
            if seen is _UNSEEN:
                seen = self._look(zeros[number - first])  # noqa: PLW2901
                if seen is None:
                    continue
            if seen.asked is None:
                kind = seen.kind or self._kind(seen.shape, raw, (), seen.kernel)
                seen.kind = kind
            else:
                start = seen.start
                places = seen.shape.places(raw) if start is None else tuple(seen.asked.finds(raw[start:]))
                try:
                    kind = seen.kinds[places]
                except KeyError:
                    kind = self._kind(seen.shape, raw, places, seen.kernel)
                    if places:
                        seen.kinds[places] = kind
            if kind is None:
                continue
            if (
                kind.known == epoch
                and number > until
                and (seen.told == epoch or not kind.telling)
                and (seen.rank is None or raw[seen.rank] in kind.ranks or self._rank_known(raw, seen.shape, kind))
            ):
                kind.count += 1
                kind.last.append((number, raw, seen.shape))
            else:
                self._line(raw, number, seen, kind)
                epoch, until = self._epoch, self._until

    def _rank_known(self, raw: bytes, shape: Shape, kind: _Kind) -> bool:
        return len(kind.ranks) >= _RANKS or prefix.rank(raw.decode("utf-8", "replace"), shape.parts) in kind.ranks

    def _look(self, line: bytes) -> _Seen | None:
        """What is known of a line whose digits are zeros."""
        try:
            return self._seen[line]
        except KeyError:
            shape = self._matcher.shapes.of(line)
        seen = None
        if shape is not None:
            rank = None
            if shape.parts:
                word, first, last = shape.parts[0]
                rank = slice(first, last) if shape.plain and len(shape.parts) == 1 and not word else slice(0)
            seen = _Seen(shape, shape.name == "kernel", shape.start if shape.plain else None, shape.asked, rank)
        if len(line) <= REMEMBERED:
            if len(self._seen) > _SHAPES:
                self._seen.clear()
                self._seen[b""] = None
            self._seen[line] = seen
        return seen

    def _kind(self, shape: Shape, raw: bytes, places: tuple[int, ...], kernel: bool) -> _Kind | None:
        """The kind of a line; None when nothing is found in it."""
        found = shape.found(places, raw)
        if _OURS.search(shape.message):
            # what rackwell itself says of causes and cures is no sign of them
            everything, kinds = self._matcher.everything, self._matcher.kinds
            found = tuple(index for index in found if "gate" in everything[index] and kinds[index] is Kind.RULE)
        if not found:
            return None
        key = (found, kernel or _of_kernel(shape.message))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) > _KINDS:
                self._settle()
                for known in (self._kinds, self._with, self._seen):
                    known.clear()
                self._seen[b""] = None
            kind = self._kinds[key] = _Kind(self._matcher, *key)
        return kind

    def _line(self, raw: bytes, number: int, seen: _Seen, kind: _Kind) -> None:
        """A line in which something is found that may be new."""
        text = raw.decode("utf-8", "replace")
        message, rank = text[seen.shape.start :], prefix.rank(text, seen.shape.parts)
        for pattern in kind.starts:
            self._start_anew(self._starts.line(pattern, message, rank, number), number)
        again = kind.epoch == self._epoch
        if not again:
            kind.begin(self._epoch)
        hit = Hit(number + self._offset, number, text[:_SHOWN], message, rank, self._source)
        # a kind of which there is one line only is none that others are to be looked for in
        if self._add(kind, hit) and again and kind.known != self._epoch:
            kind.known = self._epoch
            for pattern in kind.rules:
                self._with.setdefault(pattern, []).append(kind)
        for pattern in kind.facts:
            self.facts.read(pattern, message)
        if kind.telling:
            self.telling.add(hit)
            seen.told = self._epoch
        if len(kind.ranks) < _RANKS:
            kind.ranks.update((rank, rank.encode()) if rank else ())

    def _add(self, kind: _Kind, hit: Hit) -> bool:
        """Add a line; whether nothing new can be in a further one like it."""
        store = self.store
        rare, frequent = [], []
        for pattern in kind.rules:
            before = store.get(pattern)
            if before is not None and before.full:
                frequent.append(before)
                near = self._open.get(pattern)
                if near is not None:
                    self._after(pattern, near, before, hit)
            else:
                rare.append(pattern)
            store.add(pattern, hit)
        for pattern in kind.lasting:
            self._kernel.add(pattern, hit)
        if rare:
            for hits in frequent:
                hits.near.append(hit)
            for pattern in rare:
                self._around(pattern, hit)
        told = all(self._kernel.hits[pattern].full for pattern in kind.lasting)
        return told and not (rare or kind.starts or kind.facts)

    def _after(self, pattern: str, near: list[int], hits: Hits, hit: Hit) -> None:
        """A line of a frequent expression behind one of a rare one."""
        until, left = near
        if hit.number <= until:
            hits.near.append(hit)
        if hit.number > until or left <= 1:
            del self._open[pattern]
            self._until = max((until for until, _ in self._open.values()), default=0) - self._offset
        else:
            near[1] = left - 1

    def _around(self, rare: str, hit: Hit) -> None:
        """Keep the nearest lines of the frequent expressions that rules want near a rare one, or not near it."""
        for pattern, wide in self._matcher.partners.get(rare, {}).items():
            hits = self.store.get(pattern)
            if hits is not None and hits.full:
                hits.near.extend(self._latest(pattern, hits, hit.number - wide))
                until = max(hit.number + wide, self._open.get(pattern, [0])[0])
                self._open[pattern] = [until, _NEAREST]
                self._until = max(self._until, until - self._offset)

    def _latest(self, pattern: str, hits: Hits, low: int) -> list[Hit]:
        """The last lines of an expression from line `low` on."""
        found = {hit.number: hit for hit in list(hits.last)[-_NEAREST:] if hit.number >= low}
        for kind in self._with.get(pattern, ()):
            for number, raw, shape in list(kind.last)[-_NEAREST:]:
                if number + self._offset >= low:
                    found[number + self._offset] = self._hit(number, raw, shape)
        return [found[number] for number in sorted(found)[-_NEAREST:]]

    def _hit(self, number: int, raw: bytes, shape: Shape) -> Hit:
        text = raw.decode("utf-8", "replace")
        return Hit(
            number + self._offset, number, text[:_SHOWN], text[shape.start :], prefix.rank(text, shape.parts),
            self._source,
        )  # fmt: skip

    def _settle(self) -> None:
        """Add what was only counted."""
        for kind in self._kinds.values():
            if kind.epoch != self._epoch or not kind.count:
                continue
            last = [self._hit(*each) for each in kind.last]
            for store, patterns in ((self.store, kind.rules), (self._kernel, kind.lasting)):
                for pattern in patterns:
                    store.hits[pattern].passed(kind.count, last)
            kind.count = 0
            kind.last.clear()

    def _remember(self, lines: list[bytes], first: int) -> None:
        """The last lines, for texts in which nothing at all is found."""
        kept: list[Hit] = []
        for index in range(len(lines) - 1, max(-1, len(lines) - 20), -1):
            text = lines[index][:_SHOWN].decode("utf-8", "replace")
            if text.strip() and len(kept) < 3:
                message = prefix.split(text).message
                kept.append(Hit(first + index + self._offset, first + index, text, message, "", self._source))
        self.last = [*self.last, *reversed(kept)][-3:]
        for raw in lines[: max(0, _HEAD - len(self.head))]:
            self.head.append(prefix.split(raw[:_SHOWN].decode("utf-8", "replace")).message)

    def _start_anew(self, kind: str, number: int) -> None:
        """A new start, or boot, begins with line `number`."""
        if not kind:
            return
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
