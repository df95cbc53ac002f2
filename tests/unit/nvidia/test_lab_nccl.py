# SPDX-License-Identifier: Apache-2.0
"""The stand-in for NCCL sums what is in the stand-in's memory, in modelled time, and has its faults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from labmachine import Machine

START = """
import struct
cuda(); nc = ctypes.CDLL("libnccl.so.2"); ok(lib.cuInit(0))
def primary(device):
    c = c_void_p(); ok(lib.cuDevicePrimaryCtxRetain(byref(c), device)); current(c); return c
class Ring:
    def __init__(self, n, size):
        self.n, self.size, self.c = n, size, [primary(i) for i in range(n)]
        self.comms = (c_void_p * n)(); ok(nc.ncclCommInitAll(self.comms, n, (c_int * n)(*range(n))))
        self.send, self.receive, self.s = [], [], []
        for c in self.c:
            current(c); self.send.append(allocate(size)); self.receive.append(allocate(size))
            self.s.append(new_stream(c))
    def put(self, rank, data): current(self.c[rank]); put(self.send[rank], data)
    def get(self, rank, size): current(self.c[rank]); return get(self.receive[rank], size)
    def one(self, rank, count, kind=7, send=None, receive=None):
        current(self.c[rank])
        send, receive = (send or self.send[rank]).value, (receive or self.receive[rank]).value
        return nc.ncclAllReduce(c_void_p(send), c_void_p(receive), c_size_t(count), kind, 0, c_void_p(self.comms[rank]),
                                self.s[rank])
    def all(self, count, kind=7, in_place=False):
        ok(nc.ncclGroupStart())
        for r in range(self.n): ok(self.one(r, count, kind, send=self.receive[r] if in_place else None))
        ok(nc.ncclGroupEnd())
    def wait(self):
        for c, s in zip(self.c, self.s): current(c); ok(lib.cuStreamSynchronize(s))
"""


def test_version_ranks_and_texts(machine: Machine) -> None:
    found = machine.run(
        START
        + """
v, n, r = c_int(), c_int(), c_int(); ok(nc.ncclGetVersion(byref(v))); ring = Ring(3, 64)
ok(nc.ncclCommCount(c_void_p(ring.comms[2]), byref(n))); ok(nc.ncclCommUserRank(c_void_p(ring.comms[2]), byref(r)))
nc.ncclGetErrorString.restype = c_char_p
ends = [("Finalize", 0), ("Destroy", 0), ("Abort", 1)]
ends = [getattr(nc, "ncclComm" + name)(c_void_p(ring.comms[r])) for name, r in ends]
answer([v.value, n.value, r.value, nc.ncclGetErrorString(3).decode(), ends])
"""
    )
    assert found == [22705, 3, 2, "internal error", [0, 0, 0]]


@pytest.mark.parametrize(
    ("kind", "letter", "values"),
    [
        (0, "b", [1, -2, 3]),
        (1, "B", [1, 2, 3]),
        (2, "i", [1, -200000, 3]),
        (3, "I", [1, 2, 1 << 20]),
        (4, "q", [1 << 40, -2, 3]),
        (5, "Q", [1 << 40, 2, 3]),
        (6, "e", [1.5, -2.25, 1000.0]),
        (7, "f", [1.5, -2.25, 65537.0]),
        (8, "d", [0.1, -2.25, 65537.0]),
    ],
)
def test_types(machine: Machine, kind: int, letter: str, values: list[float]) -> None:
    found = machine.run(
        START
        + f"""
ring = Ring(2, 64)
ring.put(0, struct.pack("<3{letter}", *{values})); ring.put(1, struct.pack("<3{letter}", *{values}))
ring.all(3, {kind}); ring.wait()
answer([list(struct.unpack("<3{letter}", ring.get(r, struct.calcsize("<3{letter}")))) for r in range(2)])
"""
    )
    assert found == [[value * 2 for value in values]] * 2


def test_bfloat16_rounds_to_even(machine: Machine) -> None:
    found = machine.run(
        START
        + """
