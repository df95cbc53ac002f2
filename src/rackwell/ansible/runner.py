# SPDX-License-Identifier: Apache-2.0
"""Runs one playbook of the collection through ansible-runner, in a directory of its own, and ends it well on Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from rackwell import runid
from rackwell.ansible.events import Collector, Step
from rackwell.ansible.results import PlayResult, Reported
from rackwell.errors import Problem, RackwellError

KEEP_RUNS = 20
_MARK = "RACKWELL_RUN"
# how long a play may take to end by itself after the first Ctrl-C
_GRACE = 60.0
_CONTROL_TIMEOUT = 5.0
# how long what an interrupted play left on this machine may take to end by itself
_LEFTOVER_GRACE = 2.0

_ENVIRONMENT = {
    "ANSIBLE_PIPELINING": "True",
    "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s -o BatchMode=yes "
    "-o ServerAliveInterval=15 -o ServerAliveCountMax=4",
    "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
    "ANSIBLE_FORKS": "10",
}
"""Settings that the operator's own environment may change."""

_FIXED = {
    "ANSIBLE_HOST_KEY_CHECKING": "True",
    "ANSIBLE_NOCOWS": "1",
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_RETRY_FILES_ENABLED": "False",
    "ANSIBLE_DEPRECATION_WARNINGS": "False",
    "ANSIBLE_LOCALHOST_WARNING": "False",
    "ANSIBLE_INVENTORY_ENABLED": "yaml",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
}


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The directory of one run of rackwell: mode 0700, holds its log."""

    path: Path

    @classmethod
    def create(cls, state: Path, verb: str) -> RunDirectory:
        """Make ``<state>/runs/<utc>-<verb>-<id>/``, and remove all but the newest `KEEP_RUNS` of this verb.

        Only of this verb: a `status` every minute must not take away the directory of a provision that still runs.

        Raises:
            RackwellError: the directory cannot be made (exit 1).
        """
        runs = state / "runs"
        path = runs
        try:
            runs.mkdir(parents=True, exist_ok=True)
            while True:
                path = runs / runid.new(verb)[0]
                try:
                    path.mkdir(mode=0o700)
                    break
                except FileExistsError:
                    # another process began at the same moment
                    continue
        except OSError as error:
            raise RackwellError(
                Problem(
                    "no-run-directory", "the run's directory cannot be made", str(path), error.strerror or str(error)
                )
            ) from error
        for old in sorted(runs.glob(f"*-{verb}-*"))[:-KEEP_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
        return cls(path)

    @property
    def log(self) -> Path:
        """The run's log file."""
        return self.path / "log.txt"

    def write(self, text: str) -> None:
        """Add a line to the log."""
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {text}\n")


_ALL_END = threading.Event()


def end_all() -> None:
    """Have the plays of this process end now, in whatever thread they run; what begins later ends at once.

    A play in a thread hears no signal, and Python waits for its thread before it ends.
    """
    _ALL_END.set()


def begin_again() -> None:
    """Let plays run (again)."""
    _ALL_END.clear()


