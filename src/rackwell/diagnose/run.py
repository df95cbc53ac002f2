# SPDX-License-Identifier: Apache-2.0
"""A text against all rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from rackwell.diagnose import kept, unknown
from rackwell.diagnose.evaluate import evaluate
from rackwell.diagnose.facts import Facts
from rackwell.diagnose.findings import Diagnosis, EarlierStart, Finding, Said
from rackwell.diagnose.hits import Hit, Store
from rackwell.diagnose.matcher import Matcher
from rackwell.diagnose.nearest import Nearest
from rackwell.diagnose.order import Held, ordered
from rackwell.diagnose.reading import Source
from rackwell.diagnose.rules import Rule, filled
from rackwell.diagnose.safe import shown
from rackwell.diagnose.scan import Scan, chosen
from rackwell.diagnose.telling import doubted
from rackwell.diagnose.tree import Match

_LINES = 6
#: points of a line, as `unknown` gives them, from which on something is amiss
_TROUBLE = 5
_BY_WORDS = "no rule's lines are in this text; the nearest known kind, by its words:"


@dataclasses.dataclass(frozen=True)
class Text:
    """A text with a name. `earlier`: it is all of an earlier start, and says nothing of this one."""

    name: str
    source: Source
    earlier: bool = False


class Diagnoser:
    """The rules, ready for texts. Safe to use again and again; not by several threads at once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._matcher = Matcher(rules)
        self._nearest: Nearest | None = None
        self._asking: dict[str, list[tuple[Rule, Match]]] = {}
        for rule in rules:
            for pattern in dict.fromkeys(leaf.pattern for leaf in rule.tree.leaves):
                self._asking.setdefault(pattern, []).append((rule, rule.tree))

    @property
    def rules(self) -> list[Rule]:
        """Its rules."""
        return self._matcher.rules

    def diagnose(
        self, sources: Iterable[tuple[str, Source] | Text], facts: Facts | None = None, *, guess: bool = False
    ) -> Diagnosis:
        """What the texts of one machine say: (name, text), or `Text`.

        Args:
            guess: for a text that is unknown, findings of the kinds whose words are nearest, as possible ones.

        Raises:
            OSError: one cannot be read.
        """
        scan = Scan(self._matcher)
        for each in sources:
            text = each if isinstance(each, Text) else Text(*each)
            scan.read(text.source, text.name, earlier=text.earlier)
        known = (facts or Facts()).over(scan.facts.facts)
        causes, noise = ordered(self._held(scan.store, scan.lasting, known))
        if causes and not noise and causes[0][0].rule.severity == "noise" and self._alarming(scan, causes):
            # what is normal does not make normal what nobody knows
            causes, noise = [], [each for each, _ in causes]
        findings = tuple(_finding(each, folded) for each, folded in causes)
        unclear = not findings
        telling = [_said(hit) for hit in (scan.telling.best() or scan.last)] if unclear else []
        if unclear and guess and scan.telling.alarming(_TROUBLE):
            findings = tuple(self._guessed(scan, telling))
        return Diagnosis(
            findings,
            tuple(_finding(each, []) for each in noise),
            tuple(self._earlier(scan, known)),
            unclear,
            tuple(telling),
            tuple(unknown.collect([line.text for line in telling])) if unclear else (),
            tuple(scan.notes),
            known,
            scan.lines,
        )

    def _guessed(self, scan: Scan, telling: Sequence[Said]) -> Iterable[Finding]:
        """The nearest kinds by their words; of a long text only its beginning and what looks like trouble count."""
        if self._nearest is None:
            self._nearest = Nearest(self.rules)
        lines = [line.text for line in telling] if scan.lines > len(scan.head) else scan.head
        for rule in self._nearest.of(lines):
            yield Finding(
                rule.id, rule.area, filled(rule.title, {}), rule.severity, "possible",
                f"{_BY_WORDS} {filled(rule.cause, {})}", filled(rule.remedy, {}), filled(rule.naive, {}),
                tuple(telling[:_LINES]), 1, (), tuple(rule.evidence), (), rule.level, False, rule.lint,
            )  # fmt: skip

    def _alarming(self, scan: Scan, causes: list[tuple[Held, list[Held]]]) -> bool:
        """Whether a line looks like trouble that no expression of these rules is about."""
        about = {leaf.pattern for each, _ in causes for leaf in each.rule.tree.leaves}
        everything = self._matcher.everything
        return any(
            about.isdisjoint(everything[index] for index in self._matcher.shapes.message(hit.message))
            for hit in scan.telling.alarming()
        )

    def held(self, text: str, facts: Facts | None = None) -> list[Held]:
        """Every rule that holds for a text, in no order; for the tests of rules."""
        scan = Scan(self._matcher)
        scan.read(text)
        return self._held(scan.store, scan.lasting, (facts or Facts()).over(scan.facts.facts))

    def _held(self, store: Store, lasting: Store, facts: Facts) -> list[Held]:
        both = store
        if lasting.hits:
            both = Store()
            both.take(lasting)
            both.take(store)
        found = []
        asked = {rule.id: (rule, tree) for pattern in both.hits for rule, tree in self._asking.get(pattern, ())}
        for rule, tree in asked.values():
            evidence = evaluate(tree, both if rule.stays else store)
            if evidence is not None and rule.when.holds(facts):
                found.append(Held(rule, evidence))
        return found

    def _earlier(self, scan: Scan, facts: Facts) -> Iterable[EarlierStart]:
        for start in scan.earlier:
            causes, _ = ordered(self._held(start.store, Store(), facts))
            if causes and causes[0][0].rule.severity != "noise":
                yield EarlierStart(start.first, start.last, _finding(*causes[0]), start.source)


def _finding(held: Held, folded: list[Held]) -> Finding:
    rule, evidence = held.rule, held.evidence
    values = {name: shown(value, 200) for name, value in evidence.values.items()}
    cause = filled(rule.cause, values)
    if rule.severity == "noise" and not cause.lower().startswith("normal"):
        cause = f"normal: {cause}"
    return Finding(
        rule.id,
        rule.area,
        filled(rule.title, values),
        rule.severity,
        doubted(rule.confidence, ((pattern, hit.text) for pattern, hit in evidence.pairs)),
        cause,
        filled(rule.remedy, values),
        filled(rule.naive, values),
        tuple(_said(hit) for hit in chosen((hit for _, hit in evidence.pairs), _LINES)),
        evidence.count,
        evidence.ranks,
        tuple(rule.evidence),
        tuple(each.rule.id for each in folded),
        rule.level,
        rule.fatal,
        rule.lint,
    )


def _said(hit: Hit) -> Said:
    return Said(hit.line, shown(hit.text), hit.source)


@functools.lru_cache(maxsize=4)
def diagnoser(catalog: Path | None = None) -> Diagnoser:
    """The one of a catalogue; that which ships when None."""
    from rackwell import shipped

    return Diagnoser(kept.rules(catalog or shipped.catalog()))


def diagnose(source: Source, facts: Facts | None = None, *, catalog: Path | None = None) -> Diagnosis:
    """What a text says: of a log, of a command's output, of a start.

    Args:
        source: text, bytes in any encoding, lines, or a binary file.
        facts: what is known beforehand, such as the release's versions and the profile's flags.
    """
    return diagnoser(catalog).diagnose([("", source)], facts)
