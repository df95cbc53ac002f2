# SPDX-License-Identifier: Apache-2.0
"""Holds the kernels on a GPU, a real one or a stand-in, against what they are said to do; prints what differs.

    PYTHONPATH=src python tests/unit/probe/kernel_semantics.py [--large]

Exit status 0: all as it should be.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

from rackwell.probe.data import ALL_ONES, pattern, word
from rackwell.probe.driver import Driver, load
from rackwell.probe.kernels import SCRATCH, Kernels

SEED, POISON = 0xFEDCBA9876543210, 0x0123456789ABCDEF
wrong: list[str] = []


def expect(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        wrong.append(f"{what}: {found!r} instead of {wanted!r}")


def read(driver: Driver, address: int, size: int) -> bytes:
    driver.synchronize()
    buffer = bytearray(size)
    driver.read(address, buffer)
    return bytes(buffer)


def main(size: int) -> int:
    driver = load()
    driver.init()
    device = driver.device(0)
    driver.retain(device)
    one, two, scratch = (driver.allocate(n) for n in (size, size, SCRATCH + 8))
    flag = driver.allocate_host(64)
    flag.set(1)
    kernels = Kernels(driver, device, scratch)
    stream = driver.stream()
    filling(driver, kernels, one, size)
    comparing(driver, kernels, one, size)
    copying(driver, kernels, one, two, size, stream)
    chasing(driver, kernels, one, stream)
    adding(driver, kernels, scratch + SCRATCH, stream)
    driver.write(one, pattern(SEED, 8))
    kernels.warm_up(flag)
    expect("memory after the kernels were started on nothing", read(driver, one, 64), pattern(SEED, 8))
    driver.free_host(flag)
    print("\n".join(wrong) or "all kernels do what they are said to do")
    return 1 if wrong else 0


def filling(driver: Driver, kernels: Kernels, one: int, size: int) -> None:
    kernels.poison(one, size, POISON)
    expect("poison", read(driver, one, size), struct.pack("<Q", POISON) * (size // 8))
    kernels.fill(one, size - 24, SEED)
    tail = read(driver, one + size - 4096, 4096)
    expect("fill, its end", tail, pattern(SEED, 509, size // 8 - 512) + struct.pack("<Q", POISON) * 3)
    expect("fill, its start", read(driver, one, 4096), pattern(SEED, 512))


def comparing(driver: Driver, kernels: Kernels, one: int, size: int) -> None:
    kernels.fill(one, size, SEED)
    found = kernels.compare(one, size, SEED, POISON)
    expect("compare, all right", (found.ok, found.first, found.poisoned, found.zeros), (True, None, 0, 0))
    found = kernels.compare(one, size, SEED ^ 1, POISON)
    expect("compare, another seed", (found.wrong, found.first, found.kind), (size // 8, 0, "other"))
    for index, value in ((1000, POISON), (77, 0), (size // 8 - 1, 5)):
        driver.write(one + 8 * index, struct.pack("<Q", value))
    found = kernels.compare(one, size, SEED, POISON)
    expect("compare, three wrong", (found.wrong, found.first, found.poisoned, found.zeros), (3, 77 * 8, 1, 1))
    found = kernels.compare(one + 8 * 5, 8 * 10, (SEED + 5 * 0x9E3779B97F4A7C15) & ALL_ONES, POISON)
    expect("compare, a part", (found.wrong, word(SEED, 5)), (0, struct.unpack("<Q", read(driver, one + 40, 8))[0]))


def copying(driver: Driver, kernels: Kernels, one: int, two: int, size: int, stream: Any) -> None:
    for part in (16, 4096, size // 3 // 16 * 16, size - 32):
        kernels.fill(one, size, SEED)
        kernels.poison(two, size, POISON)
        driver.synchronize()
        kernels.copy(two, one, part, 3, stream)
        driver.wait(stream)
        found = kernels.compare(two, size, SEED, POISON)
        rest = (size - part) // 8
        wanted = (rest, part, rest)
        expect(f"copy of {part} bytes", (found.wrong, found.first, found.poisoned), wanted)


def chasing(driver: Driver, kernels: Kernels, one: int, stream: Any) -> None:
    kernels.chain(one, 100, 128)
    ring = read(driver, one, 12800)
    pointers = [struct.unpack_from("<Q", ring, 128 * i)[0] for i in range(100)]
    expect("chain", pointers, [one + 128 * ((i + 1) % 100) for i in range(100)])
    for steps, multiprocessor in ((0, 0), (1, 1), (3, 0), (250, kernels.multiprocessors - 1)):
        kernels.chase(one, steps, multiprocessor, stream)
        driver.wait(stream)
        expect(f"chase of {steps} steps", kernels.chased()[1], one + 128 * (steps % 100))


def adding(driver: Driver, kernels: Kernels, counter: int, stream: Any) -> None:
    driver.write(counter, struct.pack("<Q", 3))
    grown = kernels.add(counter, 7, stream)
    driver.wait(stream)
    expect("add", driver.words(counter, 1)[0], 3 + grown)


if __name__ == "__main__":
    raise SystemExit(main((192 << 20) + 4096 if "--large" in sys.argv else 1 << 20))