ring = Ring(2, 64)
def halves(*numbers): return b"".join(struct.pack("<f", x)[2:] for x in numbers)
ring.put(0, halves(1.0, 128.0, 129.0)); ring.put(1, halves(2.0, 0.5, 0.5))
ring.all(3, 9); ring.wait(); data = ring.get(1, 6)
answer([struct.unpack("<f", b"\\0\\0" + data[i:i + 2])[0] for i in (0, 2, 4)])
"""
    )
    assert found == [3.0, 128.0, 130.0]


def test_repeated_sums_are_those_of_doing_them_one_by_one(machine: Machine) -> None:
    found = machine.run(
        START
        + """
ring = Ring(3, 1 << 20)
rows = [[1.0, 2.0, 3.0, 4.5], [10.0, 20.0, 30.0, 0.25], [7.0, 0.0, -3.0, 2.0]]
for r in range(3): ring.put(r, struct.pack("<4f", *rows[r]) * (1 << 16))
for _ in range(4): ring.all(1 << 18)          # out of place: the same each time
for _ in range(3): ring.all(1 << 18, in_place=True)   # threefold each time
ring.wait()
first = [list(struct.unpack("<4f", ring.get(r, 1 << 20)[-16:])) for r in range(3)]
current(ring.c[0]); ok(lib.cuMemsetD32_v2(ring.send[0], 0, c_size_t(1 << 18)))
for r in (1, 2): current(ring.c[r]); ok(lib.cuMemsetD32_v2(ring.send[r], 0x3f800000, c_size_t(1 << 18)))
ring.all(1 << 18); ring.all(2, in_place=True); ring.wait()
answer([first, [list(struct.unpack("<4f", ring.get(r, 16))) for r in range(3)]])
"""
    )
    assert found == [[[18.0 * 27, 22.0 * 27, 30.0 * 27, 6.75 * 27]] * 3, [[6.0, 6.0, 2.0, 2.0]] * 3]


def test_sums_of_large_pieces(machine: Machine) -> None:
    found = machine.run(
        START
        + """
import array
SIZE = 8 << 20; ring = Ring(3, SIZE)
period = [array.array("f", [float(r + 1 + i % 7) for i in range(4099)]).tobytes() for r in range(3)]
whole = [p * 128 for p in period]
def write(addresses):
    for r in range(3):
        current(ring.c[r])
        for at in range(0, SIZE, len(whole[r])): put(c_uint64(addresses[r].value + at), whole[r][:SIZE - at])
