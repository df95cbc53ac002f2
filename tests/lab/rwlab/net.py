# SPDX-License-Identifier: Apache-2.0
"""The laboratory's network: one bridge of this machine, a /24 of its own, and address translation to the outside."""

from __future__ import annotations

import ipaddress
import json
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from rwlab.console import say
from rwlab.errors import LabError
from rwlab.proc import run
from rwlab.record import Record

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def free_subnet(first: int, used: Iterable[str]) -> int | None:
    """The first x from ``first`` on, round 1 to 254, for which no network in ``used`` overlaps 10.213.x.0/24."""
    # everything overlaps the default route and the like: only what is at most as wide as 10.213.0.0/16 counts
    taken = [ipaddress.ip_network(text, strict=False) for text in used]
    taken = [network for network in taken if network.version == 4 and network.prefixlen >= 16]
    for step in range(254):
        x = (first - 1 + step) % 254 + 1
        if not any(network.overlaps(ipaddress.ip_network(f"10.213.{x}.0/24")) for network in taken):
            return x
    return None


def networks_in_use(own_bridge: str) -> list[str]:
    """Every IPv4 network that this machine has an address or a route in, other than by ``own_bridge``."""
    found = []
    for link in json.loads(run(["ip", "-j", "-4", "address", "show"]).stdout or "[]"):
        if link.get("ifname") == own_bridge:
            continue
        found += [f"{a['local']}/{a['prefixlen']}" for a in link.get("addr_info", []) if a.get("family") == "inet"]
    for route in json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"], check=False).stdout or "[]"):
        target = route.get("dst", "default")
        if target != "default" and route.get("dev") != own_bridge:
            found.append(target)
    return found


def up(record: Record, others: Iterable[str]) -> None:
    """Make the bridge, its address, forwarding and translation. Does nothing where all is there.

    Args:
        others: networks that other laboratories of this machine hold, running or not.

    Raises:
        LabError: no free network, or this laboratory's own was taken meanwhile.
    """
    used = networks_in_use(record.bridge)
    if record.subnet < 0:
        x = free_subnet(int(record.id, 16) % 254 + 1, [*used, *others])
        if x is None:
            raise LabError("no-network", "all networks 10.213.x.0/24 are in use", fix="lab.py down --purge an old one")
        record.subnet = x
    elif free_subnet(record.subnet, used) != record.subnet:
        raise LabError(
            "network-taken",
            f"{record.network} is in use by something else now",
            why="another interface or route of this machine lies in it",
            fix="free it, or lab.py down --purge and up to get another one",
        )
    bridge = record.bridge
    if not Path("/sys/class/net", bridge).exists():
        # an address of its own: else the bridge takes the lowest of its ports, which come and go
        mac = f"02:{record.id[:2]}:{record.id[2:4]}:{record.id[4:6]}:{record.id[6:]}:01"
        run(["ip", "link", "add", bridge, "address", mac, "type", "bridge", "stp_state", "0", "forward_delay", "0"])
    run(["ip", "address", "replace", f"{record.address(1)}/24", "dev", bridge])
    run(["ip", "link", "set", bridge, "up"])
    _translate(record)


def _translate(record: Record) -> None:
    """Let the laboratory reach the outside. It works without too (only apt in a container needs it), so it may fail."""
    try:
        if _FORWARD.read_text().strip() == "0":
            record.forward_was = record.forward_was or "0"
            _FORWARD.write_text("1\n")
        for chain in _rules(record):
            if run(["iptables", "-w", *_with(chain, "-C")], check=False).returncode:
                run(["iptables", "-w", *_with(chain, "-A" if "nat" in chain else "-I")])
        record.nat = True
    except (OSError, LabError) as error:
        record.nat = False
        why = error.why if isinstance(error, LabError) and error.why else str(error)
        say(record.bridge, f"containers will not reach the outside: {why}")


def _rules(record: Record) -> list[list[str]]:
    """This laboratory's rules, without the action, each with its comment."""
    tag = ["-m", "comment", "--comment", f"rackwell-lab {record.id}"]
    rules = [["-t", "nat", "POSTROUTING", "-s", record.network, "!", "-d", record.network, *tag, "-j", "MASQUERADE"]]
    policy = run(["iptables", "-w", "-S", "FORWARD"]).stdout.strip()
    # another's rules or a closed policy (Docker's, a firewall's) would drop what the bridge forwards
    if policy != "-P FORWARD ACCEPT":
        rules += [
            ["FORWARD", "-i", record.bridge, *tag, "-j", "ACCEPT"],
            ["FORWARD", "-o", record.bridge, *tag, "-j", "ACCEPT"],
        ]
    return rules


def _with(rule: list[str], action: str) -> list[str]:
    """A rule with its action before the chain's name."""
    at = 2 if rule[0] == "-t" else 0
    return [*rule[:at], action, *rule[at:]]


def down(record: Record, *, others_run: bool) -> None:
    """Remove the bridge and the rules; forwarding goes back to what it was once no laboratory runs."""
    run(["ip", "link", "delete", record.bridge], check=False)
    # without the program no rule was made
    for table in ("nat", "filter") if shutil.which("iptables") else ():
        for line in run(["iptables", "-w", "-t", table, "-S"], check=False).stdout.splitlines():
            if f'"rackwell-lab {record.id}"' in line and line.startswith("-A "):
                run(["iptables", "-w", "-t", table, "-D", *shlex.split(line[3:])], check=False)
    if record.forward_was == "0" and not others_run:
        try:
            _FORWARD.write_text("0\n")
        except OSError as error:
            say(record.bridge, f"ip_forward stays 1: {error}")
        record.forward_was = ""
