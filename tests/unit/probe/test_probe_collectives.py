# SPDX-License-Identifier: Apache-2.0
"""All-reduce: the method and its check in this process, and what a child makes of a missing, broken or hanging NCCL."""

from __future__ import annotations

import array
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nccl import FakeDriver, FakeNccl, decoded

from rackwell.probe import allreduce, collectives
from rackwell.probe.child import Outcome
from rackwell.probe.collectives import QUICK_SIZES
from rackwell.probe.nccl import BFLOAT16, FLOAT32, LIBRARY, Nccl, NcclAbsentError, NcclError, load

SIZES = (64, 256, 1024)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "SIZES", SIZES)
    monkeypatch.setattr(collectives, "QUICK_SIZES", SIZES[:2])
    monkeypatch.setattr(collectives, "BFLOAT16_BYTES", 256)


def run(gpus: int = 4, quick: bool = False, change: Callable[[FakeNccl], None] | None = None) -> tuple[Any, Any, Any]:
    """The report, and the stand-ins that it was made with."""
    driver = FakeDriver(gpus)
    api = FakeNccl(driver)
    if change:
        change(api)
    events: list[dict[str, Any]] = []
    collectives.exercise(events.append, Nccl(api), driver, quick)  # type: ignore[arg-type]
    return collectives._report(Outcome(tuple(events), "done", 0), None), api, driver


def test_every_size_is_timed_and_checked() -> None:
    report, api, driver = run()
    assert (report["state"], report["ranks"], report["wrong"]) == ("measured", 4, 0)
    assert [point["bytes"] for point in report["points"]] == list(SIZES)
    point = report["points"][2]
    # 10 us a sum: 1024 bytes are 0.1024 GB/s, times 2(n-1)/n
    assert (point["us"], point["algbw"], point["busbw"]) == (10.0, 0.102, 0.154)
    assert point["samples_us"] == [10.0] * allreduce.SAMPLES
    assert [point["inplace"] and point["inplace"]["wrong"] for point in report["points"]] == [0, 0, None]
    assert report["points"][0]["inplace"]["us"] == 10.0
    assert (report["bfloat16"]["bytes"], report["bfloat16"]["wrong"]) == (256, 0)
    assert {call[3] for call in api.calls} == {FLOAT32, BFLOAT16}
    assert driver.memory == {}
    assert driver.released == [0, 1, 2, 3]


def test_quick_measures_less() -> None:
    report, api, _ = run(quick=True)
    assert [point["bytes"] for point in report["points"]] == list(SIZES[:2])
    assert [point["inplace"] for point in report["points"]] == [None, None]
    assert report["bfloat16"] is None
    assert all(send != receive for send, receive, *_ in api.calls)


def test_the_quick_sizes_are_of_the_full_list() -> None:
    assert allreduce.SIZES[0] == 8192
    assert allreduce.SIZES[-1] == 256 << 20
    assert len(QUICK_SIZES) == 3
    assert set(QUICK_SIZES) <= set(allreduce.SIZES)


