# SPDX-License-Identifier: Apache-2.0
"""The agent as files of a host: the sources that this module travels with, a launcher, and the unit for the boot."""

from __future__ import annotations

import hashlib
import os
import py_compile
import shutil
import sys
from typing import NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_launcher, rollout_agent

PACKAGE = "ansible_collections.rackwell.gpu.plugins.module_utils"
LIBRARY = "/usr/local/lib/rackwell"
LAUNCHER = os.path.join(LIBRARY, "rollout-agent")
BOOT_UNIT = "rackwell-rollout-boot.service"
#: the server's unit wants it; it ends with the start that it watches
WATCH_UNIT = "rackwell-inference-watch.service"
#: loaded by the module, not by the agent
_NOT_NEEDED = ("outcome", "rollout_install", "inference_launcher")
#: starts a server that has secrets; the unit names it
SERVE = "serve.py"

_LAUNCHER = """\
#!%(python)s -ISB
# Written by rackwell. The host's own side of a roll: docs/roll.md
import sys

sys.path.insert(0, %(tree)r)
from %(package)s.rollout_agent import Place, main

raise SystemExit(main(sys.argv[1:], Place(*%(place)r), [%(launcher)r]))
"""
_UNIT = """\
# Written by rackwell.
[Unit]
Description=Put back what ran before, when a change was never confirmed (rackwell)
ConditionPathExists=%(state)s/rollout/change.json
After=local-fs.target
Before=%(unit)s rackwell-gpu-gate.service

[Service]
Type=oneshot
ExecStart=%(launcher)s boot

[Install]
WantedBy=multi-user.target
"""
_WATCH = """\
# Written by rackwell.
[Unit]
Description=Watch over the inference server (rackwell)
PartOf=%(unit)s
After=%(unit)s

[Service]
ExecStart=%(launcher)s watch
Restart=on-failure
RestartSec=10
"""


class Install(NamedTuple):
    """What should be on the host: path -> (text, mode), and the directory of the sources among them."""

    wanted: dict[str, tuple[str, int]]
    tree: str


def sources() -> dict[str, str]:
    """The modules that the agent consists of, by file name; as loaded, from a directory or from a module's archive."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        package, _dot, base = name.rpartition(".")
        if package != PACKAGE or base in _NOT_NEEDED:
            continue
        text = module.__loader__.get_source(name)  # type: ignore[union-attr]
        if text:
            found[base + ".py"] = text
    return found


def install(
    place: rollout_agent.Place, python: str, library: str = LIBRARY, units: str = "/etc/systemd/system"
) -> Install:
    """The files for a place. A tree has the name of its content: what runs keeps the one that it was started from."""
    code = sources()
    digest = hashlib.sha256("".join(f"{name}\\0{text}\\0" for name, text in sorted(code.items())).encode()).hexdigest()
    tree = os.path.join(library, "agent-" + digest[:16])
    folder = os.path.join(tree, *PACKAGE.split("."))
    launcher = os.path.join(library, "rollout-agent")
    values = {
        "python": python,
        "tree": tree,
        "package": PACKAGE,
        "place": tuple(place),
        "launcher": launcher,
        "state": place.state,
        "unit": place.unit,
    }
    wanted = {os.path.join(folder, name): (text, 0o644) for name, text in code.items()}
    serve = inference_launcher.__loader__.get_source(inference_launcher.__name__)
    wanted[os.path.join(library, SERVE)] = (serve, 0o644)
    # the launcher last: it names the tree
    wanted[os.path.join(units, BOOT_UNIT)] = (_UNIT % values, 0o644)
    wanted[os.path.join(units, WATCH_UNIT)] = (_WATCH % values, 0o644)
    wanted[launcher] = (_LAUNCHER % values, 0o755)
    return Install(wanted, tree)


def differences(wanted: Install) -> list[str]:
    """Paths that are not as they should be."""
    return [path for path, (text, _mode) in wanted.wanted.items() if files.read_text(path) != text]


def put(wanted: Install) -> None:
    """Write what differs, the launcher last, and remove the trees of other versions. Raises OSError."""
    for path in differences(wanted):
        text, mode = wanted.wanted[path]
        files.write(path, text, mode)
        if path.endswith(".py"):
            # each request starts the program anew, and it writes nothing itself: compiled here, it starts sooner.
            # What does not compile is told when it runs
            py_compile.compile(path, quiet=2)
    library = os.path.dirname(wanted.tree)
    for name in os.listdir(library):
        other = os.path.join(library, name)
        if name.startswith("agent-") and other != wanted.tree:
            shutil.rmtree(other, ignore_errors=True)
