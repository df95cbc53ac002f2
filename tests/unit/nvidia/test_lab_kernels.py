# SPDX-License-Identifier: Apache-2.0
"""The stand-in for libcuda does with the probe's kernels what a GPU does with them."""

from __future__ import annotations

import hashlib
import random

import pytest
from labmachine import Machine

STEP = 0x9E3779B97F4A7C15
ALL_ONES = (1 << 64) - 1
SIZE = 1 << 20

START = """
cuda().cuInit(0)
a = context(0); ka = Kernels(a); p = allocate(1 << 20); b = context(1); kb = Kernels(b); q = allocate(1 << 20)
n = 1 << 17
peers(a, b)
"""


def word(seed: int, index: int) -> int:
    z = (seed + index * STEP) & ALL_ONES
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL_ONES
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL_ONES
    return z ^ (z >> 31)


def test_fill_writes_the_pattern(machine: Machine) -> None:
    found = machine.run(START + "ka.start('fill', p, n, 42); answer(words_of(p, 5))")
    assert found == [word(42, index) for index in range(5)]


def test_compare_counts_what_is_wrong(machine: Machine) -> None:
    found = machine.run(
        START
        + """
ka.start("fill", p, n, 42)
out = [ka.compare(p, n, 42, 7), ka.compare(p, n, 43, 7)]
put(c_uint64(p.value + 80), b"other word")
put(c_uint64(p.value + 160), (7).to_bytes(8, "little") * 3)
put(c_uint64(p.value + 320), bytes(8))
further = 42 + 25 * 0x9E3779B97F4A7C15 & (1 << 64) - 1
out += [ka.compare(p, n, 42, 7), ka.compare(c_uint64(p.value + 200), 8, further, 7)]
ka.start("poison", p, n, 7); out.append(ka.compare(p, n, 42, 7))
ka.start("poison", p, n, 0); out.append(ka.compare(p, n, 42, 7))
answer(out)
"""
    )
    n = SIZE // 8
    sound = [0, ALL_ONES, 0, 0]
    assert found == [sound, [n, 0, 0, 0], [6, 10, 3, 1], sound, [n, 0, n, 0], [n, 0, 0, n]]


def test_a_word_that_is_right_by_chance(machine: Machine) -> None:
    found = machine.run(
        START + f"ka.start('poison', p, n, {word(9, 0)}); first = ka.compare(p, n, 9, 1)\n"
        f"ka.start('poison', p, n, {word(9, 77)}); answer([first, ka.compare(p, n, 9, 1)])"
    )
    n = SIZE // 8
    assert found == [[n - 1, 1, 0, 0], [n - 1, 0, 0, 0]]


