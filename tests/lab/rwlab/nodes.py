# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: device nodes of a host, healthy and as `lab.py set node` wants them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rwlab.errors import LabError

# what a fault can be beside ``false`` (no node)
PLAIN = "file"
_MODE = 0o666


@dataclasses.dataclass(frozen=True)
class Node:
    """One entry of /dev: a character device, or with ``plain`` a file that stands in its place."""

    major: int
    minor: int
    mode: int = _MODE
    plain: bool = False


def fault(name: str, value: Any) -> Any:
    """A value of `set node` as it is kept; None means healthy.

    Raises:
        LabError: it is none of true, false, "file", {"mode": "0660"}, {"major": 240}, {"minor": 7}.
    """
    if value is True or value is None:
        return None
    if value is False or value == PLAIN:
        return value
    if isinstance(value, dict) and value and set(value) <= {"mode", "major", "minor"}:
        try:
            mode = int(str(value.get("mode", "0666")), 8)
            numbers = [int(value[key]) for key in ("major", "minor") if key in value]
            if mode <= 0o777 and all(0 <= number < 1 << 12 for number in numbers):
                return value
        except ValueError:
            pass
    raise LabError(
        "node-invalid",
        f"{name} cannot be {value!r}",
        why='true, false, "file", or an object of mode ("0660"), major, minor',
        fix='lab.py set node nvidia-uvm=\'{"mode": "0660"}\'',
        exit_code=2,
    )


def wanted(healthy: Mapping[str, Node], faults: Mapping[str, Any]) -> dict[str, Node]:
    """The nodes of a host with these faults."""
    found = {}
    for name, node in healthy.items():
        broken = faults.get(name)
        if broken == PLAIN:
            found[name] = dataclasses.replace(node, plain=True)
        elif isinstance(broken, dict):
            major, minor = int(broken.get("major", node.major)), int(broken.get("minor", node.minor))
            found[name] = Node(major, minor, int(str(broken.get("mode", "0666")), 8))
        elif broken is not False:
            found[name] = node
    return found


def making(name: str, node: Node, directory: str) -> str:
    """A line of shell that makes it where nothing is."""
    path = f"{directory}/{name}"
    made = f': >"{path}"' if node.plain else f'mknod "{path}" c {node.major} {node.minor}'
    # not mknod -m: that looks into /proc, which nsenter leaves behind
    return f'{made}; chmod {node.mode:04o} "{path}"'


def mending(nodes: Mapping[str, Node], *, only_existing: bool, named: set[str]) -> str:
    """Shell that brings a running host's /dev to these nodes.

    Args:
        only_existing: leave out a node that is not there, unless it is ``named``: the host's own unit makes them.
    """
    lines = ["umask 0", "cd /dev"]
    lines.append('for n in nvidia*; do case " $1 " in *" $n "*) ;; *) [ -d "$n" ] || rm -f "$n" ;; esac; done')
    for name, node in nodes.items():
        if node.plain:
            same = f"[ -f {name} ]"
        else:
            shown = f"{node.major:x}:{node.minor:x}:{node.mode:o}"
            same = f'[ -c {name} ] && [ "$(stat -c %t:%T:%a {name})" = {shown} ]'
        theirs = f"elif [ ! -e {name} ]; then :; " if only_existing and name not in named else ""
        lines.append(f"if {same}; then :; {theirs}else rm -f {name}; {making(name, node, '.')}; fi")
    return "\n".join(lines)