def test_timed_sums_walk_through_the_buffer_and_stay_in_it() -> None:
    _, api, _ = run()
    offsets = [call[0] & 0xFFFFFFFF for call in api.calls if call[2] == 256 // 4 and call[3] == FLOAT32]
    assert set(offsets) == {0, 256, 512, 768}
    assert all((call[0] & 0xFFFFFFFF) + call[2] * 4 <= 1024 for call in api.calls if call[3] == FLOAT32)


@pytest.mark.parametrize(
    ("rank", "spoil", "wrong"),
    [
        (2, lambda data: data.__setitem__(slice(4, 8), b"\0\0\0\0"), 1),
        (0, lambda data: data.__setitem__(7, data[7] ^ 0x80), 1),
        (3, lambda data: data.__setitem__(slice(0, len(data)), bytes(len(data))), 16),
    ],
)
def test_wrong_elements_are_counted(rank: int, spoil: Callable[[bytearray], None], wrong: int) -> None:
    def change(api: FakeNccl) -> None:
        api.spoil = lambda at, data: spoil(data) if at == rank and len(data) == 64 else None

    report, _, _ = run(change=change)
    assert report["state"] == "measured"
    assert (report["points"][0]["wrong"], report["points"][0]["inplace"]["wrong"]) == (wrong, wrong)
    assert report["wrong"] == 2 * wrong
    assert report["points"][1]["wrong"] == 0


def test_a_sum_that_never_arrives_is_wrong() -> None:
    class Dropping(FakeNccl):
        def ncclGroupEnd(self) -> int:  # noqa: N802
            self.driver.clock += 0.01
            return 0

    driver = FakeDriver(2)
    events: list[dict[str, Any]] = []
    collectives.exercise(events.append, Nccl(Dropping(driver)), driver, True)  # type: ignore[arg-type]
    report = collectives._report(Outcome(tuple(events), "done", 0), None)
    assert [point["wrong"] for point in report["points"]] == [2 * 64 // 4, 2 * 256 // 4]


def test_a_rank_that_is_left_out_is_seen_in_every_element() -> None:
    class Forgetting(FakeNccl):
        def ncclGroupEnd(self) -> int:  # noqa: N802
            send = self.group[1][0]
            size = self.group[1][2] * 4
            kept = bytearray(size)
            self.driver.read(send, kept)
            self.driver.write(send, bytes(size))
            return super().ncclGroupEnd()

    driver = FakeDriver(2)
    machine = allreduce.Machine(Nccl(Forgetting(driver)), driver, 2, 1024)  # type: ignore[arg-type]
    machine.connect()
    assert machine.wrong(1024, FLOAT32, in_place=False) == 2 * 256


def test_one_gpu_has_nobody_to_sum_with() -> None:
    report, _, _ = run(gpus=1)
    assert (report["state"], report["points"]) == ("skipped", [])


@pytest.mark.parametrize(
    ("call", "code", "name", "step"),
    [
        ("ncclCommInitAll", 2, "ncclSystemError", "ncclCommInitAll"),
        ("ncclAllReduce", 4, "ncclInvalidArgument", "warm-up"),
        ("ncclGroupEnd", 1, "ncclUnhandledCudaError", "warm-up"),
        ("async", 6, "ncclRemoteError", "warm-up"),
    ],
)
def test_errors_have_names_and_nccls_last_words(call: str, code: int, name: str, step: str) -> None:
    driver = FakeDriver(2)
    api = FakeNccl(driver)
    api.errors = {call: code}
    events: list[dict[str, Any]] = []
    with pytest.raises(NcclError) as caught:
        collectives.exercise(events.append, Nccl(api), driver, True)  # type: ignore[arg-type]
    assert (caught.value.name, caught.value.code, caught.value.detail) == (name, code, "the cable is out")
    assert [event["begin"] for event in events if "begin" in event][-1] == step


def test_version() -> None:
    assert Nccl(FakeNccl(FakeDriver(2))).version() == "2.27.5"


def begun(step: str, size: int | None = None) -> dict[str, Any]:
    return {"begin": step, **({"bytes": size} if size else {})}


def test_a_hang_names_its_size_and_keeps_what_was_measured() -> None:
    scope = {"bytes": 64, "kind": FLOAT32, "in_place": False}
    events = (
        {"ranks": 2},
        begun("time", 64),
        {"point": {"samples_us": [3.0, 1.0, 2.0], "wrong": 0}, **scope},
        begun("time", 256),
    )
    report = collectives._report(Outcome(events, "hung", -9, "state S"), "/x/libnccl.so.2")
    assert (report["state"], report["at"]) == ("hung", {"step": "time", "bytes": 256})
    assert report["why"] == "did not return in the step 'time' at 256 bytes"
    assert "did not return before the deadline" in report["detail"]
    assert [point["us"] for point in report["points"]] == [2.0]


def test_a_crash_is_a_failure() -> None:
    report = collectives._report(Outcome((begun("ncclCommInitAll"),), "crashed", -11, stderr="boom\n"), None)
    assert (report["state"], report["error"]["name"]) == ("failed", "CRASH")
    assert report["detail"] == "ended with signal 11: boom"


@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16])
def test_the_numbers_are_exact_and_differ_by_rank_and_element(kind: int) -> None:
    numbers = allreduce.Numbers(8, kind)
    ranks = [decoded(block, numbers.width) for block in numbers.blocks]
    total = decoded(numbers.total, numbers.width)
    assert [sum(values) for values in zip(*ranks, strict=True)] == list(total)
    assert min(min(values) for values in ranks) >= 1
    assert max(total) <= (255 if kind == BFLOAT16 else (1 << 24) - 1)
    assert len({bytes(block) for block in numbers.blocks}) == 8
    assert allreduce.Numbers(8, kind).total != numbers.total


