# SPDX-License-Identifier: Apache-2.0
"""Runs a load generator unchanged and writes down what it cannot say of itself.

``PYTHON …/loadgen.py --report FILE --requests N MODULE ARGUMENTS…`` is ``PYTHON -m MODULE ARGUMENTS…`` with:

* a task in the client's own event loop that measures how late the loop wakes it: what is late there is late for every
  answer that the client reads;
* the client's CPU time beside it;
* the start of each request, where the client keeps it (``start_time``) and does not write it;
* the moments between which the client waits for its N requests: printed as lines, so that a recorder stamps them too;
* the status of ``POST /flush_cache``, which the client does not look at.

All times are of ``time.perf_counter``, on Linux the monotonic clock that all processes share. This file is run by the
client's interpreter: it imports nothing of rackwell and nothing that the client must bring.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

SCHEMA = "rackwell.loadgen/1"
#: how often the loop's lag is measured, seconds
PERIOD = 0.02
#: begins each line of this program; the recorder takes a sample as it sees one
MARK = "rackwell: "
BEGIN, END = MARK + "requests begin at", MARK + "requests ended at"


class Watch:
    """What is collected while the client runs."""

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.lag: list[tuple[float, float]] = []
        self.cpu: list[tuple[float, float]] = []
        self.phases: list[dict[str, Any]] = []
        self.flush: list[dict[str, Any]] = []
        self.starts: list[float | None] = []
        self._made: list[Any] = []

    async def measure(self) -> None:
        """Runs beside the client's coroutine until that ends."""
        next_cpu = 0.0
        while True:
            before = time.perf_counter()
            await asyncio.sleep(PERIOD)
            now = time.perf_counter()
            self.lag.append((round(now, 4), round(now - before - PERIOD, 5)))
            if now >= next_cpu:
                self.cpu.append((round(now, 4), round(time.process_time(), 4)))
                next_cpu = now + 0.5

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``asyncio.run`` with the measuring task beside the client's coroutine."""

        def wrapped(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
            space = getattr(getattr(main, "cr_frame", None), "f_globals", {})
            self._remember_requests(space.get("RequestFuncOutput"))

            async def beside() -> Any:
                task = asyncio.ensure_future(self.measure())
                try:
                    return await main
                finally:
                    task.cancel()

            result = run(beside(), **options)
            self._match(result)
            return result

        return wrapped

    def _remember_requests(self, output: Any) -> None:
        """Keep each request's record as the client makes it: it holds the start time."""
        make = getattr(output, "init_new", None)
        if make is None:
            return

        def init_new(*arguments: Any, **options: Any) -> Any:
            record = make(*arguments, **options)
            self._made.append(record)
            return record

        output.init_new = staticmethod(init_new)

    def _match(self, result: Any) -> None:
        """The starts in the order of the client's lists: these hold the very lists of the records."""
        lists = result.get("itls") if isinstance(result, dict) else None
        if not isinstance(lists, list):
            return
        known = {id(getattr(record, "itl", None)): getattr(record, "start_time", None) for record in self._made}
        self.starts = [known.get(id(gaps)) for gaps in lists]

    def gather(self, gather: Callable[..., Any]) -> Callable[..., Any]:
        """``asyncio.gather`` that tells when the client begins to wait for all requests, and when it has them."""

        def wrapped(*tasks: Any, **options: Any) -> Any:
            future = gather(*tasks, **options)
            # of N warm-up requests and N requests the later ones count: the reader takes the last lines
            if tasks and len(tasks) == self.requests:
                phase: dict[str, Any] = {"begin": time.perf_counter(), "cpu_begin": time.process_time()}
                self.phases.append(phase)
                print(f"{BEGIN} {phase['begin']:.6f}", flush=True)

                def ended(_future: Any) -> None:
                    phase.update(end=time.perf_counter(), cpu_end=time.process_time())
                    print(f"{END} {phase['end']:.6f}", flush=True)

                future.add_done_callback(ended)
            return future

        return wrapped

    def post(self, post: Callable[..., Any]) -> Callable[..., Any]:
        """``requests.post`` that keeps what flushing the cache was answered with."""

        def wrapped(url: Any, *arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            answer = post(url, *arguments, **options)
            if str(url).rstrip("/").endswith("/flush_cache"):
                status = getattr(answer, "status_code", None)
                took = round(time.perf_counter() - began, 4)
                self.flush.append({"at": began, "status": status, "seconds": took})
            return answer

        return wrapped

    def as_dict(self) -> dict[str, Any]:
        """The report: JSON."""
        return {
            "schema": SCHEMA,
            "period": PERIOD,
            "lag": self.lag,
            "cpu": self.cpu,
            "phases": self.phases,
            "flush": self.flush,
            "starts": self.starts,
        }


def write(path: str, report: dict[str, Any]) -> None:
    """Replace the file in one piece."""
    partial = Path(f"{path}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as stream:
        json.dump(report, stream)
    partial.replace(path)


def main(argv: list[str]) -> None:
    """``--report FILE --requests N MODULE ARGUMENTS…``"""
    if len(argv) < 5 or argv[0] != "--report" or argv[2] != "--requests":
        raise SystemExit("usage: loadgen.py --report FILE --requests N MODULE [ARGUMENT...]")
    path, watch, module = argv[1], Watch(int(argv[3])), argv[4]
    # this file's own directory is no place for the client to find modules in
    here = Path(__file__).resolve().parent
    sys.path[:] = ["", *(entry for entry in sys.path if entry and Path(entry).resolve() != here)]
    asyncio.run = watch.around(asyncio.run)
    asyncio.gather = watch.gather(asyncio.gather)
    try:
        import requests  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        pass
    else:
        requests.post = watch.post(requests.post)
    sys.argv = [module, *argv[5:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        write(path, watch.as_dict())


if __name__ == "__main__":
    main(sys.argv[1:])
