#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a roll costs beside the engine's own restart, against a plain playbook that sets the link and restarts.

    rackwell lab up --name roll --suite bookworm --hosts 3
    tests/roll/run.py --site SITE --prepare; for n in 1 2 3; do rackwell provision glm5-0$n -i SITE --no-bench; done
    benchmarks/roll.py --site SITE [--name roll] [--rounds 3]

Each round does, on the same hosts one after the other: `systemctl restart` alone, the playbook, and a roll without its
benchmark. A poller in each container asks /health every 10 ms; the gap is from the first answer that is missing to the
first one after it. `of it by turns` is what a host takes from its lock to its unlock, by the journal: the rest is the
start of the command and the staging, which all hosts do at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests/roll"))

import watch  # noqa: E402 (the harness is no installed package)
from place import BUILDS, CONFIRM, Place  # noqa: E402

POLLER = """\
import http.client, select, sys, time
down, gaps = None, []
while not select.select([sys.stdin], [], [], 0.01)[0]:
    try:
        link = http.client.HTTPConnection("127.0.0.1", 30000, timeout=2)
        link.request("GET", "/health")
        ok = link.getresponse().status == 200
        link.close()
    except (OSError, http.client.HTTPException):
        ok = False
    now = time.monotonic()
    if not ok and down is None:
        down = now
    if ok and down is not None:
        gaps.append(now - down)
        down = None
print(max(gaps, default=0.0))
"""
WAIT = """\
import time, urllib.request
while True:
    try:
        urllib.request.urlopen("http://127.0.0.1:30000/health_generate", timeout=5)
        break
    except OSError:
        time.sleep(0.1)
"""
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  serial: 1
  tasks:
    - name: Set the link
      ansible.builtin.file:
        src: /opt/rackwell/releases/{digest}
        dest: /opt/rackwell/current
        state: link
    - name: Restart
      ansible.builtin.systemd_service:
        name: rackwell-inference.service
        state: restarted
    - name: Wait for it
      ansible.builtin.uri:
        url: http://127.0.0.1:30000/health_generate
        timeout: 5
      register: health
      until: health.status == 200
      retries: 300
      delay: 0.5
"""


def polled(place: Place, act: Callable[[], object]) -> tuple[float, dict[str, float]]:
    """Seconds that `act` takes, and the longest gap of each container in it."""
    script = f"exec python3 -c '{POLLER}'"
    pollers = {}
    for name in place.names:
        known = place.site / "known_hosts"
        argv = ["ssh", "-F", "none", "-i", str(place.site / "id_ed25519"), "-o", f"UserKnownHostsFile={known}"]
        argv += ["-o", "GlobalKnownHostsFile=none", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]
        argv += [f"root@{place.addresses[name]}", script]
        pollers[name] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(2)
    began = time.monotonic()
    act()
    took = time.monotonic() - began
    watch.rest(place)
    return took, {name: float(poller.communicate("end\n")[0].strip()) for name, poller in pollers.items()}


def restart(place: Place) -> None:
    """One after the other, each until it serves."""
    for name in place.names:
        place.ssh(name, "systemctl", "restart", "rackwell-inference.service")
        place.ssh(name, f"exec python3 -c '{WAIT}'", timeout=120)


def playbook(place: Place, digest: str) -> None:
    """What an operator writes in ten minutes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.yml"
        path.write_text(PLAYBOOK.format(digest=digest))
        command = [Path(sys.executable).with_name("ansible-playbook"), "-i", place.site / "hosts.yml", path]
        command += ["--limit", ",".join(place.names)]
        environment = {**os.environ, "ANSIBLE_HOST_KEY_CHECKING": "True", "ANSIBLE_PIPELINING": "True"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-1000:])


def roll(place: Place, build: str) -> list[float]:
    """The same by rackwell: staged, locked, checked before and after, journalled, promoted.

    Returns:
        Seconds of each host from its lock to its unlock.
    """
    options = ("--batch", "1", "--skip-gate", "bench", "--reason", "its time is not rackwell's")
    controller = place.begin("roll", build, *options, "--confirm-within", str(CONFIRM))
    if controller.wait() != 0:
        raise SystemExit(controller.told[-2000:])
    journal = controller.journal()
    records = [json.loads(line) for line in journal.read_text().splitlines()] if journal else []
    at = {(one.get("host"), one.get("step"), one["kind"]): float(one["time"]) for one in records}
    return [at[name, "unlock", "end"] - at[name, "lock", "begin"] for name in place.names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="roll")
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="figures, as JSON")
    arguments = parser.parse_args()
    place = Place.at(arguments.name, arguments.site)
    place.reset()
    for build in BUILDS:
        roll(place, build)  # both are staged everywhere from here on
    names = ("restart alone", "playbook", "roll")
    walls: dict[str, list[float]] = {name: [] for name in names}
    gaps: dict[str, list[float]] = {name: [] for name in names}
    turns: list[float] = []
    for number in range(arguments.rounds):
        for name, act in (
            (names[0], lambda: restart(place)),
            (names[1], lambda: playbook(place, place.digest(BUILDS[0]))),
            (names[2], lambda: turns.extend(roll(place, BUILDS[1]))),
        ):
            took, found = polled(place, act)
            walls[name].append(took / len(place.names))
            gaps[name] += found.values()
            print(f"round {number + 1}: {name}: {took:.1f} s, gaps {[round(gap, 2) for gap in found.values()]}")
    print(f"\n{'':<14} {'s a host':>9} {'beyond the restart':>19} {'gap s':>7} {'beyond the restart':>19}")
    figures = {}
    own, own_gap = statistics.median(walls[names[0]]), statistics.median(gaps[names[0]])
    for name in names:
        wall, gap = statistics.median(walls[name]), statistics.median(gaps[name])
        figures[name] = {"wall_s": wall, "wall_beyond_s": wall - own, "gap_s": gap, "gap_beyond_s": gap - own_gap}
        print(f"{name:<14} {wall:>9.1f} {wall - own:>19.1f} {gap:>7.2f} {gap - own_gap:>19.2f}")
    turn = statistics.median(turns)
    print(f"{'of it by turns':<14} {turn:>9.1f} {turn - own:>19.1f}")
    if arguments.out:
        told = {"figures": figures, "turn_s": turn, "turn_beyond_s": turn - own}
        arguments.out.write_text(json.dumps({**told, "walls": walls, "gaps": gaps, "turns": turns}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