def test_any_mix_of_writes_reads_like_memory(machine: Machine) -> None:
    """Content that is kept as a rule cannot be told from bytes: random writes, held against a byte array."""
    size, draw = 4096, random.Random(3)
    memory, code = [bytearray(size), bytearray(size)], []
    for number in range(300):
        block, kind = draw.randrange(2), draw.randrange(5)
        at, length = draw.randrange(size), draw.randrange(1, 200)
        length = min(length, size - at)
        name = "pq"[block]
        if kind == 0:
            data = draw.randbytes(length)
            memory[block][at : at + length] = data
            code.append(f"put(c_uint64({name}.value + {at}), {data!r})")
        elif kind == 1:
            memory[block][at : at + length] = bytes([number % 256]) * length
            code.append(f"ok(lib.cuMemsetD8_v2(c_uint64({name}.value + {at}), {number % 256}, c_size_t({length})))")
        elif kind == 2:
            at, words = at // 8 * 8, max(1, length // 8)
            words = min(words, (size - at) // 8)
            data = b"".join(word(number, index).to_bytes(8, "little") for index in range(words))
            memory[block][at : at + 8 * words] = data
            code.append(f"k{'ab'[block]}.start('fill', {name}.value + {at}, {words}, {number})")
        elif kind == 3:
            at, count = at // 4 * 4, max(1, length // 4)
            count = min(count, (size - at) // 4)
            memory[block][at : at + 4 * count] = number.to_bytes(4, "little") * count
            code.append(f"ok(lib.cuMemsetD32_v2(c_uint64({name}.value + {at}), {number}, c_size_t({count})))")
        else:
            other = draw.randrange(2)
            start = draw.randrange(size - length + 1)
            memory[block][at : at + length] = bytes(memory[other][start : start + length])
            code.append(
                f"ok(lib.cuMemcpyAsync(c_uint64({name}.value + {at}), c_uint64({'pq'[other]}.value + {start}), "
                f"c_size_t({length}), None))"
            )
    found = machine.run(START + "\n".join(code) + "\nanswer([get(p, 4096).hex(), get(q, 4096).hex()])")
    assert found == [memory[0].hex(), memory[1].hex()]


def test_large_pieces_that_are_the_same_read_like_memory(machine: Machine) -> None:
    """Writes of more than a MiB are kept once, wherever they go."""
    size, draw = 4 << 20, random.Random(5)
    memory, code = (
        [bytearray(size), bytearray(size)],
        ["rows = [random.Random(i).randbytes(3 << 19) for i in range(3)]"],
    )
    rows = [random.Random(i).randbytes(3 << 19) for i in range(3)]
    for number in range(60):
        block, kind, row = draw.randrange(2), draw.randrange(4), draw.randrange(3)
        name, length = "pq"[block], draw.randrange(1 << 20, len(rows[0]))
        at = draw.randrange(size - length)
        if kind == 0:
            memory[block][at : at + length] = rows[row][:length]
            code.append(f"put(c_uint64({name}.value + {at}), rows[{row}][:{length}])")
        elif kind == 1:
            at, length = at // 8 * 8, length // 8 * 8
            memory[block][at : at + length] = number.to_bytes(8, "little") * (length // 8)
            code.append(f"k{'ab'[block]}.start('poison', {name}.value + {at}, {length // 8}, {number})")
        elif kind == 2:
            memory[block][at : at + 5] = b"small"
            code.append(f"put(c_uint64({name}.value + {at}), b'small')")
        else:
            start, other = draw.randrange(size - length), draw.randrange(2)
            memory[block][at : at + length] = bytes(memory[other][start : start + length])
            code.append(
                f"ok(lib.cuMemcpyAsync(c_uint64({name}.value + {at}), c_uint64({'pq'[other]}.value + {start}), "
                f"c_size_t({length}), None))"
            )
    found = machine.run(
        "import hashlib, random\n"
        + START.replace("1 << 20", str(size))
        + "\n".join(code)
        + "\nanswer([hashlib.sha256(get(x, 4 << 20)).hexdigest() for x in (p, q)])"
    )
    assert found == [hashlib.sha256(block).hexdigest() for block in memory]


def test_copy_pushes_and_pulls(machine: Machine) -> None:
    p2p = {"gb_per_s": {"same_switch": 50}, "kernel_factor": 0.9, "kernel_read_factor": 0.8, "latency_us": 0}
    machine.state(p2p=p2p)
    found = machine.run(
        START
        + """
ka.start("fill", p, n, 5)
def timed(k, *numbers):
    clock = Clock(k.c); k.start("copy", *numbers); clock.stop(); return round(4 * (1 << 20) / clock.read() / 1e3, 1)
push = timed(ka, q, p, 1 << 16, 4)
wrong = kb.compare(q, n, 5)[0]
kb.start("poison", q, n, 0); pull = timed(kb, q, p, 1 << 16, 4)
answer([push, wrong, pull, kb.compare(q, n, 5)[0], ka.compare(p, n, 5)[0]])
"""
    )
    assert found == [45.0, 0, 40.0, 0, 0]


def test_a_corrupt_way_hits_kernels_too(machine: Machine) -> None:
    machine.state(p2p={"corrupt_pairs": [[0, 1]]})
    code = (
        START
        + """
ka.start("fill", p, n, 5); kb.start("poison", q, n, 7)
ka.start("copy", q, p, 1 << 16, 1); pushed = kb.compare(q, n, 5, 7)
kb.start("poison", q, n, 7)
kb.start("copy", q, p, 1 << 16, 1); pulled = kb.compare(q, n, 5, 7)
kb.start("fill", q, n, 6); ka.start("poison", p, n, 7); kb.start("copy", p, q, 1 << 16, 1)
answer([pushed, pulled, ka.compare(p, n, 6, 7)[0], kb.compare(q, n, 6, 7)[0]])
"""
    )
    middle = SIZE // 16
    assert machine.run(code) == [[8, middle, 0, 0], [8, middle, 0, 0], 0, 0]
    machine.state(p2p={"corrupt_pairs": [[0, 1]], "corrupt_kind": "dropped", "corrupt_bytes": SIZE})
    assert machine.run(code)[:2] == [[SIZE // 8, 0, SIZE // 8, 0]] * 2
    machine.state(p2p={"corrupt_pairs": [[0, 1]], "corrupt_kind": "zero"})
    assert machine.run(code)[:2] == [[8, middle, 0, 8]] * 2
    machine.state(p2p={"corrupt_pairs": [[0, 1]], "corrupt_engine": "copy"})
    assert machine.run(code)[:2] == [[0, ALL_ONES, 0, 0]] * 2


def test_chase_follows_the_chain_and_takes_the_way_each_step(machine: Machine) -> None:
    machine.state(p2p={"latency_us": {"same_switch": 0.8, "cross_numa": 1.5, "local": 0.3}})
    found = machine.run("""
cuda().cuInit(0)
c = {i: context(i) for i in (0, 1, 7)}; peers(*c.values())
k = {i: Kernels(c[i]) for i in c if not current(c[i])}
out = []
current(c[0]); r = allocate(16)
for at in c:
    current(c[at]); m = allocate(1 << 16)
    k[at].start("chain", m, 10, 4096); ok(lib.cuCtxSynchronize())
    clock = Clock(c[0]); k[0].start("chase", m, 1003, r); clock.stop(); us = clock.read()
    cycles, last = words_of(r, 2)
    out.append([round(cycles / 2430 / 1003, 3), round(us / 1003, 3), (last - m.value) // 4096])
answer(out)
""")
    assert found == [[0.3, 0.3, 3], [0.8, 0.8, 3], [1.5, 1.5, 3]]


def test_atomics_are_whole_where_the_way_has_them(machine: Machine) -> None:
    code = (
        START
        + """
current(b); put(q, bytes(8)); put(c_uint64(q.value + 8), bytes(8))
kb.start("add", q, 3, threads=64); ok(lib.cuCtxSynchronize()); own = words_of(q, 1)[0]
ka.start("add", q.value + 8, 3, threads=64); ok(lib.cuCtxSynchronize())
v = c_int(); ok(lib.cuDeviceGetP2PAttribute(byref(v), 3, 0, 1))
answer([own, words_of(c_uint64(q.value + 8), 1)[0], v.value])
"""
    )
    assert machine.run(code) == [192, 3, 0]
    machine.state(p2p={"native_atomics": True})
    assert machine.run(code) == [192, 192, 1]


def test_a_flag_in_host_memory_holds_nothing_up(machine: Machine) -> None:
    found = machine.run(
        START
        + """
h, d = c_void_p(), c_uint64(); current(a); s = new_stream(a)
ok(lib.cuMemHostAlloc(byref(h), c_size_t(4096), 3)); ok(lib.cuMemHostGetDevicePointer_v2(byref(d), h, 0))
ctypes.memset(h, 0, 4096)
ka.start("spin", d, stream=s); clock = Clock(a, s); ka.start("copy", q, p, 1 << 16, 1, stream=s); clock.stop()
ctypes.c_uint32.from_address(h.value).value = 1
us = clock.read()
ka.start("poison", d, 2, 0x4142434445464748); answer([us > 0, ctypes.string_at(h, 16).decode()])
"""
    )
    assert found == [True, "HGFEDCBAHGFEDCBA"]


def test_reaching_without_access_breaks_the_context(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0)
a = context(0); k = Kernels(a); p = allocate(4096); b = context(1); q = allocate(4096)
started = k.try_start("copy", q, p, 16, 1)
out = [started, lib.cuCtxSynchronize(), lib.cuMemsetD8_v2(p, 1, c_size_t(1))]
current(b); out += [lib.cuMemsetD8_v2(q, 1, c_size_t(1)), lib.cuCtxDestroy_v2(a)]
a = context(0); k = Kernels(a); k.try_start("fill", allocate(64).value + 4, 1, 1); out.append(lib.cuCtxSynchronize())
answer(out)
""")
    assert found == [0, 700, 700, 0, 0, 716]


def test_modules_that_the_driver_refuses(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0); context(0)
head = b".version 7.0\\n.target sm_75\\n.address_size 64\\n"
def load(text):
    m = c_void_p(); return lib.cuModuleLoadData(byref(m), text), m
def log(text):
    m, buffer = c_void_p(), ctypes.create_string_buffer(256)
    code = lib.cuModuleLoadDataEx(byref(m), text, 2, (c_int * 2)(5, 6), (c_void_p * 2)(ctypes.addressof(buffer), 256))
    return code, buffer.value.decode()
good, m = load(b"// one\\n/* two */ " + head + b".visible .entry mine(.param .u64 x) { ret; }")
f = c_void_p()
answer([good, load(b"hello")[0], load(head + b".entry x() { {")[0], load(b"\\x7fELF....")[0],
        load(b".version 9.9\\n.target sm_75\\n")[0], load(b".version 7.0\\n.target sm_130\\n")[0],
        log(b"hello")[0], "Missing .version" in log(b"hello")[1],
        lib.cuModuleGetFunction(byref(f), m, b"other"), lib.cuModuleGetFunction(byref(f), m, b"mine"),
        lib.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, None, (c_void_p * 1)(ctypes.addressof(c_uint64(0))), None),
        lib.cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, None, None, None), lib.cuModuleUnload(m), lib.cuModuleUnload(m)])
""")
    assert found == [0, 218, 218, 209, 222, 209, 218, True, 500, 0, 801, 1, 0, 400]


@pytest.mark.parametrize("fault", [{"errors": {"rackwell_copy": 702}}, {"errors": {"cuLaunchKernel": 702}}])
def test_faults_of_a_kernel(machine: Machine, fault: dict[str, object]) -> None:
    machine.state(**fault)
    assert machine.run(START + "answer(ka.try_start('copy', q, p, 1, 1))") == 702
