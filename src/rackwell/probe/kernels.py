# SPDX-License-Identifier: Apache-2.0
"""The probe's kernels on one GPU: what each is for is said in ``kernels.ptx``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rackwell.probe.data import ALL_ONES, WORD
from rackwell.probe.driver import DEFAULT_STREAM, Driver, HostMemory

SOURCE = Path(__file__).with_name("kernels.ptx")
NAMES = ("fill", "poison", "compare", "copy", "chain", "chase", "add", "spin")
THREADS = 512
VECTOR = 16
#: device memory that Kernels wants for results, bytes
SCRATCH = 64
# blocks on each multiprocessor for the kernels that are not to measure anything but only to be done soon
_BUSY = 3


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How memory differs from a pattern.

    Attributes:
        words: how many 64-bit words were compared.
        wrong: how many of them are wrong.
        first: byte offset of the first wrong one, None if there is none.
        poisoned: how many of the wrong ones hold what was there before.
        zeros: how many of the wrong ones are zero.
    """

    words: int
    wrong: int
    first: int | None
    poisoned: int
    zeros: int

    @property
    def ok(self) -> bool:
        return self.wrong == 0

    @property
    def kind(self) -> str | None:
        """``dropped`` = all wrong words are as they were before, ``zero``, ``other``; None if none is wrong."""
        if not self.wrong:
            return None
        if self.poisoned == self.wrong:
            return "dropped"
        return "zero" if self.zeros == self.wrong else "other"

    def describe(self) -> str:
        """One clause for people."""
        if not self.wrong:
            return f"all {self.words} words are right"
        kind = {"dropped": ", all of them as they were before", "zero": ", all of them zero"}.get(self.kind or "", "")
        return f"{self.wrong} of {self.words} words are wrong, the first at byte {self.first}{kind}"


class Kernels:
    """The kernels loaded into the context that is current; it must be current again whenever one is started.

    Args:
        driver: CUDA.
        device: the GPU of the context.
        scratch: ``SCRATCH`` bytes of its memory, for results.

    Raises DriverError, e.g. when the driver cannot compile for the GPU.
    """

    def __init__(self, driver: Driver, device: Any, scratch: int) -> None:
        self._driver, self._scratch = driver, scratch
        self.multiprocessors = driver.multiprocessors(device)
        self._module = driver.module(SOURCE.read_bytes())
        self._functions = {name: driver.function(self._module, f"rackwell_{name}") for name in NAMES}

    def warm_up(self, released: HostMemory) -> None:
        """Have each kernel run once, on nothing: the driver loads a kernel at its first start, which waits for what
        runs already; behind a spin kernel that would never end. ``released`` is a flag that is set.
        """
        empty = {"fill": 3, "poison": 3, "copy": 4, "chain": 3, "add": 2, "compare": 5}
        for name, parameters in empty.items():
            self._launch(name, 1, 1, *[0] * parameters)
        self._launch("chase", 1, 1, self._scratch, 0, self._scratch)
        self._launch("spin", 1, 1, released.device)
        self._driver.synchronize()

    def unload(self) -> None:
        self._driver.unload(self._module)

    def fill(self, address: int, size: int, seed: int, stream: Any = DEFAULT_STREAM) -> None:
        """Write the pattern of ``seed`` over ``size`` bytes."""
        self._wide("fill", stream, address, size // WORD, seed)

    def poison(self, address: int, size: int, value: int, stream: Any = DEFAULT_STREAM) -> None:
        """Write one 64-bit value over ``size`` bytes."""
        self._wide("poison", stream, address, size // WORD, value)

    def compare(self, address: int, size: int, seed: int, poison: int) -> Comparison:
        """Hold ``size`` bytes against the pattern of ``seed``; waits for all that runs in the context."""
        self._driver.synchronize()
        self._driver.write(self._scratch, b"".join(n.to_bytes(WORD, "little") for n in (0, ALL_ONES, 0, 0)))
        self._wide("compare", DEFAULT_STREAM, address, size // WORD, seed, poison, self._scratch)
        self._driver.synchronize()
        wrong, first, poisoned, zeros = self._driver.words(self._scratch, 4)
        return Comparison(size // WORD, wrong, first * WORD if wrong else None, poisoned, zeros)

    def copy(self, target: int, source: int, size: int, repeat: int, stream: Any) -> None:
        """Copy ``size`` bytes (a multiple of 16), ``repeat`` times: one block a multiprocessor, as nvbandwidth."""
        self._launch("copy", self.multiprocessors, THREADS, target, source, size // VECTOR, repeat, stream=stream)

    def chain(self, address: int, nodes: int, stride: int) -> None:
        """Write a ring of ``nodes`` pointers, ``stride`` bytes apart."""
        self._wide("chain", DEFAULT_STREAM, address, nodes, stride)

    def chase(self, start: int, steps: int, multiprocessor: int, stream: Any) -> None:
        """Follow the ring with one thread, on (mostly) that multiprocessor."""
        self._launch("chase", multiprocessor + 1, 1, start, steps, self._scratch, stream=stream)

    def chased(self) -> tuple[int, int]:
        """Of the last chase: clock cycles, and the address where it arrived."""
        cycles, address = self._driver.words(self._scratch, 2)
        return cycles, address

    def add(self, counter: int, times: int, stream: Any) -> int:
        """Have many threads add 1 to a 64-bit counter ``times`` over; gives how much it should grow."""
        self._launch("add", self.multiprocessors, THREADS // 8, counter, times, stream=stream)
        return self.multiprocessors * (THREADS // 8) * times

    def spin(self, flag: HostMemory, stream: Any) -> None:
        """Hold the stream up until the host sets the flag, two seconds at most."""
        self._launch("spin", 1, 1, flag.device, stream=stream)

    def _wide(self, name: str, stream: Any, *arguments: int) -> None:
        self._launch(name, self.multiprocessors * _BUSY, THREADS, *arguments, stream=stream)

    def _launch(self, name: str, blocks: int, threads: int, *arguments: int, stream: Any = DEFAULT_STREAM) -> None:
        self._driver.launch(self._functions[name], blocks, threads, arguments, stream)
