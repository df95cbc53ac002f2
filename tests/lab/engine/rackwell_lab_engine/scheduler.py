# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: continuous batching by the clock. Each decode step gives every running request one token.

Or, where the behaviour has an exact schedule, each request by itself: what comes when is then known to the millisecond.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable

from rackwell_lab_engine import log
from rackwell_lab_engine.behaviour import Behaviour, interpolate
from rackwell_lab_engine.load import LoadFile
from rackwell_lab_engine.metrics import Metrics

_LOG_EVERY = 40  # decode steps, as the original's --decode-log-interval
_LAG = 0.25  # seconds of delay that later steps may make up for


@dataclasses.dataclass(eq=False)
class Sequence:
    """One prompt on its way through the scheduler.

    Attributes:
        tokens: what it will be given, one a step; at least one.
        finish: ``stop`` or ``length``. cached: prompt tokens that the prefix cache held.
    """

    prompt_tokens: int
    tokens: list[str]
    finish: str
    cached: int = 0
    rid: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    given: int = 0
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    last: float = 0.0
    out: asyncio.Queue[str] = dataclasses.field(default_factory=asyncio.Queue)


class Scheduler:
    """Runs sequences; :meth:`run` must be running as a task.

    Args:
        speed: factor on the behaviour's speeds. max_running: greatest batch. capacity: KV tokens, for the log.
        tagged: log lines carry the rank (more than one rank). crash: called when a fault kills the scheduler.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        speed: float,
        max_running: int,
        capacity: int,
        tagged: bool,
        crash: Callable[[], None],
    ) -> None:
        self.behaviour = behaviour
        self.speed = speed
        self.max_running = max_running
        self.capacity = capacity
        self.metrics = Metrics()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.hung = False
        self.throughput = 0.0
        self._rank = 0 if tagged else None
        self._crash = crash
        self._accepted = 0
        self.load = LoadFile()
        self._seen: set[int] = set()
        self._wake = asyncio.Event()
        self._clock = time.monotonic()
        self._log_steps = 0
        self._log_tokens = 0
        self._log_since = 0.0
        self._last_level = -1.0

    @property
    def active(self) -> int:
        """Requests that are not finished."""
        return len(self.running) + len(self.waiting)

    @property
    def token_usage(self) -> float:
        """Part of the KV cache in use, 0 to 1."""
        return sum(s.prompt_tokens + s.given for s in self.running) / self.capacity

    def cached(self, prompt: str | list[int], tokens: int) -> int:
        """How many of a prompt's tokens the prefix cache holds: all, where the same prompt came before."""
        key = hash(prompt if isinstance(prompt, str) else tuple(prompt))
        if key in self._seen:
            return tokens
        self._seen.add(key)
        return 0

    def flush(self) -> bool:
        """Empty the prefix cache; refused while requests run."""
        if self.active or not self.behaviour.faults.flush:
            return False
        self._seen.clear()
        return True

    async def stream(self, sequence: Sequence, *, counted: bool = True) -> AsyncGenerator[str, None]:
        """Run a sequence and give its tokens as they come; closing the generator aborts it."""
        if counted:
            self._accepted += 1
            self.metrics.requests += 1
            self.metrics.prompt_tokens += sequence.prompt_tokens
            self.metrics.cached_tokens += sequence.cached
            faults = self.behaviour.faults
            if faults.crash_after_requests is not None and self._accepted >= faults.crash_after_requests:
                self._crash()
            if faults.hang_after_requests is not None and self._accepted >= faults.hang_after_requests:
                self.hung = True
        if self.behaviour.exact and not self.hung:
            async for token in self._exactly(sequence):
                yield token
            return
        self.waiting.append(sequence)
        self._wake.set()
        taken = 0
        try:
            while taken < len(sequence.tokens):
                token = await sequence.out.get()
                taken += 1
                yield token
        finally:
            if taken < len(sequence.tokens):
                self._drop(sequence)

    async def _exactly(self, sequence: Sequence) -> AsyncGenerator[str, None]:
        """The tokens of a request, each at its moment."""
        first, gaps = self.behaviour.exact["ttft_ms"], self.behaviour.exact["itl_ms"]
        number = self._accepted
        due = sequence.arrived + first[number % len(first)] / 1000 / self.speed
        self.running.append(sequence)
        self._level()
        try:
            for place in range(len(sequence.tokens)):
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self._count(sequence, time.monotonic())
                yield sequence.tokens[place]
                due += gaps[(number + place) % len(gaps)] / 1000 / self.speed
        finally:
            if sequence in self.running:
                self._drop(sequence)
            self._level()

    def _level(self) -> None:
        size = len(self.running)
        level = interpolate(self.behaviour.utilisation, size) if size else 0.0
        if level != self._last_level:
            self._last_level = level
            self.load.level(level)

    def _drop(self, sequence: Sequence) -> None:
        self.metrics.aborted += 1
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)

    async def run(self) -> None:
        """The event loop of the scheduler; never ends by itself."""
        if self.behaviour.exact:
            self._level()
            await asyncio.Event().wait()
        while True:
            if not self.active:
                self.load.write()
                self.throughput = 0.0
                self._wake.clear()
                await self._wake.wait()
                self._clock = self._log_since = time.monotonic()
                self._log_steps = self._log_tokens = 0
            if self.hung:
                await asyncio.Event().wait()
            if self.waiting and len(self.running) < self.max_running:
                await self._prefill()
            else:
                await self._decode()

    async def _pass(self, seconds: float, utilisation: float) -> None:
        """Let the time of a step go by; small delays of this process are made up for by the next steps."""
        seconds /= self.speed
        self._clock = max(self._clock, time.monotonic() - _LAG) + seconds
        await asyncio.sleep(max(0.0, self._clock - time.monotonic()))
        self.load.step(seconds, utilisation)

    async def _prefill(self) -> None:
        batch = [self.waiting.popleft()]
        room = 8192 - batch[0].prompt_tokens
        while (
            self.waiting and len(self.running) + len(batch) < self.max_running and room >= self.waiting[0].prompt_tokens
        ):
            batch.append(self.waiting.popleft())
            room -= batch[-1].prompt_tokens
        cached = sum(s.cached for s in batch)
        new_tokens = sum(s.prompt_tokens for s in batch) - cached
        seconds = new_tokens / self.behaviour.prefill_tokens_per_second
        log.line(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {new_tokens}, #cached-token: {cached}, "
            f"token usage: {self.token_usage:.2f}, #running-req: {len(self.running)}, #queue-req: {len(self.waiting)}, "
            f"input throughput (token/s): {self.speed * self.behaviour.prefill_tokens_per_second:.2f}",
            self._rank,
        )
        self.running += batch
        await self._pass(seconds, 100.0)
        self._give([s for s in batch if s in self.running])

    async def _decode(self) -> None:
        batch = list(self.running)
        size = len(batch)
        await self._pass(
            interpolate(self.behaviour.step_ms, size) / 1000, interpolate(self.behaviour.utilisation, size)
        )
        batch = [s for s in batch if s in self.running]
        self._give(batch)
        self._log_steps += 1
        self._log_tokens += len(batch)
        if self._log_steps >= _LOG_EVERY:
            now = time.monotonic()
            self.throughput = self._log_tokens / max(now - self._log_since, 1e-6)
            tokens = sum(s.prompt_tokens + s.given for s in batch)
            log.line(
                f"Decode batch, #running-req: {size}, #token: {tokens}, token usage: {self.token_usage:.2f}, "
                f"gen throughput (token/s): {self.throughput:.2f}, #queue-req: {len(self.waiting)}",
                self._rank,
            )
            self._log_steps = self._log_tokens = 0
            self._log_since = now

    def _give(self, batch: list[Sequence]) -> None:
        """Give each sequence its next token."""
        now = time.monotonic()
        for sequence in batch:
            sequence.out.put_nowait(sequence.tokens[sequence.given])
            self._count(sequence, now)

    def _count(self, sequence: Sequence, now: float) -> None:
        """The sequence has its next token; with its last one it is done."""
        histogram = self.metrics.inter_token if sequence.given else self.metrics.time_to_first_token
        histogram.observe(now - (sequence.last or sequence.arrived))
        sequence.given += 1
        sequence.last = now
        self.metrics.generation_tokens += 1
        if sequence.given == len(sequence.tokens):
            self.metrics.end_to_end.observe(now - sequence.arrived)
            self.running.remove(sequence)
