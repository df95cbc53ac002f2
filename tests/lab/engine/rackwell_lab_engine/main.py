# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: the life of the process, from the command line to the SIGKILL that it sends itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rackwell_lab_engine import behaviour as behaviours
from rackwell_lab_engine import caches, deaths, log, source, text
from rackwell_lab_engine import flags as command_line
from rackwell_lab_engine.api import Api
from rackwell_lab_engine.behaviour import Behaviour
from rackwell_lab_engine.scheduler import Scheduler
from rackwell_lab_engine.scheduler import Sequence as Request
from rackwell_lab_engine.web import Server

_BIND_FAILED = 3  # uvicorn's exit code for a failed start
_OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. "
    "GPU 0 has a total capacity of 94.97 GiB of which 1.12 GiB is free."
)
_CAPACITY = 1_200_000  # KV tokens


def _kill_self() -> NoReturn:
    """End as the original does: it kills its process tree, itself last."""
    pid = os.getpid()
    log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("still alive")


def _traceback(package: Path, error: str, *, serving: bool) -> str:
    """A traceback like that of a failed scheduler."""
    where = [("managers/scheduler.py", 3168, "run_scheduler_process", "scheduler = Scheduler(")]
    where += [("managers/scheduler.py", 318, "__init__", "self.init_model_worker()")]
    where += [("model_executor/model_runner.py", 391, "__init__", "self.initialize(min_per_gpu_memory)")]
    where += [("model_executor/model_runner.py", 498, "initialize", "self.load_model()")]
    if serving:
        where = [("managers/scheduler.py", 3180, "run_scheduler_process", "scheduler.event_loop_overlap()")]
        where += [("managers/scheduler.py", 1052, "event_loop_overlap", "batch_result = self.run_batch(batch)")]
        where += [("managers/tp_worker.py", 451, "forward_batch_generation", "out = self.model_runner.forward(")]
    lines = ["Traceback (most recent call last):"]
    for file, number, function, code in where:
        lines += [f'  File "{package}/srt/{file}", line {number}, in {function}', f"    {code}"]
    return "\n".join([*lines, error, ""])


