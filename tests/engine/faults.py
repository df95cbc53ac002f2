# SPDX-License-Identifier: Apache-2.0
"""Deaths and refusals of the real engine under rackwell's unit: state, exit status, and what `rackwell status` says."""

from __future__ import annotations

import time
from collections.abc import Callable

from place import CONTAINER, PORT, START_S, UNIT, Place, require, until

#: what the engine needs to end by itself after a part of it died, and the watch at most
SECONDS = 45


def _ended(place: Place, seconds: float = START_S) -> dict[str, str]:
    """Wait until the unit is down for good, and tell how."""
    until(lambda: place.active() in ("failed", "inactive"), seconds, "the unit ends")
    return place.show("ActiveState", "Result", "ExecMainCode", "ExecMainStatus", "NRestarts")


def _refused(place: Place, flags: str, status: str, rule: str) -> str:
    """A start with these flags ends with `status`, is not tried again, and its cause is told."""
    place.stopped()
    with place.changed(flags=flags):
        place.script(f"systemctl start {UNIT}")
        shown = _ended(place)
        require(shown["ExecMainStatus"] == status, f"it ended with {shown}")
        require((shown["ActiveState"], shown["NRestarts"]) == ("failed", "0"), f"it is tried again: {shown}")
        require(not place.of_unit(), "processes are left")
        row = place.status()
    require(row["unit"] == "failed" and rule in row["why"], f"rackwell status: {row}")
    place.script(f"systemctl reset-failed {UNIT}")
    return f"exit {status}, not retried; {row['why']}"


def unknown_flag(place: Place) -> str:
    return _refused(place, "--no-such-flag 7", "2", "sglang-flag-unknown")


def bad_integer(place: Place) -> str:
    return _refused(place, "--tp-size two", "2", "sglang-arg-bad-value")


def context_too_long(place: Place) -> str:
    return _refused(place, "--context-length 1000000", "1", "context")


def no_such_model(place: Place) -> str:
    return _refused(place, "--model-path /nonexistent/model", "1", "model")


def port_taken(place: Place) -> str:
    """Another process has the port: told before anything is touched, and by a start of its own accord."""
    place.stopped()
    other = f"systemd-run --quiet --unit=engine-other --collect /usr/bin/python3 -m http.server -b 127.0.0.1 {PORT}"
    place.script(other)
    try:
        until(lambda: place.script(f"ss -Hltn 'sport = :{PORT}' || true"), 20, "the other listens")
        early = place.rackwell("provision", CONTAINER, "--no-bench")
        require("port-taken" in early.problems, f"rackwell provision ended with {early.code}: {early.problems}")
        place.script(f"systemctl start {UNIT}")
        shown = _ended(place)
        require(shown["ExecMainStatus"] == "3", f"it ended with {shown}")
        require((shown["ActiveState"], shown["NRestarts"]) == ("failed", "0"), f"it is tried again: {shown}")
        lies = "The server is fired up and ready to roll!" in place.log()
        row = place.status()
        require("port" in row["why"], f"rackwell status: {row}")
    finally:
        place.script(f"systemctl stop engine-other; systemctl reset-failed {UNIT} 2>/dev/null; true")
    return f"provision: port-taken, exit {early.code}; exit 3{', after it said ready' if lies else ''}; {row['why']}"


def _dies(place: Place, act: Callable[[], object], rule: str) -> str:
    """What is done ends this start within seconds; it is told, and the next one serves with no process of the old."""
    place.started()
    first, old = place.show("InvocationID"), set(place.of_unit())
    began = time.monotonic()
    act()
    until(lambda: place.show("InvocationID") != first or place.active() != "active", SECONDS, "this start ends")
    found = time.monotonic() - began
    until(lambda: place.show("NRestarts")["NRestarts"] == "1", 60, "it is started again")
    row = place.status()
    require(rule in row["why"], f"rackwell status: {row}")
    left = old & set(place.of_unit())
    require(not left, f"processes of the start before: {left}")
    until(place.serves, START_S, "the next start serves")
    row = place.status()
    require(row["unit"] == "active, 1 restarts" and rule in row["why"], f"once it serves again, rackwell status: {row}")
    return f"ended after {found:.0f} s, serves again; {row['why']}"


def crash(place: Place) -> str:
    """The only scheduler is killed: the engine notices by itself, and a crash is no clean stop."""
    return _dies(place, lambda: place.script(f"kill -9 {place.parts()['scheduler']}"), "sglang")


def detokenizer(place: Place) -> str:
    """Nothing answers, and the engine itself would wait for more than a minute."""
    return _dies(place, lambda: place.script(f"kill -9 {place.parts()['detokenizer']}"), "detokenizer")


def hang(place: Place) -> str:
    """A stopped scheduler, which the engine never notices."""
    return _dies(place, lambda: place.script(f"kill -STOP {place.parts()['scheduler']}"), "scheduler")


def busy(place: Place) -> str:
    """A server with more requests than it can take at once is left alone."""
    place.started()
    first = place.show("InvocationID")
    load = (
        "import json,threading,urllib.request as u\n"
        "def ask():\n"
        f"    r=u.Request('http://127.0.0.1:{PORT}/v1/completions',json.dumps(dict(model='toy',prompt='a b c '*400,"
        "max_tokens=200,ignore_eos=True)).encode(),{'Content-Type':'application/json'})\n"
        "    u.urlopen(r,timeout=900).read()\n"
        "t=[threading.Thread(target=ask) for _ in range(48)]\n"
        "[x.start() for x in t]; [x.join() for x in t]\n"
        "print('answered')\n"
    )
    place.script("cat >/run/load.py", load.encode())
    began = time.monotonic()
    said = place.script("python3 /run/load.py")
    require(said == "answered" and place.show("InvocationID") == first, f"it was not left alone: {said}")
    return f"48 long requests answered in {time.monotonic() - began:.0f} s by the same start"


def orphans(place: Place) -> str:
    """A start that is killed leaves children behind, which are gone before the next one."""
    place.stopped()
    place.script(f"systemctl start {UNIT}")
    until(lambda: len(place.of_unit()) >= 3, START_S, "children are there")
    old = set(place.of_unit())
    place.script(f"kill -TERM $(systemctl show -P MainPID {UNIT})")
    until(lambda: place.active() in ("failed", "inactive", "activating"), SECONDS, "this start ends")
    until(lambda: not old & set(place.of_unit()), 10, "its children are gone")
    place.stopped()
    return f"{len(old)} processes at the kill, none of them left"


FAULTS: dict[str, Callable[[Place], str]] = {
    one.__name__: one
    for one in (
        unknown_flag, bad_integer, context_too_long, no_such_model, port_taken, orphans, crash, detokenizer, hang, busy,
    )
}  # fmt: skip
