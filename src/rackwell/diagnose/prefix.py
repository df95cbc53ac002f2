# SPDX-License-Identifier: Apache-2.0
"""What stands before a message: time, host, unit, container, process, rank. Rules are held against the rest.

The expressions are anchored at the start and bounded, so that they cost the same on any text. None tells one digit from
another: lines that differ in numbers alone have their message at the same place (`blur`).
"""

from __future__ import annotations

import dataclasses
import re

_TIME = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_ISO = rf"\d{{4}}-\d{{2}}-\d{{2}}[T ]{_TIME}(?:Z| ?[+-]\d{{2}}:?\d{{2}})?"
_SHORT = rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]?\d {_TIME}"
_RANK = r"(?:PP|DP|TP|EP|ATTN_?TP|ATTN_?CP|CP|MOE_?EP)\d{1,4}"

#: journalctl short, short-iso, short-precise, short-full, syslog: time, host, then `name[pid]:` or `kernel:`
_JOURNAL = re.compile(
    rf"(?:{_SHORT}|{_ISO}|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_ISO} [A-Z]{{2,5}}) "
    r"(?P<host>\w[\w.-]{0,63}) (?P<name>[^\s:\[\]]{1,64})(?:\[(?P<pid>\d{1,10})\])?: "
)
_BARE_JOURNAL = re.compile(r"(?P<name>[A-Za-z_(][^\s:\[\]]{0,63})\[(?P<pid>\d{1,10})\]: ")
_KERNEL = re.compile(
    r"(?:<\d{1,3}>|(?:kern|user|daemon|syslog) {0,3}:\w{2,6} {0,3}: )?"
    rf"\[(?: {{0,12}}\d{{1,10}}\.\d{{1,9}}|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{{3}} [ \d]\d {_TIME} \d{{4}}"
    r"|\w{3}[ \d]\d \d\d:\d\d| {1,4}\+\d{1,9}\.\d{1,9})\] "
)
_CRI = re.compile(rf"{_ISO} (?:stdout|stderr) [FP] ")
_COMPOSE = re.compile(r"[a-z][\w.-]{0,62}[ ]{1,20}\| (?=\S)")
_POD = re.compile(r"\[pod/[\w./-]{1,200}\] ")
_SGLANG = re.compile(rf"\[(?:{_ISO})?(?P<ranks>(?: ?{_RANK}){{0,6}})\] (?=\S)")
_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z][\w.]{0,40})(?: rank=(?P<rank>\d{1,4}))? pid=(?P<pid>\d{1,10})(?:, ip=[\d.]{7,15})?\) "
)
_WORKER = re.compile(r"_(TP|DP|PP|EP)(\d{1,4})")
_TORCHRUN = re.compile(r"\[(?:rank|default)(?P<rank>\d{1,4})\]: ?")
_VLLM = re.compile(rf"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d{{2}}-\d{{2}} {_TIME} (?:\[[^\]\s]{{1,80}}\] )?")
_NCCL = re.compile(
    r"(?:[\w.-]{1,64}:\d{1,10}:\d{1,10} )?\[(?P<rank>\d{1,4})\] (?=NCCL |\w{1,40}(?:/\w{1,40}){0,2}\.(?:cc|h|cu):\d)"
)
_NCCL_TIME = re.compile(rf"\[{_ISO}\] (?=[\w.-]{{1,64}}:\d{{1,10}}:\d{{1,10}} )")
_ISO_ONLY = re.compile(rf"\[?{_ISO}\]?(?: - | )?")
_VERBOSE = re.compile(r" {4}MESSAGE=")
_PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) )?(?:[\w.@~:/\\-]{1,80}|\[[\w.-]{1,40}@[\w.-]{1,64} [^\]\s]{1,80}\])(?=[#$] \S)"
)


Part = tuple[str, int, int]


@dataclasses.dataclass(slots=True)
class Line:
    """A line without what stands before its message.

    Attributes:
        rank: "TP3", "DP0 TP3", "rank3"; empty when the line names none.
        name: of the program or unit that wrote it, as the journal says; "kernel" for the kernel.
        start: where the message begins in the line.
        parts: of which the rank consists: a word, and from where to where in the line the rest of it stands.
    """

    message: str
    rank: str = ""
    name: str = ""
    start: int = 0
    parts: tuple[Part, ...] = ()


def split(text: str) -> Line:
    """The message of a line, and what its prefixes say."""
    line = Line(text)
    for _ in range(5):
        rest = _once(line)
        if rest is None:
            break
        line.message = line.message[rest:]
        line.start += rest
    line.rank = rank(text, line.parts)
    return line


def rank(text: str, parts: tuple[Part, ...]) -> str:
    """What the parts of a line's rank say."""
    return " ".join([word + text[first:last] for word, first, last in parts])


def _once(line: Line) -> int | None:
    text = line.message
    first = text[:1]
    if first.isdigit() or (first.isalpha() and first.isupper() and not line.name):
        found = _JOURNAL.match(text)
        if found is not None:
            line.name = found["name"]
            return found.end()
    how = _BY_FIRST.get(first)
    if how is None:
        how = _DIGIT if first.isdigit() else _WORD
    for pattern in how:
        found = pattern.match(text)
        if found is not None and found.end():
            _note(line, pattern, found)
            return found.end()
    return None


def _note(line: Line, pattern: re.Pattern[str], found: re.Match[str]) -> None:
    def part(word: str, group: str) -> tuple[Part, ...]:
        return ((word, line.start + found.start(group), line.start + found.end(group)),) if found[group] else ()

    if pattern is _KERNEL:
        line.name = line.name or "kernel"
    elif pattern is _SGLANG:
        line.parts = _stripped(part("", "ranks"), found["ranks"]) or line.parts
    elif pattern is _PROCESS:
        begun = line.start + found.start("name")
        workers = [("", begun + each.start() + 1, begun + each.end()) for each in _WORKER.finditer(found["name"])]
        line.parts = tuple(workers) or part("rank", "rank") or line.parts
    elif pattern in (_TORCHRUN, _NCCL):
        line.parts = line.parts or part("rank", "rank")
    elif pattern is _BARE_JOURNAL:
        line.name = found["name"]


def _stripped(parts: tuple[Part, ...], text: str) -> tuple[Part, ...]:
    blanks = len(text) - len(text.lstrip())
    return tuple((word, first + blanks, last) for word, first, last in parts)


_DIGIT = (_CRI, _ISO_ONLY, _NCCL)
_WORD = (_BARE_JOURNAL, _COMPOSE, _VLLM, _NCCL, _KERNEL, _PROMPT)
_BY_FIRST = {
    "[": (_POD, _KERNEL, _SGLANG, _TORCHRUN, _NCCL, _NCCL_TIME, _ISO_ONLY, _PROMPT),
    "(": (_PROCESS, _BARE_JOURNAL, _PROMPT),
    "<": (_KERNEL,),
    " ": (_VERBOSE,),
}
