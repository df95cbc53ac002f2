# SPDX-License-Identifier: Apache-2.0
"""What is found is the same whether lines are looked at by their shape, and counted, or one by one."""

from __future__ import annotations

import functools
import io
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwell import shipped
from rackwell.diagnose.blocks import LONGEST, Origin
from rackwell.diagnose.blur import ZEROS, blurred, zeros
from rackwell.diagnose.matcher import Matcher
from rackwell.diagnose.patterns import Filter, PatternError, finder
from rackwell.diagnose.prefix import rank, split
from rackwell.diagnose.rules import Rule, load_rules
from rackwell.diagnose.scan import Scan, _Seen
from rackwell.diagnose.shapes import Asked, Shape


@functools.lru_cache(maxsize=4)
def _truth(matcher: Matcher) -> Filter:
    return Filter(matcher.everything)


class Plain(Scan):
    """Holds each line by itself against the expressions as they stand in the rules."""

    def __init__(self, matcher: Matcher) -> None:
        super().__init__(matcher)
        self._truth = _truth(matcher)

    def _lines(self, lines: list[bytes], zeros: list[bytes], first: int) -> None:
        for number, raw in enumerate(lines, first):
            self._apart(raw, number, None)

    def _apart(self, raw: bytes, number: int, origin: Origin | None) -> None:
        if len(raw) > LONGEST:
            self.reading.cut += 1
            self.reading.first_cut = self.reading.first_cut or number
        for part in raw[:LONGEST].split(b"\x0b"):
            line = split(part.decode("utf-8", "replace"))
            found = tuple(self._truth.found(line.message.encode("utf-8", "replace")))
            if part and found:
                shape = Shape(line.start, False, line.parts, line.name, found, (), None, line.message)
                kernel = (line.name if origin is None else origin.name) == "kernel"
                kind = self._kind(shape, part, (), kernel)
                if kind is not None:
                    self._line(part, number, _Seen(shape, kernel), kind)


def state(scan: Scan) -> dict[str, Any]:
    """All that a diagnosis is made from."""

    def stored(store: Any) -> Any:
        return {
            pattern: (hits.count, hits.first, list(hits.last), sorted({h.number for h in hits.near}), hits.ranks)
            for pattern, hits in store.hits.items()
        }  # fmt: skip

    return {
        "store": stored(scan.store),
        "lasting": stored(scan.lasting),
        "earlier": [(each.first, each.last, stored(each.store)) for each in scan.earlier],
        "facts": scan.facts.facts,
        "telling": scan.telling.shapes,
        "last": scan.last,
        "lines": (scan.lines, scan.notes),
    }


def same(matcher: Matcher, *sources: Any) -> dict[str, Any]:
    """The state of both, which must be one."""
    quick, plain = Scan(matcher), Plain(matcher)
    for scan in (quick, plain):
        for source in sources:
            scan.read(source() if callable(source) else source)
    told, expected = state(quick), state(plain)
    for part, value in expected.items():
        assert told[part] == value, part
    return told


def rule(name: str, match: Any, **more: Any) -> Rule:
    data = {
        "id": name, "area": "sglang", "title": name, "severity": "blocker", "match": match, "cause": f"cause of {name}",
        "remedy": "mend it", "examples": {"match": ["x"], "clean": []},
    }  # fmt: skip
    return Rule.model_validate({**data, **more})


RULES = [
    rule("often", "Decode batch"),
    rule("digits", r"queue-req: [1-9]|running-req: 1\b"),
    rule("near", {"all": ["Decode batch", {"re": "omega \\d", "within": 3}, {"after": "psi [57]", "within": 40}]}),
    rule("none", {"all": ["omega"], "none": [{"re": "Decode batch", "within": 2}, "sigma 79"]}),
    rule("bare", r"^\d+$"),
    rule("anchored", r"^Error 4\d\d: [^5]$|(?i)^psi"),
    rule("kernel", r"NVRM: Xid (?:79|48)\b", area="driver"),
    rule("wide", {"all": ["Überlauf", {"re": "(?i)error", "within": 5000}]}),
    rule("counted", {"count": {"re": "ERROR", "at_least": 120}}),
]  # fmt: skip
MATCHER = Matcher(RULES)
PREFIXES = (
    "", "Nov 29 19:{n2}:22 gpu-ct sglang[{n}]: [2026-11-29 19:23:{n2} TP{n1}] ", "[2026-11-29 19:23:22 DP{n1} TP{n1}] ",
    "Nov {n2} 19:23:22 host kernel: ", "[    {n1}.{n}] ", "(Worker_TP{n1}_EP{n1} pid={n}) ", "[rank{n1}]: ",
    "gpu-ct:{n}:{n} [{n1}] ", "sglang-1  | ", "\x1b[31m", "\ufeff", "Ä {n1} ", "<{n1}>[{n}.{n}] ",
)  # fmt: skip
MESSAGES = (
    "Decode batch, #running-req: {n1}, token: {n}, #queue-req: {n1}", "omega {n1}", "psi {n1}", "sigma {n2}", "{n}",
    "Error 4{n2}: {n1}", "NVRM: Xid {n2}", "NVRM: Xid 79", "Überlauf {n1}", "ERROR {n} in step {n}", "quiet {n}", "",
    "NCCL INFO NCCL_DEBUG set by environment to {n1}", "sglang==0.5.{n1}", "x --tp-size {n1} --port {n}",
    "server_args=ServerArgs(tp_size={n1})", "kill_process_tree called", "a\rb {n1}%|#| {n}/9\rpsi {n1}",
    "omega\x00 {n1}", "-- Boot 0123456789abcdef0123456789abcdef --",
    "Starting sglang.service - S...", "sglang.service: Main process exited",
    "  do      psi {n1}", "gate held: psi {n1}", "FooError 0x{n}ab: {n}x{n}", "omega " * 400, "\ud800psi 5",
    "Decode batch omega {n1}",
)  # fmt: skip