@pytest.mark.parametrize("width", [2, 4])
def test_differing_counts_elements(width: int) -> None:
    expected = bytes(range(64))
    found = bytearray(expected)
    assert allreduce.differing(expected, found, width) == 0
    found[0] ^= 1  # two bytes of one element, one byte of the last
    found[width - 1] ^= 0x80
    found[-1] ^= 4
    assert allreduce.differing(expected, found, width) == 2


def test_pieces_cover_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "_CHUNK", 32)
    block = bytes(range(12))
    pieces = allreduce._pieces(block, 100)
    assert b"".join(piece for _, piece in pieces) == (block * 9)[:100]
    place = 0
    for offset, piece in pieces:
        assert offset == place
        place += len(piece)


def test_the_releases_library_comes_before_the_systems(tmp_path: Path) -> None:
    place = tmp_path / "opt/rackwell/current/env/lib/python3.12/site-packages/nvidia/nccl/lib" / LIBRARY
    place.parent.mkdir(parents=True)
    place.write_bytes(b"no library")
    with pytest.raises(NcclError) as caught:
        load(None, tmp_path)
    assert caught.value.name == "LIBRARY_NOT_LOADABLE"
    assert str(place) in caught.value.detail


def test_a_declared_library_must_be_there(tmp_path: Path) -> None:
    report = collectives.measure({}, str(tmp_path / "none.so"), 30, quick=True, root=tmp_path)
    assert (report["state"], report["error"]["name"]) == ("failed", "LIBRARY_NOT_FOUND")
    assert str(tmp_path / "none.so") in report["detail"]


def test_no_nccl_is_told_with_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        load(None, tmp_path)
    except NcclAbsentError:
        pass
    else:
        pytest.skip("this machine has an NCCL")
    report = collectives.measure({}, None, 30, quick=True, root=tmp_path)
    assert report["state"] == "absent"
    assert "opt/rackwell/current/env" in report["looked"][0]
    assert report["looked"][1] == "the loader's search path"
    assert report["looked"][0] in report["why"]


_SOURCE = """
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int ncclGetVersion(int *v) { *v = 22803; return 0; }
const char *ncclGetLastError(void *c) { return getenv("NCCL_SAY"); }
int ncclCommInitAll(void **c, int n, const int *d) {
  const char *what = getenv("NCCL_WHAT");
  if (what && !strcmp(what, "hang")) for (;;) pause();
  if (what && !strcmp(what, "crash")) abort();
  return n == 2 && d[0] == 0 && d[1] == 1 ? 3 : 4;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    place = tmp_path_factory.mktemp("nccl")
    (place / "nccl.c").write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", place / LIBRARY, place / "nccl.c"], check=True)
    return str(place / LIBRARY)


@pytest.mark.parametrize(
    ("what", "state", "name"),
    [("hang", "hung", None), ("crash", "failed", "CRASH"), ("", "failed", "ncclInternalError")],
)
def test_a_child_with_a_library(library: str, what: str, state: str, name: str | None) -> None:
    environment = {"NCCL_WHAT": what, "NCCL_SAY": "as the server has it"}
    report = collectives.measure(environment, library, 5 if what == "hang" else 60, quick=True)
    assert (report["state"], report["at"]["step"]) == (state, "ncclCommInitAll")
    assert (report["library"], report["nccl_version"], report["ranks"]) == (library, "2.28.3", 2)
    assert (report["error"] or {}).get("name") == name
    if not what:
        assert report["detail"] == "as the server has it"


def test_skipped_has_the_same_shape() -> None:
    report = collectives.skipped("the server runs")
    assert (report["state"], report["why"]) == ("skipped", "the server runs")
    assert set(report) == set(collectives._report(Outcome((), "done", 0), None))


def test_figures_of_an_even_number_of_samples() -> None:
    assert collectives.figures(1000, 2, [1.0, 4.0, 2.0, 3.0])["us"] == 2.5
    assert array.array("f", [1.0]).itemsize == 4  # what encoded() builds on
