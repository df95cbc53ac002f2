# SPDX-License-Identifier: Apache-2.0
"""What people and programs see: progress and errors on stderr, results on stdout, one envelope for ``--json``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from rackwell.errors import ExitCode, Problem

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from rackwell.ansible.events import Step

# a step without news for this long is told of again, where no live line shows it
_HEARTBEAT = 20.0


@dataclasses.dataclass
class Outcome:
    """What a command came to.

    Attributes:
        result: the payload of ``--json``.
        show: prints the result for people.
        shown: (code, what) of problems that `show` tells in full: stderr names them in one line.
    """

    result: dict[str, Any] = dataclasses.field(default_factory=dict)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    exit_code: ExitCode = ExitCode.DONE
    show: Callable[[Console], None] = lambda _: None
    shown: frozenset[tuple[str, str]] = frozenset()


def envelope(command: str, outcome: Outcome) -> dict[str, Any]:
    """The one form of every command's ``--json`` output."""
    return {
        "schema": f"rackwell.{command}/1",
        "ok": outcome.exit_code == ExitCode.DONE,
        "exit_code": int(outcome.exit_code),
        "problems": [problem.as_dict() for problem in outcome.problems],
        "result": outcome.result,
    }


def print_json(command: str, outcome: Outcome) -> None:
    """The envelope on stdout."""
    sys.stdout.write(json.dumps(envelope(command, outcome), indent=2, ensure_ascii=False) + "\n")


def stdout() -> Console:
    """Where results go, for people."""
    from rich.console import Console

    # a pipe has no width: a table must not be squeezed into 80 columns for it
    width = None if sys.stdout.isatty() else 200
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def abandon(stream: TextIO) -> None:
    """Nobody reads `stream` any more, or it cannot be written: let what is still said there vanish."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


class _Lasting:
    """A stream for as long as somebody is there: a terminal that was closed ends no run half-way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        abandon(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            abandon(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _stderr() -> Console:
    from rich.console import Console

    stream = cast("IO[str]", _Lasting(sys.stderr))
    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_problems(
    problems: Iterable[Problem], log: Path | None, shown: frozenset[tuple[str, str]] = frozenset()
) -> None:
    """Compact blocks on stderr: what, where, why, fix; of what is `shown` already one line; the log's path below."""
    from rich.text import Text

    console = _stderr()
    for problem in problems:
        # the code of a rule is what its page is found by
        code = f"[{problem.code}]" if problem.code.startswith("RW") else ""
        console.print(Text.assemble((f"error{code}: ", "bold red"), (problem.what, "bold")))
        if (problem.code, problem.what) in shown:
            continue
        for label, text in (("where", problem.where), ("why", problem.why), ("fix", problem.fix)):
            if text:
                first, *rest = text.splitlines()
                console.print(Text.assemble((f"  {label:<6}", "dim"), first))
                for line in rest:
                    console.print(Text(" " * 8 + line))
    if log is not None and log.exists():
        console.print(Text.assemble(("log: ", "dim"), str(log)))


class Terminal:
    """Progress on stderr: on a terminal with a live line for what runs now, else plain lines only."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.log: Path | None = None
        self.safety = "nothing was touched"
        #: lines of a table that is drawn anew all the time, in place of the steps that run
        self.board: Callable[[int], list[str]] | None = None
        self._quiet = quiet
        self._console = _stderr()
        self._began = time.monotonic()
        self._running: dict[tuple[str, str], float] = {}
        self._detail: tuple[str, str] | None = None
        self._guard = threading.Lock()
        self._live: Live | None = None
        self._done = threading.Event()
        self._heart: threading.Thread | None = None

    def __enter__(self) -> Terminal:
        if self._quiet:
            return self
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, get_renderable=self._now, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self._heart = threading.Thread(target=self._beat, name="progress", daemon=True)
            self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._live is not None:
            self._live.stop()
        if self._heart is not None:
            self._heart.join()

    def line(self, where: str, text: str) -> None:
        """One line of progress."""
        with self._guard:
            self._detail = None
        if not self._quiet:
            self._print(where, text)

    def detail(self, where: str, text: str) -> None:
        """How far the thing of the last line has come: only in the live line, elsewhere now and then."""
        with self._guard:
            self._detail = (where, text)

    def step(self, step: Step) -> None:
        """A task of a play started or ended."""
        key = (step.host, step.label)
        with self._guard:
            self._detail = None
            if not step.outcome:
                if not step.quiet:
                    self._running[key] = time.monotonic()
                return
            self._running.pop(key, None)
        if self._quiet or step.outcome == "skipped" or (step.quiet and step.outcome in {"ok", "ignored"}):
            return
        outcome = {"changed": "ok (changed)", "failed": "FAILED", "unreachable": "UNREACHABLE"}.get(
            step.outcome, step.outcome
        )
        took = f" {step.seconds:.1f} s" if step.seconds else ""
        self._print(step.host, f"{step.label} … {outcome}{took}")

    def _print(self, where: str, text: str) -> None:
        self._console.print(f"[{self._elapsed():4.0f}s] {where:<12} {text}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _now(self) -> Text:
        from rich.text import Text

        with self._guard:
            running = list(self._running.items())
            detail = self._detail
        now = time.monotonic()
        board = self.board
        news = [(host, f"{label} · {now - since:.0f} s") for (host, label), since in running if board is None]
        if detail is not None:
            news.append(detail)
        lines = [f"[{self._elapsed():4.0f}s] {where:<12} {text}" for where, text in news]
        if board is not None:
            lines += board(max(5, self._console.height - 6))
        return Text("\n".join(lines), style="cyan", no_wrap=True, overflow="ellipsis")

    def _beat(self) -> None:
        while not self._done.wait(_HEARTBEAT):
            with self._guard:
                running = list(self._running.items())
                detail = self._detail
            now = time.monotonic()
            if detail is not None:
                self._print(*detail)
            for (host, label), since in running:
                if now - since >= _HEARTBEAT:
                    self._print(host, f"{label} … still running, {now - since:.0f} s")