class Interrupts:
    """Counts Ctrl-C, SIGTERM and SIGHUP while a play runs, instead of raising in the middle of it."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # started by nohup: the end of the terminal is nothing to it
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1
        self.at = self.at or time.monotonic()

    @property
    def must_kill(self) -> bool:
        """A second Ctrl-C, or the play did not end in time after the first, or all are to end."""
        return _ALL_END.is_set() or self.count > 1 or (self.count == 1 and time.monotonic() - self.at > _GRACE)


def play(
    name: str,
    site: Path,
    run: RunDirectory,
    limit: Sequence[str],
    *,
    listener: Callable[[Step], None],
    on_interrupt: Callable[[], None] = lambda: None,
    on_result: Callable[[Reported], None] = lambda _: None,
    extra: Mapping[str, Any] | None = None,
    check: bool = False,
    diff: bool = False,
    retries: int = 2,
    connect_timeout: int = 10,
) -> PlayResult:
    """Run playbook ``rackwell.gpu.<name>`` (or a file) on `site`, limited to the hosts of `limit`.

    Args:
        listener: told when a task of a host starts and ends; called from another thread.
        on_interrupt: told once, when the first Ctrl-C is passed on to the play.
        on_result: given what a module reports when it does; called from another thread.
        extra: extra variables.
        retries: how often a lost ssh connection is tried again. connect_timeout: seconds.

    Returns:
        The result, also for a play that failed or was interrupted: nothing is raised for those.
    """
    result = PlayResult(name, run.log)
    collector = Collector(result, listener, on_result)
    started = time.monotonic()

    def handle(event: dict[str, Any]) -> bool:
        text = str(event.get("stdout", "")).rstrip()
        if text:
            run.write(text)
        collector.take(event)
        return False  # the log has what is needed; events would keep results with all their values

    mark = secrets.token_hex(8)
    with Interrupts() as interrupts, _control_directory() as control, ThreadPoolExecutor(1, "ansible-runner") as pool:
        future = pool.submit(
            _run,
            cancel_callback=lambda: interrupts.must_kill,
            private_data_dir=str(run.path),
            ident=name.rpartition("/")[2],
            inventory=str(site / "hosts.yml"),
            limit=",".join(limit),
            binary=sys.executable,
            cmdline=shlex.join(_command(name if "/" in name else f"rackwell.gpu.{name}", check, diff)),
            extravars=dict(extra or {}),
            envvars={
                **_environment(site, retries, connect_timeout),
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control),
                _MARK: mark,
            },
            settings={"pexpect_timeout": 1},
            event_handler=handle,
            quiet=True,
            suppress_output_file=True,
        )
        told = False
        while not wait([future], timeout=0.2).done:
            if interrupts.count and not told:
                told = True
                on_interrupt()
                _signal_play(mark, signal.SIGINT)
            if interrupts.must_kill:
                _signal_play(mark, signal.SIGKILL)
        rc = future.result()
        if interrupts.count:
            _end_leftovers(mark)
        # also when the play came to its end all the same: what comes after it was not wanted any more
        result.interrupted = interrupts.count > 0
    for leftover in ("artifacts", "env", "inventory"):
        shutil.rmtree(run.path / leftover, ignore_errors=True)
    collector.finish(rc)
    result.seconds = time.monotonic() - started
    return result


def _command(playbook: str, check: bool, diff: bool) -> list[str]:
    flags = [flag for flag, on in (("--check", check), ("--diff", diff)) if on]
    # -P: the directory of the run is no place for modules
    return ["-P", "-m", "rackwell.ansible.tether", str(os.getpid()), *flags, playbook]


def _run(**arguments: Any) -> int:
    import ansible_runner.interface

    done = ansible_runner.interface.run(**arguments)
    return 1 if done.rc is None else int(done.rc)


@contextlib.contextmanager
def _control_directory() -> Iterator[Path]:
    """A place for this play's ssh connections.

    They end with it: a connection kept from an earlier run may lead to a machine that no longer exists, or skip the
    check of a host key that has changed. Not in the site, whose path may be too long for a socket.
    """
    with tempfile.TemporaryDirectory(prefix="rackwell-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            for socket in Path(folder).iterdir():
                # a master whose machine is gone may not answer: it ends by itself, ControlPersist after its last use
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        # it wants some valid name of a host, and asks none but the master
                        ["ssh", "-F", "none", "-O", "exit", "-o", f"ControlPath={socket}", "--", "master"],
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        check=False,
                        timeout=_CONTROL_TIMEOUT,
                    )


def _environment(site: Path, retries: int, connect_timeout: int) -> dict[str, str]:
    chosen = {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
    if (site / "ansible.cfg").exists():
        chosen["ANSIBLE_CONFIG"] = str(site / "ansible.cfg")
    collections = [place for place in (_own_collections(), os.environ.get("ANSIBLE_COLLECTIONS_PATH")) if place]
    if collections:
        chosen["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(collections)
    return {
        **chosen,
        **_FIXED,
        "ANSIBLE_SSH_RETRIES": str(retries),
        "ANSIBLE_TIMEOUT": str(connect_timeout),
        # the ansible-playbook beside this Python, which is the one that knows the collection
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def _own_collections() -> str | None:
    """The directory with the collection that belongs to this package.

    Ansible would find it by itself, but after the user's own collections, where an older one may lie.
    """
    return next(
        (place for place in sys.path if (Path(place) / "ansible_collections/rackwell/gpu/galaxy.yml").is_file()), None
    )


def _signal_play(mark: str, number: signal.Signals) -> None:
    """Send `number` to ansible-playbook; SIGKILL to all it started as well.

    ansible-runner knows only how to kill. Ansible's own workers lead sessions of their own, and get the signal from it.
    """
    for pid in _marked(mark, _children(os.getpid())):
        tree = [pid, *_descendants(pid)] if number is signal.SIGKILL else [pid]
        for target in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)


def _end_leftovers(mark: str) -> None:
    """End what an interrupted play left running on this machine.

    Ansible's worker passes the signal on to its process group, but not always before it ends itself (seen once in some
    180 interrupts on a loaded machine): a local task would go on, unseen.
    """
    end = time.monotonic() + _LEFTOVER_GRACE
    sent: set[int] = set()
    while left := _marked(mark, _everybody()):
        must_kill = time.monotonic() > end
        for pid in left if must_kill else left - sent:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if must_kill else signal.SIGTERM)
        sent |= left
        time.sleep(0.02)
        if time.monotonic() > 2 * _LEFTOVER_GRACE + end:
            # in the kernel, and killed when it comes back from there
            return


def _marked(mark: str, among: Iterable[int]) -> set[int]:
    """Those processes that carry `mark`; a dead one's environment is empty."""
    sign = f"{_MARK}={mark}".encode()
    found: set[int] = set()
    for pid in among:
        with contextlib.suppress(OSError):
            if sign in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def _everybody() -> list[int]:
    """The processes of this machine."""
    return [int(process.name) for process in Path("/proc").glob("[0-9]*")]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)