def line(chance: random.Random, prefix: str, message: str) -> bytes:
    numbers = {"n": chance.choice((7, 10, 79, 4242)), "n1": chance.randrange(10), "n2": chance.randrange(10, 100)}
    return (prefix + message).format(**numbers).encode("utf-8", "surrogatepass")


class Chunks(io.BytesIO):
    """A pipe: what is read comes in pieces of any size."""

    def __init__(self, data: bytes, seed: int) -> None:
        super().__init__(data)
        self._chance = random.Random(seed)

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(self._chance.choice((1, 100, 9000, size or -1)))


SEGMENT = st.tuples(
    st.sampled_from(PREFIXES),
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=3),
    st.sampled_from((1, 1, 1, 3, 130, 260)),
    st.sampled_from((b"\n", b"\n", b"\r\n", b"\xff\xfe\n", b"\n\n")),
)


@given(st.lists(SEGMENT, max_size=14), st.integers(0, 9))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_log_gives_the_same(segments: list[tuple[str, list[str], int, bytes]], seed: int) -> None:
    chance = random.Random(seed)
    parts = [
        line(chance, prefix, message) + end
        for prefix, messages, times, end in segments
        for _ in range(times)
        for message in messages
    ]
    same(MATCHER, lambda: Chunks(b"".join(parts), seed), "omega 1\n" * 3)


def test_what_is_new_in_a_line_like_many_is_seen() -> None:
    often = b"[2026-11-29 19:23:22 TP1] ERROR 7 in step 9\n" * 400
    late = b"[2026-11-29 19:23:22 TP5] ERROR 8 in step 9\n"
    other = b"[2026-11-29 19:23:22 TP1] ERROR 8 in the flux\n"
    told = same(MATCHER, often + late + often + other + often)
    ((count, _, last, _, ranks),) = [hits for pattern, hits in told["store"].items() if pattern == "ERROR"]
    assert (count, last[-1].line) == (1202, 1202)
    assert {name: hit.line for name, hit in ranks.items()} == {"TP1": 1, "TP5": 401}
    assert [hit.line for _, hit in told["telling"].values()] == [1, 802]
    starts = b"kill_process_tree called\nserver_args=ServerArgs(a=1)\n"
    told = same(MATCHER, often + starts + often * 2 + starts + often)
    assert told["store"]["ERROR"][0] == 400
    assert [store["ERROR"][0] for _, _, store in told["earlier"]] == [400, 800]


@given(st.binary(max_size=3000))
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_the_same(data: bytes) -> None:
    same(MATCHER, data.replace(b"Z", b"omega 5\n"), data * 3)


def shuffled(text: str, chance: random.Random) -> str:
    return "".join(chance.choice("0123456789") if char in "0123456789" else char for char in text)


@pytest.fixture(scope="module")
def shipping() -> tuple[list[Rule], Matcher]:
    rules = load_rules(shipped.catalog())
    return rules, Matcher(rules)


def test_the_examples_of_all_rules_give_the_same(shipping: tuple[list[Rule], Matcher]) -> None:
    rules, matcher = shipping
    chance = random.Random(7)
    texts = [text for each in rules for text in (*each.examples.match, *each.examples.clean)]
    for _ in range(2):
        same(matcher, "\n".join(texts))
        chance.shuffle(texts)
        texts = [shuffled(text, chance) for text in texts]


def test_a_line_in_the_middle_of_many_is_found(shipping: tuple[list[Rule], Matcher]) -> None:
    _, matcher = shipping
    chance = random.Random(3)
    often = (
        "[2026-11-29 19:23:22 TP{n1}] Decode batch, #running-req: {n1}, #token: {n}, cuda graph: True, #queue-req: 0",
        'INFO:     192.0.2.{n2}:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "[2026-11-29 19:23:22 TP{n1}] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.00 MiB.",
    )  # fmt: skip
    many = [line(chance, "", chance.choice(often)) for _ in range(6000)]
    many.insert(3000, b"Nov 29 20:00:00 pve1 kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.")
    told = same(matcher, b"\n".join(many))
    hits = next(hits for pattern, (*hits,) in told["store"].items() if "fallen off the bus" in pattern)
    assert (hits[0], hits[1][0].line) == (1, 3001)


