#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rolls over a laboratory's hosts with a router in front of them and a steady stream of requests through it.

    rackwell lab up --name roll --suite bookworm --hosts 3
    tests/roll/router.py --name roll --site SITE [--only lossless silent restarted killed] [--out FILE]

The router is the real one, on the first Proxmox host. Exit status 0: what was to hold held, 1: it did not.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

import watch
from place import BUILDS, Place, load
from steady import Steady, Tally

FRONT, PORT, MODEL = "pve1", 30080, "glm-5"
ROLL = ("--batch", "1", "--skip-gate", "bench", "--reason", "what is looked at here is the router")


class WrongError(Exception):
    """What was to hold did not."""


def must(true: bool, what: str) -> None:
    """Raise WrongError unless that is so."""
    if not true:
        raise WrongError(what)


class Routed:
    """The harness's laboratory with a router."""

    def __init__(self, place: Place) -> None:
        self.place = place
        path = place.site / "hosts.yml"
        tree = yaml.safe_load(path.read_text())
        tree["all"]["children"]["routers"] = {"hosts": {FRONT: {"router_address": "0.0.0.0", "router_port": PORT}}}
        path.write_text(yaml.safe_dump(tree, sort_keys=False))
        profile = place.site / "profiles/glm5-lab.yml"
        text = yaml.safe_load(profile.read_text())
        text["server"] = {**text["server"], "host": "0.0.0.0"}
        profile.write_text(yaml.safe_dump(text, sort_keys=False))
        record = load(place.instance)
        assert record is not None
        self.url = f"http://{record.address(record.host(FRONT).octet)}:{PORT}"

    def set_up(self) -> None:
        """Provision all containers, and the router with them; the last of it twice, which must change nothing."""
        for name in [*self.place.names, self.place.names[-1]]:
            done = self.place.begin("provision", name, "--no-bench")
            must(done.wait(900) == 0, f"provision {name}: {done.told[-600:]}")
            routers = done.answer["result"]["routers"]
        must([one["changed"] for one in routers] == [0], f"a second provision changed the router: {routers}")
        self.all_in()

    def rotation(self) -> dict[str, str]:
        """Container -> what ``rackwell status`` says of it in the router."""
        done = self.place.begin("status")
        done.wait(120)
        (row,) = done.answer["result"]["routers"]
        must(row["state"] in {"serves", "no worker"}, f"router: {row}")
        found: dict[str, str] = row["workers"]
        return found

    def all_in(self) -> None:
        """All are in rotation."""
        found = self.rotation()
        must(found == dict.fromkeys(self.place.names, "in rotation"), f"in the router: {found}")

    def target(self) -> str:
        """The build that is not served."""
        runs = set(watch.slots(self.place).values())
        return BUILDS[1] if self.place.digest(BUILDS[0]) in runs else BUILDS[0]

    def serves(self, build: str) -> None:
        """All serve that build."""
        wanted = self.place.digest(build)
        found = watch.slots(self.place)
        must(set(found.values()) == {wanted}, f"not all serve {build} {wanted[:12]}: {found}")

    @contextmanager
    def stream(self) -> Iterator[Steady]:
        """Requests before, during and after."""
        with Steady(self.url, MODEL, clients=6, tokens=48) as steady:
            time.sleep(3)
            yield steady
            time.sleep(3)


def _told(tally: Tally) -> dict[str, Any]:
    return {
        "streamed": tally.streamed,
        "whole": tally.whole,
        "lost": tally.lost[:5],
        "lost_count": len(tally.lost),
        "longest_without_an_answer_s": round(tally.longest, 2),
    }