def right(rank, factor):
    total = array.array("f", [factor * (6.0 + 3 * (i % 7)) for i in range(4099)]).tobytes()
    return ring.get(rank, SIZE) == (total * (SIZE // len(total) + 1))[:SIZE]
write(ring.send); ring.all(SIZE // 4); ring.all(SIZE // 4); ring.wait(); out = [right(r, 1) for r in range(3)]
ring.all(SIZE // 4, in_place=True); ring.all(SIZE // 4, in_place=True); ring.wait()
out += [right(r, 9) for r in range(3)]
write(ring.receive); current(ring.c[1])
put(c_uint64(ring.receive[1].value + 6), b"x"); put(c_uint64(ring.receive[1].value), period[1][:8])
ring.all(SIZE // 4, in_place=True); ring.wait(); out += [right(r, 1) for r in range(3)]
answer(out)
"""
    )
    assert found == [True] * 9


def test_time_is_latency_and_bus_bandwidth(machine: Machine) -> None:
    machine.state(nccl={"gb_per_s": 20, "latency_us": 50})
    code = (
        START
        + """
ring = Ring(8, 64 << 20)
def us(size):
    ring.all(size // 4); clocks = [Clock(c, s) for c, s in zip(ring.c, ring.s)]
    for _ in range(3): ring.all(size // 4)
    for c in clocks: c.stop()
    return max(c.read() for c in clocks) / 3
answer([us(4), us(64 << 20)])
"""
    )
    small, large = machine.run(code)
    assert small == pytest.approx(50, rel=1e-3)
    assert large == pytest.approx(50 + 2 * 7 / 8 * (64 << 20) / 20e3, rel=1e-3)
    machine.gpu(5, pcie_gen=2)
    gen2 = 0.75 * 53.5 * 0.5 / 3.938 * 1e3
    assert machine.run(code)[1] == pytest.approx(50 + 2 * 7 / 8 * (64 << 20) / gen2, rel=1e-3)


def test_a_rank_that_never_comes_is_waited_for(machine: Machine) -> None:
    process = machine.start(
        START
        + """
ring = Ring(2, 64); ok(ring.one(0, 4)); ok(ring.one(0, 4))
print("started", flush=True); current(ring.c[0]); lib.cuStreamSynchronize(ring.s[0]); print("came back", flush=True)
"""
    )
    _hangs(process, "started\n")


def test_hang(machine: Machine) -> None:
    machine.state(nccl={"hang": True})
    _hangs(
        machine.start(
            START
            + """
ring = Ring(2, 64); ring.all(4); print("started", flush=True); ring.wait(); print("came back", flush=True)
"""
        ),
        "started\n",
    )


def _hangs(process: object, first: str) -> None:
    try:
        assert process.stdout.readline() == first  # type: ignore[attr-defined]
        path = Path(f"/proc/{process.pid}/syscall")  # type: ignore[attr-defined]
        while path.read_text().split(" ", 1)[0] != "202":  # futex: it waits for something that nobody does
            assert process.poll() is None, "it came back"  # type: ignore[attr-defined]
            os.sched_yield()
    finally:
        process.kill()  # type: ignore[attr-defined]
        out, _ = process.communicate()  # type: ignore[attr-defined]
    assert out == ""


def test_ranks_that_come_one_by_one_meet(machine: Machine) -> None:
    found = machine.run(
        START
        + """
import threading
uid = (ctypes.c_char * 128)(); ok(nc.ncclGetUniqueId(uid))
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
out = {}
def rank(r):
    c = primary(r); comm = c_void_p(); ok(nc.ncclCommInitRank(byref(comm), 2, Id.from_buffer_copy(uid), r))
    p = allocate(4); put(p, struct.pack("<f", r + 1.0)); s = new_stream(c)
    ok(nc.ncclAllReduce(p, p, c_size_t(1), 7, 0, comm, s)); ok(lib.cuStreamSynchronize(s))
    out[r] = struct.unpack("<f", get(p, 4))[0]
threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
answer([out[0], out[1]])
"""
    )
    assert found == [3.0, 3.0]


@pytest.mark.parametrize(
    "fault",
    [{"nccl": {"wrong_results": True}}, {"p2p": {"corrupt_pairs": [[0, 1]]}}, {"p2p": {"corrupt_pairs": [[1, 0]]}}],
)
def test_wrong_results(machine: Machine, fault: dict[str, object]) -> None:
    machine.state(**fault)
    found = machine.run(
        START
        + """
ring = Ring(2, 4096)
for r in range(2): ring.put(r, struct.pack("<f", 3.0) * 1024)
ring.all(1024); ring.wait()
answer([sum(x != 6.0 for x in struct.unpack("<1024f", ring.get(r, 4096))) for r in range(2)])
"""
    )
    assert found == [0, 16]


def test_errors(machine: Machine) -> None:
    machine.state(nccl={"errors": {"ncclCommInitAll": 2}, "async_error": 6})
    assert machine.run(START + "answer(nc.ncclCommInitAll((c_void_p * 2)(), 2, None))") == 2
    machine.state(nccl={"error": 1, "async_error": 6})
    found = machine.run(
        START
        + """
ring = Ring(2, 64); e = c_int(-1); out = [ring.one(0, 4)]
ok(nc.ncclCommGetAsyncError(c_void_p(ring.comms[0]), byref(e))); nc.ncclGetLastError.restype = c_char_p
answer([*out, e.value, nc.ncclGetLastError(None).decode()])
"""
    )
    assert found == [1, 0, "as the state file of the laboratory says"]
    machine.state(nccl={"async_error": 6})
    found = machine.run(
        START
        + """
ring = Ring(2, 64); e = c_int(-1); ring.all(4); ok(nc.ncclCommGetAsyncError(c_void_p(ring.comms[0]), byref(e)))
bad = [nc.ncclAllReduce(ring.send[0], ring.receive[0], c_size_t(4), 7, 1, c_void_p(ring.comms[0]), None),
       nc.ncclAllReduce(ring.send[1], ring.receive[1], c_size_t(4), 7, 0, c_void_p(ring.comms[0]), None),
       nc.ncclGroupEnd(), nc.ncclCommInitAll((c_void_p * 2)(), 2, (c_int * 2)(1, 1))]
answer([e.value, *bad])
"""
    )
    assert found == [6, 4, 1, 5, 5]
