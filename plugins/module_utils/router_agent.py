# SPDX-License-Identifier: Apache-2.0
"""The router's own side: starts it, keeps the workers that are declared, and takes one out of rotation and back.

It stands alone: the role copies this file to the router's machine, where it needs nothing but Python.

    router-agent run            start the router (the unit does it, with the Python of the router's release)
    router-agent keep [WAIT]    let it have the workers that are declared and not drained; wait so long for its answer
    router-agent check FILE     whether the router takes settings; also with the Python of its release
    router-agent look           what it has, as JSON
    router-agent ask            drain, undrain or look, as JSON on standard input: docs/router.md

The router itself remembers no worker. Which ones are drained is written down here before anything is asked of it, so
that neither its own restart nor ``keep`` brings one back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: seconds for one answer, for what the router does in the background, and between two looks
ANSWER_S, DEED_S, PAUSE_S = 5.0, 15.0, 0.25
#: so long nothing may run on a worker, look after look, before it counts as idle: a request may be on its way
QUIET_S = 1.5
#: names of the engine's gauges, for one that does not know /v1/loads
GAUGES = ("sglang:num_running_reqs", "sglang:num_queue_reqs")


class Place(NamedTuple):
    """Where everything is.

    Attributes:
        settings: how the router runs, and the engines' key. workers: name -> url. state: what is drained.
        runtime: the key for the router's own administration, made anew at each of its starts.
    """

    settings: str = "/etc/rackwell/router.json"
    workers: str = "/etc/rackwell/router-workers.json"
    state: str = "/var/lib/rackwell/router"
    runtime: str = "/run/rackwell-router"


class RouterError(Exception):
    """What was asked for was not done; the text says why."""


class SilentError(RouterError):
    """The router did not answer, or not as it should."""


def _read(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError) as error:
        raise RouterError("%s cannot be read: %s" % (path, error)) from error


def _write(path: str, text: str, mode: int) -> None:
    """Replace a file, and have it on the disk when this returns."""
    new = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    os.replace(new, path)


def _http(method: str, url: str, key: str, body: Any = None, timeout: float = ANSWER_S) -> tuple[int, str]:
    """Status and text of an answer. Raises OSError when there is none."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - http only: the settings say so
    if key:
        request.add_header("Authorization", "Bearer " + key)
    data = None
    if body is not None:
        request.add_header("Content-Type", "application/json")
        data = json.dumps(body).encode()
    # whatever proxies this machine uses, these addresses are near
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, data, timeout) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")
    except (ValueError, EOFError) as error:  # not HTTP at all
        raise OSError(str(error)) from error
    except Exception as error:
        if isinstance(error, OSError):
            raise
        raise OSError("%s: %s" % (type(error).__name__, error)) from error  # http.client's own