def lossless(routed: Routed) -> dict[str, Any]:
    """A roll over all hosts, and its rollback, lose no request."""
    target = routed.target()
    found: dict[str, Any] = {}
    for verb in (("roll", target, *ROLL), ("rollback",)):
        began = time.monotonic()
        with routed.stream() as steady:
            done = routed.place.begin(*verb)
            code = done.wait(1200)
        tally = steady.end()
        found[verb[0]] = {"exit": code, "seconds": round(time.monotonic() - began, 1), **_told(tally)}
        print(json.dumps(found, indent=2), flush=True)
        must(code == 0, f"{verb[0]}: exit {code}: {done.told[-600:]}")
        must(not tally.lost, f"{verb[0]} lost {len(tally.lost)}: {tally.lost[:5]}")
        must(tally.answered > 100, f"only {tally.answered} requests were answered")
        routed.all_in()
    return found


def silent(routed: Routed) -> dict[str, Any]:
    """With a router that does not answer no host is switched."""
    before = watch.slots(routed.place)
    routed.place.ssh(FRONT, "systemctl", "stop", "rackwell-router.service")
    try:
        done = routed.place.begin("roll", routed.target(), *ROLL)
        code = done.wait(600)
    finally:
        routed.place.ssh(FRONT, "systemctl", "start", "rackwell-router.service")
    after = watch.slots(routed.place)
    problem = done.answer["problems"][0]
    must(code == 1 and before == after, f"exit {code}, {before} -> {after}")
    must(f"router {FRONT}: " in problem["what"], str(problem))
    routed.all_in()
    return {"exit": code, "what": problem["what"]}


def restarted(routed: Routed) -> dict[str, Any]:
    """A router that is restarted in the middle of a roll does not bring back who is drained."""
    first = routed.place.names[0]
    done = routed.place.begin("roll", routed.target(), *ROLL)
    done.until(lambda one: (one.get("host"), one.get("kind"), one.get("step")) == (first, "begin", "switch"))
    routed.place.ssh(FRONT, "systemctl", "restart", "rackwell-router.service")
    looked = json.loads(routed.place.ssh(FRONT, "/usr/local/lib/rackwell/router-agent", "look"))
    mine = next(one for one in looked["workers"] if one["name"] == first)
    # it may be past its switch by now; what must not be is both
    must(not (mine["drained"] and mine["listed"]), f"{first} is drained and in rotation: {mine}")
    code = done.wait(1200)
    must(code == 0, f"exit {code}: {done.told[-600:]}")
    routed.all_in()
    return {"exit": code, "seen": mine}


def killed(routed: Routed) -> dict[str, Any]:
    """A killed controller loses no request either: the host that was open stays out until the roll is gone on with."""
    target, second = routed.target(), routed.place.names[1]
    with routed.stream() as steady:
        done = routed.place.begin("roll", target, *ROLL)
        done.until(lambda one: (one.get("host"), one.get("kind"), one.get("step")) == (second, "end", "switch"))
        done.kill(group=True)
        done.clean()
        between = routed.rotation()
        again = routed.place.begin("resume")
        code = again.wait(1200)
    tally = steady.end()
    must(between[second].startswith("drained by run "), f"between: {between}")
    must(code == 0, f"resume: exit {code}: {again.told[-600:]}")
    must(not tally.lost, f"lost {len(tally.lost)}: {tally.lost[:5]}")
    routed.all_in()
    routed.serves(target)
    return {"exit": code, "between": between, **_told(tally)}


CASES: dict[str, Callable[[Routed], dict[str, Any]]] = {
    one.__name__: one for one in (lossless, silent, restarted, killed)
}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="roll", help="the laboratory's instance")
    parser.add_argument("--site", type=Path, required=True, help="where the harness keeps its site")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, help="results, as JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    routed = Routed(Place.at(given.name, given.site))
    found: dict[str, Any] = {}
    try:
        routed.set_up()
        for name in given.only:
            print(f"-- {name}: {CASES[name].__doc__}", flush=True)
            began = time.monotonic()
            found[name] = {**CASES[name](routed), "took_s": round(time.monotonic() - began, 1)}
            print(json.dumps(found[name], indent=2), flush=True)
    except WrongError as wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
        return 1
    finally:
        if given.out:
            given.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