@pytest.mark.parametrize(
    ("pattern", "wide", "narrow"),
    [
        ("alpha", "alpha", None),
        (r"a\d{2,3}[0-9a-f]+\w[^x]", r"a\d{2,3}[0-9a-f]+\w[^x]", None),
        ("Xid 79", "Xid 00", "Xid " + r"[^\x00-\x{10FFFF}]" * 2),
        (r"x\x41\x{37}\067", r"x\x4100", r"x\x41" + r"[^\x00-\x{10FFFF}]" * 2),
        ("(?P<a1>b)(?i:c){2}d{x2}", "(?P<a1>b)(?i:c){2}d{x0}", r"(?P<a1>b)(?i:c){2}d{x[^\x00-\x{10FFFF}]}"),
        ("[1-3]", "[0-9]", r"[^\x00-\x{10FFFF}]"),
        ("[]a1]", r"[\x{5D}-\x{5D}\x{61}-\x{61}0-9]", r"[\x{5D}-\x{5D}\x{61}-\x{61}]"),
        ("[^5]", "(?s:.)", "[^0-9]"),
        ("[^a5]", r"[^\x{61}-\x{61}]", r"[^\x{61}-\x{61}0-9]"),
        ("[--5]", r"[\x{2D}-\x{2F}0-9]", r"[\x{2D}-\x{2F}]"),
        (r"[\d.]", r"[\d.]", None),
        (r"\Qa.1\E", "(?:)", r"[^\x00-\x{10FFFF}]"),
    ],
)
def test_expressions_for_zeros(pattern: str, wide: str, narrow: str | None) -> None:
    told = blurred(pattern)
    assert (told.wide, told.narrow) == (wide, narrow)
    finder(told.wide)
    finder(told.narrow or "")


PIECES = st.sampled_from(
    ("7", "79", "a", "-", r"\d", r"\D", r"\w", "[3-6]", "[^3-6]", "[^a]", r"[\d-]", "[+-9]", r"[^\w7]", "[[:digit:]x1]",
     "[[:^digit:]2]", "[^[:alpha:]1]", r"\x37", ".", r"\b", "(?:1|b)", "(?i:A1)", "{1,2}", "?", "*", "^", "$", "[x-z0]",
     r"\.", r"[\]\-3]", r"\PN", r"\p{Greek}", r"[\p{Greek}4]", r"\Q5\E", r"\07", r"[\n\x31]")
)  # fmt: skip


@given(st.lists(PIECES, min_size=1, max_size=6), st.lists(st.text("0123456789ab-.ä \n", max_size=8), max_size=20))
@settings(max_examples=150, deadline=None)
def test_zeros_hide_nothing_and_promise_nothing(pieces: list[str], texts: list[str]) -> None:
    pattern = "".join(pieces)
    try:
        find = finder(pattern)
    except PatternError:
        return
    told = blurred(pattern)
    wide, narrow = finder(told.wide), finder(told.narrow if told.narrow is not None else told.wide)
    for text in texts:
        raw, blind = text.encode(), zeros(text).encode()
        assert raw.translate(ZEROS) == blind
        assert not narrow(blind) or find(raw)
        assert wide(blind) or not find(raw)


@given(st.sampled_from(PREFIXES), st.sampled_from(PREFIXES), st.sampled_from(MESSAGES), st.randoms())
@settings(max_examples=150, deadline=None)
def test_lines_that_differ_in_digits_have_their_parts_at_the_same_places(
    first: str, second: str, message: str, chance: random.Random
) -> None:
    text = line(chance, first + second, message).decode("utf-8", "replace")
    one, other = split(text), split(zeros(text))
    assert (one.start, one.parts, zeros(one.name)) == (other.start, other.parts, other.name)
    assert text[other.start :] == one.message
    assert rank(text, other.parts) == one.rank


def test_an_automaton_without_memory_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    import rackwell.diagnose.patterns
    import rackwell.diagnose.shapes

    expressions = [r"alpha 1", r"alpha \d*2"]
    asked = Asked(expressions)
    shape = Shape(0, True, (), "", (), (4, 9), asked, "alpha 0")
    for _ in range(rackwell.diagnose.shapes._OFTEN + 1):
        assert shape.found(shape.places(b"alpha 32"), b"alpha 32") == (9,)
    assert asked.finds != asked.slowly
    asked.finds = lambda _: []
    assert shape.found(shape.places(b"alpha 12"), b"alpha 12") == (4, 9)
    assert asked.finds == asked.slowly


def test_a_filter_that_is_asked_often_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expressions = [*(rf"^{letter}$|\b{letter}\d" for letter in "abcdefghij"), "alpha", "(?i)omega 7", r"x{2,3}"]
    texts = [b"a", b"b1 alpha", b"OMEGA 7 j3", b"xx", b"quiet", b"c\xff4"]
    expected = [[0], [1, 10], [9, 11], [12], [], []]
    monkeypatch.setattr("rackwell.diagnose.patterns._LARGE", 7)
    often = Filter(expressions)
    for _ in range(3):
        assert [often.found(text) for text in texts] == expected
    assert often._together is not None
    often._together = lambda _: []
    assert [often.found(text) for text in texts] == expected
    assert often._together is None