class Router:
    """The router of this machine, and its workers."""

    def __init__(self, place: Place = Place()) -> None:  # noqa: B008 - an immutable default
        self.place = place
        self.settings: dict[str, Any] = _read(place.settings)
        self.declared: dict[str, str] = dict(_read(place.workers)["workers"])
        self.key = str(self.settings.get("api_key") or "")
        address = str(self.settings["address"])
        near = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, address)  # noqa: S104 - asked for, not bound
        self.url = "http://%s:%d" % (near, int(self.settings["port"]))

    # -- the router ----------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            with open(os.path.join(self.place.runtime, "control.key"), encoding="utf-8") as stream:
                key = stream.read().strip()
            status, text = _http(method, self.url + path, key, body)
            answer = json.loads(text) if text.strip() else {}
        except FileNotFoundError as error:
            raise SilentError("the router was not started: %s is not there" % error.filename) from error
        except (OSError, ValueError) as error:
            raise SilentError("the router at %s does not answer: %s" % (self.url, error)) from error
        if status >= 400 and status != 404:
            raise SilentError(
                "the router at %s answers %s %s with %d: %s" % (self.url, method, path, status, text[:200])
            )
        return answer

    def listed(self) -> dict[str, dict[str, Any]]:
        """The workers that it has, by url. Raises SilentError."""
        answer = self._ask("GET", "/workers")
        found = answer.get("workers") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise SilentError("what answers at %s is no router: it names no workers" % self.url)
        return {str(worker["url"]).rstrip("/"): worker for worker in found}

    def remove(self, url: str) -> bool:
        """Have no further request sent there; those under way go on. Whether it was there."""
        there, end = False, time.monotonic() + DEED_S
        while True:
            worker = self.listed().get(url)
            if worker is None:
                return there
            if time.monotonic() > end:
                raise SilentError("the router at %s does not let %s go" % (self.url, url))
            # asked again: an addition that was under way may have come in between
            self._ask("DELETE", "/workers/%s" % worker["id"])
            there = True
            time.sleep(PAUSE_S)

    def add(self, url: str, end: float) -> None:
        """Have requests sent there from now on; it must answer. Raises RouterError when that is not so by `end`."""
        asked = -DEED_S
        while True:
            worker = self.listed().get(url)
            if worker is not None and worker.get("is_healthy"):
                return
            if time.monotonic() > end:
                state = "has it, and calls it unhealthy" if worker is not None else "does not take it"
                raise RouterError("the router at %s %s: %s" % (self.url, state, url))
            # what it cannot reach it would try for half an hour: asked for only when it answers here
            if worker is None and time.monotonic() - asked > DEED_S and healthy(url):
                asked = time.monotonic()
                body = {"url": url, **({"api_key": self.key} if self.key else {})}
                self._ask("POST", "/workers", body)
            time.sleep(PAUSE_S)

    # -- what is drained -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One at a time changes what the router has."""
        os.makedirs(self.place.state, mode=0o755, exist_ok=True)
        with open(os.path.join(self.place.state, "lock"), "w", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def marks(self) -> dict[str, Any]:
        """Worker -> who drained it, and when. A file that cannot be read is an error: nobody is let back by it."""
        path = os.path.join(self.place.state, "drained.json")
        return dict(_read(path)) if os.path.exists(path) else {}

    def mark(self, marks: Mapping[str, Any]) -> None:
        """Write that down."""
        _write(os.path.join(self.place.state, "drained.json"), json.dumps(marks, indent=2) + "\n", 0o644)

    # -- what can be asked for -----------------------------------------------------------------------------------

    def look(self) -> dict[str, Any]:
        """What there is, for people and for ``rackwell status``."""
        marks, listed, why = self.marks(), {}, ""
        try:
            listed = self.listed()
        except SilentError as error:
            why = str(error)
        workers = [
            {
                "name": name,
                "url": url,
                "listed": url in listed,
                "healthy": bool(listed.get(url, {}).get("is_healthy")),
                "drained": marks.get(name),
            }
            for name, url in sorted(self.declared.items())
        ]
        others = sorted(set(listed) - set(self.declared.values()))
        return {"answers": not why, "why": why, "url": self.url, "workers": workers, "others": others}

    def drain(self, name: str, run: str, wait_s: float) -> dict[str, Any]:
        """Take a worker out of rotation, and wait until it has no request any more.

        On failure it is in rotation as before.
        """
        url, begun = self._declared(name), time.monotonic()
        with self.locked():
            before = self.marks()
            # first: from here on neither a restart of the router nor `keep` brings it back
            self.mark({**before, name: {"run": run, "since": int(time.time())}})
            try:
                self.remove(url)
            except RouterError:
                self.mark(before)
                raise
        quiet, running = 0.0, None
        while True:
            moment = time.monotonic()
            running = load(url, self.key)
            quiet = quiet or moment if not running else 0.0
            if quiet and moment - quiet >= QUIET_S:
                return {"worker": name, "seconds": round(moment - begun, 1), "counted": running is not None}
            if moment - begun > wait_s:
                with contextlib.suppress(RouterError):
                    self.undrain(name, DEED_S)
                told = "%d of its requests did not end within %d s" % (running or 0, wait_s)
                raise RouterError("%s was not drained: %s; it is in rotation again" % (name, told))
            time.sleep(PAUSE_S)

    def undrain(self, name: str, wait_s: float) -> dict[str, Any]:
        """Bring a worker back into rotation; the router must call it healthy."""
        url, end = self._declared(name), time.monotonic() + wait_s
        with self.locked():
            marks = self.marks()
            drained = marks.pop(name, None) is not None
            if drained:
                # first: should the rest fail, `keep` goes on with it
                self.mark(marks)
            try:
                self.add(url, end)
            except SilentError:
                # of a router that was silent before, too, nothing was taken
                if drained:
                    raise
        return {"worker": name, "drained": drained}

    def keep(self, wait_s: float) -> list[str]:
        """Let the router have what is declared, answers and is not drained, and nothing else. What was changed."""
        end = time.monotonic() + wait_s
        while True:
            try:
                with self.locked():
                    return self._keep()
            except SilentError:
                if time.monotonic() > end:
                    raise
            time.sleep(PAUSE_S)

    def _keep(self) -> list[str]:
        marks, changed = self.marks(), []
        wanted = {url for name, url in self.declared.items() if name not in marks}
        listed = self.listed()
        for url in sorted(set(listed) - wanted):
            self.remove(url)
            changed.append("removed " + url)
        for url in sorted(wanted - set(listed)):
            if healthy(url):
                try:
                    self.add(url, time.monotonic() + DEED_S)
                except SilentError:
                    raise
                except RouterError as error:
                    # the others are to come all the same, and the next look tries again
                    changed.append(str(error))
                    continue
                changed.append("added " + url)
        return changed

    def _declared(self, name: str) -> str:
        if name not in self.declared:
            known = ", ".join(sorted(self.declared)) or "none"
            raise RouterError("%s is no worker of this router, which has: %s" % (name, known))
        return self.declared[name]


def healthy(url: str) -> bool:
    """Whether a server says that it is ready."""
    try:
        return _http("GET", url + "/health", "")[0] == 200
    except OSError:
        return False


def load(url: str, key: str) -> int | None:
    """How many requests a server has; 0 for one that is not there; None when it does not tell."""
    try:
        # of the scheduler itself; the gauges of /metrics are up to half a minute old
        status, text = _http("GET", url + "/v1/loads", key)
        if status == 200:
            found = json.loads(text)["loads"]
            return (
                None if not found else sum(int(one["num_running_reqs"]) + int(one["num_waiting_reqs"]) for one in found)
            )
        status, text = _http("GET", url + "/metrics", key)
    except OSError as error:
        # a refused connection has nobody behind it; one that timed out may have
        return 0 if isinstance(getattr(error, "reason", error), ConnectionRefusedError) else None
    except (ValueError, LookupError, TypeError):
        return None
    values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(GAUGES)]
    try:
        # each rank tells the same
        return int(sum(float(value) for value in values)) if status == 200 and values else None
    except ValueError:
        return None


