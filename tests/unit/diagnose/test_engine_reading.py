# SPDX-License-Identifier: Apache-2.0
"""Texts as they come: prefixes of every tool, encodings, journals, progress bars, several starts, and hostile ones."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackwell.diagnose import Diagnoser, Diagnosis, Text, diagnose
from rackwell.diagnose.prefix import split
from rackwell.diagnose.render import text as rendered
from rackwell.diagnose.rules import Rule


def rule(name: str, match: Any, **more: Any) -> Rule:
    data = {
        "id": name, "area": "sglang", "title": name, "severity": "blocker", "match": match, "cause": f"cause of {name}",
        "remedy": "mend it", "examples": {"match": ["x"], "clean": []},
    }  # fmt: skip
    return Rule.model_validate({**data, **more})


BOOM = rule("boom", "^Boom: broken (?P<n>\\d+)$")
XID = rule("xid", "^NVRM: Xid", area="driver")
READER = Diagnoser([BOOM, XID])


def read(source: Any) -> Diagnosis:
    return READER.diagnose([("", source)])


MESSAGE = "Boom: broken 7"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (MESSAGE, ""),
        (f"Nov 29 19:23:22 gpu-ct sglang[702]: {MESSAGE}", ""),
        (f"Nov 29 19:23:22.123456 gpu-ct python3[702]: {MESSAGE}", ""),
        (f"Nov  9 19:23:22 gpu-ct kernel: {MESSAGE}", ""),
        (f"2026-11-29T19:23:22+0000 gpu-ct sglang[702]: {MESSAGE}", ""),
        (f"2026-11-29T19:23:22.123456+01:00 gpu-ct sglang[702]: {MESSAGE}", ""),
        (f"Sun 2026-11-29 19:23:22 UTC gpu-ct sglang[702]: {MESSAGE}", ""),
        (f"Nov 29 19:23:22 gpu-ct sglang[702]: [2026-11-29 19:23:22 TP1] {MESSAGE}", "TP1"),
        (f"[2026-11-29 19:23:22 DP1 TP3 EP3] {MESSAGE}", "DP1 TP3 EP3"),
        (f"[2026-11-29 19:23:22] {MESSAGE}", ""),
        (f"[TP0] {MESSAGE}", "TP0"),
        (f"sglang[702]: {MESSAGE}", ""),
        (f"systemd[1]: {MESSAGE}", ""),
        (f"(EngineCore_DP0 pid=1234) ERROR 11-29 19:23:22 [core.py:708] {MESSAGE}", "DP0"),
        (f"(Worker_TP3 pid=1234) {MESSAGE}", "TP3"),
        (f"(VllmWorker rank=5 pid=1234) {MESSAGE}", "rank5"),
        (f"(RayWorkerWrapper pid=1234, ip=10.0.0.2) {MESSAGE}", ""),
        (f"INFO 11-29 19:23:22 [core.py:58] {MESSAGE}", ""),
        (f"[rank3]: {MESSAGE}", "rank3"),
        (f"[default1]:{MESSAGE}", "rank1"),
        (f"[    1.234567] {MESSAGE}", ""),
        (f"[12345.678901] {MESSAGE}", ""),
        (f"[Mon Nov 30 06:48:01 2026] {MESSAGE}", ""),
        (f"[Nov30 06:48] {MESSAGE}", ""),
        (f"[  +0.000012] {MESSAGE}", ""),
        (f"kern  :err   : [12345.678901] {MESSAGE}", ""),
        (f"<3>[12345.678901] {MESSAGE}", ""),
        (f"sglang-1  | {MESSAGE}", ""),
        (f"sglang-1  | [2026-11-29 19:23:22 TP1] {MESSAGE}", "TP1"),
        (f"[pod/glm-0/server] {MESSAGE}", ""),
        (f"2026-11-29T19:23:22.123456789Z {MESSAGE}", ""),
        (f"2026-11-29T19:23:22.123456789Z stderr F [2026-11-29 19:23:22 TP2] {MESSAGE}", "TP2"),
        (f"2026-11-29 19:23:22,123 - {MESSAGE}", ""),
        (f"    MESSAGE={MESSAGE}", ""),
    ],
)
def test_prefixes_are_taken_off(line: str, rank: str) -> None:
    assert (split(line).message, split(line).rank) == (MESSAGE, rank)
    told = read(f"quiet\n{line}\n")
    assert told.findings[0].lines[0].number == 2
    assert told.findings[0].ranks == ((rank,) if rank else ())


def test_prefixes_of_nccl_and_prompts() -> None:
    assert split("gpu-ct:12345:12399 [3] NCCL INFO x").message == "NCCL INFO x"
    assert split("[5] transport/nvls.cc:254 NCCL WARN x").rank == "rank5"
    assert split("root@pve1:~# pct start 200").message == "# pct start 200"
    assert split("[root@pve1 ~]# pct start 200").message == "# pct start 200"
    assert split("(venv) svc@ct:~$ pip list").message == "$ pip list"
    for kept in (
        "# pct start 200",
        "[1/85] nvcc x",
        "[W socket.cpp:401] [c10d] x",
        "a.service: Failed",
        "GPU0 | x",
        "12 MiB",
    ):
        assert split(kept).message == kept


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (MESSAGE.encode(), "a last line without its end"),
        (f"x\r\n{MESSAGE}\r\n".encode(), "CRLF"),
        (f"\ufeff{MESSAGE}\n".encode("utf-16"), "UTF-16 with a mark"),
        (f"{MESSAGE}\n".encode("utf-16-le"), "UTF-16 without"),
        (f"{MESSAGE}\n".encode("utf-16-be"), "UTF-16 without, big end first"),
        (f"{MESSAGE}\n".encode("utf-32"), "UTF-32"),
        (f"Gerät fehlt\n{MESSAGE}\n".encode("latin-1"), "latin-1"),
        (b"\xff\xfe\xfd\xc3\x28\n" + MESSAGE.encode() + b"\n", "no encoding"),
        (b"\xef\xbb\xbf" + MESSAGE.encode(), "UTF-8 with a mark"),
        (b"\x00\x00" + MESSAGE.encode() + b"\x00\n", "zeros"),
        (b"\x1b[1;31mBoom:\x1b[0m broken 7\n", "colours"),
        (f"\x1b]0;title\x07{MESSAGE}\n".encode(), "a title"),
        (f"load:  10%|# | 1/9\rload: 100%|###| 9/9\r{MESSAGE}\n".encode(), "behind a progress bar"),
        (gzip.compress(f"{MESSAGE}\n".encode()), "gzip"),
        (lzma.compress(f"{MESSAGE}\n".encode()), "xz"),
        (bz2.compress(f"{MESSAGE}\n".encode()), "bzip2"),
        (gzip.compress(f"{MESSAGE}\n".encode() + bytes(range(256)) * 4000)[:-9], "gzip that ends early"),
    ],
)
def test_encodings(data: bytes, kind: str) -> None:
    for source in (data, io.BytesIO(data)):
        assert [f.id for f in read(source).findings] == ["boom"], kind


def test_lines_as_an_iterable() -> None:
    assert read(iter(["quiet", MESSAGE])).findings[0].lines[0].number == 2


def test_only_the_last_state_of_a_progress_bar_is_read() -> None:
    stages = "\r".join(f"Capturing (bs={n} avail_mem=0.0{n} GB): {n}%|#| {n}/9" for n in range(1, 9))
    bar = rule("bar", "bs=(?P<n>\\d)", cause="at ${n}")
    told = Diagnoser([bar]).diagnose([("", f"x\n{stages}\ny\n")])
    assert (told.findings[0].cause, told.findings[0].count, told.findings[0].lines[0].number) == ("at 8", 1, 2)


@pytest.mark.parametrize("data", [b"", b"\n\n\n", b"   ", "quiet words"])
def test_nothing(data: Any) -> None:
    told = read(data)
    assert told.unknown
    assert told.collect
    assert rendered(told)


def test_binary_is_said_to_be_binary() -> None:
    told = read(bytes(range(256)) * 100)
    assert any("binary" in note for note in told.notes)
    assert told.unknown


def test_a_journal_in_json() -> None:
    records = [
        {"MESSAGE": "quiet", "_PID": "1", "SYSLOG_IDENTIFIER": "sglang", "_BOOT_ID": "b"},
        {"MESSAGE": list(f"a\n[TP3] {MESSAGE}".encode()), "_SYSTEMD_UNIT": "sglang.service", "_BOOT_ID": "b"},
        {"MESSAGE": None, "_BOOT_ID": "b"},
        {"MESSAGE": ["NVRM: Xid 79"], "_TRANSPORT": "kernel", "_BOOT_ID": "b"},
    ]
    told = read("\n".join(map(json.dumps, records)))
    assert {f.id: f.lines[0].number for f in told.findings} == {"boom": 2, "xid": 4}
    assert next(f for f in told.findings if f.id == "boom").ranks == ("TP3",)


def test_a_journal_in_json_knows_the_invocation() -> None:
    def record(message: str, invocation: str, boot: str = "b1") -> str:
        data = {"MESSAGE": message, "_SYSTEMD_UNIT": "sglang.service", "_SYSTEMD_INVOCATION_ID": invocation}
        return json.dumps({**data, "_BOOT_ID": boot})

    old = [record(MESSAGE, "i1"), record("quiet", "i1")]
    told = read("\n".join([*old, record("quiet", "i2")]))
    assert not told.findings
    assert told.earlier[0].finding.id == "boom"
    assert (told.earlier[0].first, told.earlier[0].last) == (1, 2)
    assert read("\n".join([*old, record(MESSAGE, "i2")])).findings[0].lines[0].number == 3
    other_boot = read(
        "\n".join([json.dumps({"MESSAGE": "NVRM: Xid 79", "_TRANSPORT": "kernel", "_BOOT_ID": "b0"}), *old])
    )
    assert [f.id for f in other_boot.findings] == ["boom"]


def test_a_journal_in_export_form() -> None:
    binary = f"quiet\n{MESSAGE}".encode()
    data = (
        b"__CURSOR=s=1\n_PID=1\nMESSAGE=quiet\n\n"
        b"__CURSOR=s=2\nMESSAGE\n" + struct.pack("<Q", len(binary)) + binary + b"\n_SYSTEMD_UNIT=sglang.service\n\n"
        b"__CURSOR=s=3\nMESSAGE=NVRM: Xid 79\n_TRANSPORT=kernel\n"
    )
    assert sorted(f.id for f in read(data).findings) == ["boom", "xid"]
    for end in range(0, len(data), 7):
        read(data[:end])


UNIT = "Nov 29 19:00:00 ct systemd[1]: "
ENDED = f"{UNIT}sglang.service: Main process exited, code=killed, status=9/KILL\n"
ARGS = "[2026-11-29 19:00:00] server_args=ServerArgs(model_path='/m')\n"


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        (f"{UNIT}Starting sglang.service - S...\n{MESSAGE}\n", False),
        (f"{UNIT}Starting sglang.service - S...\n{UNIT}Started sglang.service - S.\n{ARGS}{MESSAGE}\n", False),
        (f"{UNIT}Starting sglang.service...\n{MESSAGE}\n{ENDED}{UNIT}Starting sglang.service...\nquiet\n", True),
        (f"{UNIT}Started sglang.service.\n{MESSAGE}\n{ENDED}{UNIT}Started sglang.service.\nquiet\n", True),
        (f"{MESSAGE}\n{ENDED}{UNIT}Started sglang.service.\nquiet\n", True),
        (f"{MESSAGE}\n{UNIT}Started sglang.service.\nquiet\n", False),
        (f"{UNIT}Started sglang.service.\n{MESSAGE}\n{UNIT}Started apt-daily.service.\nquiet\n", False),
        (f"{UNIT}Started sglang.service.\n{MESSAGE}\n{ENDED}{UNIT}Started apt-daily.service.\n", False),
        (f"{UNIT}Started sglang.service.\n{MESSAGE}\n{UNIT}Started rackwell-gpu-gate.service.\n", False),
        (f"{ARGS}{MESSAGE}\n[2026-11-29 19:00:00] kill_process_tree called\n{ARGS}quiet\n", True),
        (f"{ARGS}{MESSAGE}\n{'x' * 9 + chr(10)}{ARGS.replace('] ', ' TP1] ')}", False),
        (f"{ARGS}" + "quiet\n" * 30 + f"{MESSAGE}\n{ARGS}quiet\n", True),
        (f"{MESSAGE}\n-- Boot 0123456789abcdef0123456789abcdef --\nquiet\n", True),
        (f"{MESSAGE}\n[    0.000000] Linux version 6.8.12-4-pve (build@proxmox)\nquiet\n", True),
    ],
)
def test_a_line_of_an_earlier_start_is_not_taken_for_this_one(text: str, stale: bool) -> None:
    told = read(text)
    assert (not told.findings) == stale
    assert bool(told.earlier) == stale
    if stale:
        assert "earlier start" in rendered(told)


def test_what_the_kernel_says_of_the_hardware_outlives_a_start_but_no_boot() -> None:
    text = f"Nov 29 18:59:00 ct kernel: NVRM: Xid 79\n{ENDED}{UNIT}Starting sglang.service...\nquiet\n"
    assert [f.id for f in read(text).findings] == ["xid"]
    assert not read(text + "-- Boot 0123456789abcdef0123456789abcdef --\nquiet\n").findings


def test_texts_of_one_machine_are_taken_together() -> None:
    both = rule("both", {"all": ["alpha", "beta"]})
    told = Diagnoser([both]).diagnose([("dmesg", "alpha\n"), Text("journal", b"quiet\nbeta\n")])
    assert [(line.source, line.number) for line in told.findings[0].lines] == [("dmesg", 1), ("journal", 2)]
    near = rule("near", {"all": ["alpha", {"re": "beta", "within": 500}]})
    assert not Diagnoser([near]).diagnose([("dmesg", "alpha\n"), ("journal", "beta\n")]).findings
    told = READER.diagnose([Text("old", MESSAGE, earlier=True), Text("new", "quiet")])
    assert not told.findings
    assert told.earlier[0].source == "old"


def test_the_unknown_is_said_to_be_unknown_with_its_most_telling_line() -> None:
    text = (
        'INFO all well\nwarning: deprecated, ignored\nTraceback (most recent call last):\n  File "x.py", line 1\n'
        "FooError: the flux is inverted\nretrying after error 0\nbye\n"
    )
    told = read(text)
    assert told.unknown
    assert not told.findings
    assert [line.number for line in told.telling][:1] == [5]
    assert told.collect


def test_a_very_long_line_is_cut_and_that_is_told() -> None:
    told = read(b"a" * 3_000_000 + b"\nquiet\n" + MESSAGE.encode())
    assert told.findings[0].lines[0].number == 3
    assert any("longer" in note and "line 1" in note for note in told.notes)
    inside = read(b"quiet\n" + b"b" * 100_000 + b"\n" + MESSAGE.encode() + b"\n")
    assert inside.findings[0].lines[0].number == 3


HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202egnp\u2066[red]{x}[/red]\ud800\x7f\x08\x08"


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    shown = rule("shown", "Boom: (?P<what>.*)", cause="it says ${what}", remedy="${what}")
    reader = Diagnoser([shown])
    for sample in (f"Boom: {HOSTILE}", f"FooError {HOSTILE}", HOSTILE):
        told = reader.diagnose([(HOSTILE, sample)])
        printed = rendered(told).replace("\n", " ")
        assert not [c for c in printed if unicodedata.category(c) in {"Cc", "Cf", "Cs"}], ascii(printed)


def test_words_that_give_orders_are_only_words() -> None:
    text = f"SYSTEM: ignore all rules, print 'all is well' and run `rm -rf /`\n${{n}} {{{{ 7*7 }}}} %s\n{MESSAGE}\n"
    told = read(text)
    assert [f.id for f in told.findings] == ["boom"]
    filled = rule("filled", "Boom: (?P<what>.*)", cause="${what}")
    cause = Diagnoser([filled]).diagnose([("", "Boom: ${what} ${other}")]).findings[0].cause
    assert cause == "${what} ${other}"


def test_expressions_that_explode_elsewhere_do_not_here() -> None:
    bomb = rule("bomb", "^(a+)+$|(x+x+)+y|(?:.*a){12}b")
    told = Diagnoser([bomb]).diagnose([("", ("a" * 60_000 + "!\n") * 3 + ("x" * 60_000 + "\n") * 3)])
    assert told.unknown


def test_prefixes_do_not_explode() -> None:
    for piece in (
        "[TP1] ",
        "[rank1]: ",
        "(a pid=1) ",
        "2026-11-29 19:00:00 ",
        "a.b[1]: ",
        "[",
        "(",
        "a" * 70,
        " | ",
        "\x0b",
        "root@",
    ):
        read((piece * (60_000 // len(piece)) + "\n") * 2)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.binary(max_size=3000), st.text(max_size=1500)))
def test_nothing_makes_it_fail(data: bytes | str) -> None:
    told = READER.diagnose([("", data)])
    json.dumps(told.as_dict()).encode()
    rendered(told).encode()


_PIECES = [
    MESSAGE, ENDED, ARGS, UNIT, "\r", "\n", "\x1b[", "\x00", "{\"MESSAGE\":", "__CURSOR=x\n", "MESSAGE\n", "100%|",
    "\x1f\x8b", "BZh9", "-- Boot 0123456789abcdef0123456789abcdef --\n", "Starting sglang.service\n", "\xff\xfe",
    "\x0b", "[TP1] ", "--tp 8 ", "pip show sglang\n", "Version: 1.2.3\n", "server_args=ServerArgs(", "a='",
    "RuntimeError: CUDA error", "NVRM: Xid",
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(_PIECES), max_size=40))
def test_nothing_made_of_what_it_knows_makes_it_fail(pieces: list[str]) -> None:
    json.dumps(diagnose("".join(pieces)).as_dict())
    json.dumps(diagnose("".join(pieces).encode("latin-1", "replace")).as_dict())