class Engine:
    """One run of the stand-in.

    Args:
        package: folder of the installed sglang. flags: parsed server arguments by field name.
    """

    def __init__(self, package: Path, flags: Mapping[str, Any], behaviour: Behaviour, model: Mapping[str, Any]) -> None:
        self.package = package
        self.flags = flags
        self.behaviour = behaviour
        self.model = model
        self.ranks: list[int | None] = list(range(flags["tp_size"])) if flags["tp_size"] > 1 else [None]
        self.context = int(flags["context_length"] or model.get("max_position_embeddings", behaviour.context_length))
        self.max_running = flags["max_running_requests"] or 1024
        self.death = deaths.DEATHS.get(behaviour.faults.die_as)

    def _all_ranks(self, message: str) -> None:
        for rank in self.ranks:
            log.line(message, rank)

    def _crash(self, error: str, *, serving: bool) -> NoReturn:
        """Every rank says why, then the parent ends."""
        self._all_ranks(f"Scheduler hit an exception: {_traceback(self.package, error, serving=serving)}")
        if serving:
            log.line("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
        else:
            log.line("Received sigquit from a child process. It usually means the child failed.")
        _kill_self()

    async def _die(self, death: deaths.Death) -> None:
        """Say what the real engine says of it, and end; or hang, as it does when a child waits for another."""
        for line in death.before:
            self._all_ranks(line)
        for line in death.raw.splitlines():
            log.line(line)
        if self.behaviour.faults.never_ready and death.error:
            self._all_ranks(death.error)
        if self.behaviour.faults.never_ready:
            await asyncio.Event().wait()
        if death.raw:
            _kill_self()
        self._crash(death.error, serving=death.stage == deaths.SERVE)

    def _stages(self) -> list[str]:
        """What is said while loading, one line per equal part of the time."""
        architecture = (self.model.get("architectures") or ["Model"])[0]
        stages = [
            "Init torch distributed begin.",
            "Init torch distributed ends. elapsed=0.41 s, mem usage=0.93 GB",
            "Load weight begin. avail mem=94.10 GB",
            f"Load weight end. elapsed=0.52 s, type={architecture}, avail mem=36.90 GB, mem usage=57.20 GB.",
            f"KV Cache is allocated. #tokens: {_CAPACITY}, KV size: 18.40 GB",
            "Memory pool end. avail mem=18.50 GB",
        ]
        stages.append(caches.stage(os.environ))
        backends = source.autotune_backends(self.package)
        if self.flags["moe_runner_backend"] in backends and not self.flags["disable_flashinfer_autotune"]:
            stages += ["Running FlashInfer autotune...", "FlashInfer autotune completed."]
        if not self.flags["disable_cuda_graph"]:
            stages += [
                "Capture cuda graph begin. This can take up to several minutes. avail mem=18.50 GB",
                "Capture cuda graph end. Time elapsed: 0.31 s. mem usage=0.44 GB. avail mem=18.06 GB.",
            ]
        return stages

    async def load(self) -> None:
        """From launch to where the port would open."""
        stages = self._stages()
        begin = time.monotonic()
        for number, stage in enumerate(stages, 1):
            self._all_ranks(stage)
            if self.death is not None and self.death.stage == deaths.LOAD and stage.startswith("Load weight begin"):
                await self._die(self.death)
            died = self.behaviour.faults.die_while_loading
            if died and stage.startswith("Load weight begin"):
                self._crash(died if isinstance(died, str) else _OUT_OF_MEMORY, serving=False)
            await asyncio.sleep(max(0.0, begin + self.behaviour.load_seconds * number / len(stages) - time.monotonic()))
        log.line(
            f"max_total_num_tokens={_CAPACITY}, chunked_prefill_size={self.flags['chunked_prefill_size'] or 8192}, "
            f"max_prefill_tokens={self.flags['max_prefill_tokens']}, max_running_requests={self.max_running}, "
            f"context_len={self.context}, available_gpu_mem=18.06 GB",
            self.ranks[0],
        )

    async def serve(self) -> int:
        """Load, bind, warm up, serve until told to end.

        Returns:
            Exit code, where the end is not a signal.
        """
        await self.load()
        if self.behaviour.faults.never_ready == "closed":
            await asyncio.Event().wait()
        scheduler = Scheduler(
            self.behaviour,
            speed=behaviours.speed_of(self.behaviour, self.flags, self.package),
            max_running=self.max_running,
            capacity=_CAPACITY,
            tagged=self.ranks[0] is not None,
            crash=lambda: self._crash(
                "RuntimeError: CUDA error: an illegal memory access was encountered", serving=True
            ),
        )
        api = Api(scheduler, self.flags, self.model, self.context)
        server = Server(api)
        log.uvicorn("INFO", f"Started server process [{os.getpid()}]")
        log.uvicorn("INFO", "Waiting for application startup.")
        log.uvicorn("INFO", "Application startup complete.")
        host, port = self.flags["host"], self.flags["port"]
        try:
            await server.open(host, port)
        except OSError as error:
            log.uvicorn("ERROR", str(error))
            log.uvicorn("INFO", "Waiting for application shutdown.")
            # the original's warmup finds the other server on that port, and says so
            log.line("The server is fired up and ready to roll!")
            log.uvicorn("INFO", "Application shutdown complete.")
            return _BIND_FAILED
        log.uvicorn("INFO", f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        interrupted = self._handle_signals(api)
        work = (scheduler.run(), scheduler.load.keep(), self._warm_up(api))
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        await interrupted.wait()
        server.close()
        for task in tasks:
            task.cancel()
        return 0

    async def _warm_up(self, api: Api) -> None:
        await asyncio.sleep(self.behaviour.warmup_seconds)
        if self.behaviour.faults.never_ready == "unhealthy":
            return
        prompt = "The capital city of France is"
        tokens, _ = text.generate(prompt, 8, api.model_path, ignore_eos=True, fault="")
        async for _ in api.scheduler.stream(Request(text.count_tokens(prompt), tokens, "length"), counted=False):
            pass
        api.ready = True
        log.line("The server is fired up and ready to roll!")
        if self.death is not None and self.death.stage == deaths.SERVE:
            await asyncio.sleep(0.5)
            await self._die(self.death)

    def _handle_signals(self, api: Api) -> asyncio.Event:
        """SIGTERM drains and kills, SIGQUIT kills, SIGINT ends well (the event that is returned)."""
        loop = asyncio.get_running_loop()
        interrupted = asyncio.Event()
        drains: list[asyncio.Task[None]] = []

        async def drain() -> None:
            while api.scheduler.active and not api.scheduler.hung:
                log.line(f"Gracefully exiting... Remaining number of requests {api.scheduler.active}.")
                await asyncio.sleep(self.behaviour.drain_poll_seconds)
            log.line("Gracefully exiting... Remaining number of requests 0.")
            # let the last answers leave
            await asyncio.sleep(0.05)
            _kill_self()

        def terminate() -> None:
            if not api.draining:
                log.line("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
                api.draining = True
                drains.append(asyncio.create_task(drain()))

        def quit_now() -> None:
            log.line("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
            _kill_self()

        loop.add_signal_handler(signal.SIGTERM, terminate)
        loop.add_signal_handler(signal.SIGQUIT, quit_now)
        loop.add_signal_handler(signal.SIGINT, interrupted.set)
        return interrupted


def _refuse(package: Path, error: str) -> int:
    """An error before any child is started: a traceback and exit code 1."""
    print("Traceback (most recent call last):", file=sys.stderr)
    print(f'  File "{package}/launch_server.py", line 31, in <module>', file=sys.stderr)
    print(f"    server_args = prepare_server_args(sys.argv[1:])\n{error}", file=sys.stderr)
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run; what ``python -m sglang.launch_server`` of a patched release calls.

    Returns:
        Exit code: 2 wrong usage, 1 refused before loading, 3 the port is taken, 0 interrupted. Other ends are signals.
    """
    package = source.package_dir()
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags = command_line.parse(package, arguments)
    path = Path(flags["model_path"])
    try:
        model = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        text_of = "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"
        return _refuse(package, f"OSError: {text_of}: '{path}'. Use `repo_type` argument if needed. ({error.strerror})")
    try:
        behaviour = behaviours.read(path)
    except behaviours.BehaviourError as error:
        return _refuse(package, f"rackwell_lab_engine.behaviour.BehaviourError: {error}")
    death = deaths.DEATHS.get(behaviour.faults.die_as)
    if death is not None and death.stage == deaths.PARSE:
        if not death.raw:
            return _refuse(package, death.error)
        sys.stderr.write(death.raw)
        return death.code
    derived = model.get("max_position_embeddings", behaviour.context_length)
    if (flags["context_length"] or 0) > derived:
        return _refuse(
            package,
            f"ValueError: Warning: User-specified context_length ({flags['context_length']}) is greater than the "
            f"derived context_length ({derived}). This may lead to incorrect model outputs or CUDA errors.",
        )
    if "--config" in arguments:
        return _refuse(
            package, "NotImplementedError: the stand-in engine reads no --config file; give the flags themselves"
        )
    log.line(f"server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in flags.items())})")
    return asyncio.run(Engine(package, flags, behaviour, model).serve())