def arguments(settings: Mapping[str, Any], control_key: str) -> list[str]:
    """The router's command line. It is given to it inside of the process: no key stands where `ps` shows it."""
    flags = {
        # one that died is asked for no longer than this times three
        "health-check-interval-secs": 10,
        # else it writes two lines a request
        "log-level": "warn",
        **dict(settings.get("flags") or {}),
        "host": settings["address"],
        "port": settings["port"],
        "prometheus-host": "127.0.0.1",
        "prometheus-port": settings["metrics_port"],
        "policy": settings["policy"],
        "control-plane-api-keys": "rackwell:rackwell:admin:" + control_key,
    }
    if settings.get("api_key"):
        flags["api-key"] = settings["api_key"]
    found: list[str] = []
    for name, value in flags.items():
        if value is False:
            continue
        found.append("--" + name)
        if value is not True:
            found += [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return found


def run(place: Place) -> int:
    """Be the router, until it ends."""
    settings = _read(place.settings)
    key = secrets.token_hex(32)
    _write(os.path.join(place.runtime, "control.key"), key, 0o600)
    from sglang_router.launch_router import launch_router, parse_router_args

    launch_router(parse_router_args(arguments(settings, key)))
    return 0


def check(path: str) -> int:
    """Hold settings against the router's own options; it tells what is wrong with them, and ends with 2."""
    from sglang_router.launch_router import parse_router_args

    parse_router_args(arguments(_read(path), "none"))
    return 0


def _answer(router: Router, asked: Mapping[str, Any]) -> dict[str, Any]:
    what = asked.get("op")
    if what == "look":
        return router.look()
    if what == "drain":
        wait_s = float(asked.get("wait_s") or router.settings.get("drain_timeout") or 300)
        return router.drain(str(asked["worker"]), str(asked.get("run") or ""), wait_s)
    if what == "undrain":
        return router.undrain(str(asked["worker"]), float(asked.get("wait_s") or 60))
    raise RouterError("there is no %r: drain, undrain, look" % (what,))


def main(argv: list[str], place: Place = Place()) -> int:  # noqa: B008 - an immutable default
    """Entry point. What was asked for and not done is an ``error`` in the answer, and exit code 1."""
    if not argv or argv[0] not in {"run", "check", "keep", "look", "ask"} or argv == ["check"]:
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    try:
        if argv[0] == "run":
            return run(place)
        if argv[0] == "check":
            return check(argv[1])
        if argv[0] == "keep":
            for line in Router(place).keep(float(argv[1]) if len(argv) > 1 else 0.0):
                sys.stdout.write(line + "\n")
            return 0
        asked = {"op": "look"} if argv[0] == "look" else json.load(sys.stdin)
        answer = _answer(Router(place), asked)
    except (RouterError, OSError, ValueError, KeyError) as error:
        told = str(error) if isinstance(error, RouterError) else "%s: %s" % (type(error).__name__, error)
        if argv[0] in {"run", "check", "keep"}:
            sys.stderr.write(told + "\n")
        else:
            sys.stdout.write(json.dumps({"error": told}) + "\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
