# SPDX-License-Identifier: Apache-2.0
"""The command line: up, down, status, shell, destroy, reboot, set, reset."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rwlab import access, console, faults, files, lab, site
from rwlab.errors import LabError
from rwlab.paths import Instance
from rwlab.record import Record, load

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is rackwell's: 0 done, 1 failed, 2 usage, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    # ended by `timeout`, a service manager or a closed terminal is as by Ctrl-C: the state is safe, and said so
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        console.quiet = arguments.quiet
        result: int = arguments.run(arguments, Instance.of(arguments.name))
        return result
    except LabError as error:
        return _tell(arguments, error)
    except OSError as error:
        return _tell(arguments, _of_system(error))
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print("rackwell lab: interrupted; what was made so far is kept, run it again to go on", file=sys.stderr)
        return _INTERRUPTED


def _tell(arguments: argparse.Namespace, error: LabError) -> int:
    if getattr(arguments, "json", False):
        print(json.dumps({"schema": "rackwell.lab/1", "name": arguments.name, "error": error.as_dict()}))
    print(error.text(), file=sys.stderr)
    return error.exit_code


def _of_system(error: OSError) -> LabError:
    """What the machine refused, in the one shape of errors."""
    where = str(error.filename or "")
    if error.errno == errno.ENOSPC:
        needed = "the laboratory needs 3 GB below its cache and about 3 GB below each instance"
        return LabError(
            "no-space", "the disk is full", where=where, why=needed, fix="free space, and run the command again"
        )
    return LabError("system-error", "the machine refused an operation", where=where, why=str(error.strerror or error))


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--name", default=os.environ.get("RACKWELL_LAB_NAME") or "demo", help="the instance (default: demo)"
    )
    common.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser = argparse.ArgumentParser(
        prog="rackwell lab", description="The laboratory: Proxmox VE hosts and GPU containers on this machine."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("up", parents=[common], help="bring an instance up; what is there is left alone")
    command.add_argument(
        "--suite", type=lambda text: text.split(","), help="templates to offer: bookworm,trixie (default: bookworm)"
    )
    command.add_argument("--hosts", type=int, help="least number of Proxmox VE hosts (default: one a suite)")
    command.add_argument("--nccl", type=Path, help="libnccl.so.2 for new containers' library directory (real GPUs)")
    command.add_argument("--json", action="store_true", help="print the status afterwards, as JSON")
    command.set_defaults(run=_up)

    command = commands.add_parser("down", parents=[common], help="stop an instance; its state stays")
    command.add_argument("--purge", action="store_true", help="remove its state too (the cache stays)")
    command.set_defaults(run=_down)

    command = commands.add_parser("status", parents=[common], help="what there is of an instance")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_status)

    command = commands.add_parser("shell", parents=[common], help="a root shell on a host or in a container")
    command.add_argument("machine")
    command.add_argument("command", nargs=argparse.REMAINDER, help="a command instead of a shell")
    command.set_defaults(run=_shell)

    command = commands.add_parser("destroy", parents=[common], help="remove containers, as if they had never been made")
    command.add_argument("container", nargs="+")
    command.set_defaults(run=_destroy)

    command = commands.add_parser(
        "set",
        parents=[common],
        help="put a fault into a stand-in",
        description="KEY=JSON changes; KEY= removes. See README.md.",
    )
    command.add_argument("--host", default="pve1")
    command.add_argument("--container", help="target node: inside this running container, until its next start")
    command.add_argument("target", choices=faults.TARGETS)
    command.add_argument("change", nargs="+", metavar="KEY=JSON")
    command.set_defaults(run=_set)

    command = commands.add_parser("reboot", parents=[common], help="restart a host, as after a power cycle")
    command.add_argument("machine", metavar="HOST")
    command.set_defaults(run=_reboot)

    command = commands.add_parser("reset", parents=[common], help="take back all that `set` did")
    command.add_argument("--host", help="only this host")
    command.set_defaults(run=_reset)
    return parser


def _up(arguments: argparse.Namespace, instance: Instance) -> int:
    lab.up(instance, arguments.suite, arguments.hosts, arguments.nccl)
    return _status(arguments, instance)


def _down(arguments: argparse.Namespace, instance: Instance) -> int:
    lab.down(instance, purge=arguments.purge)
    return 0


def _status(arguments: argparse.Namespace, instance: Instance) -> int:
    found = lab.status(instance)
    if arguments.json:
        print(json.dumps(found))
        return 0
    print(f"laboratory {found['name']}: {found['state']}")
    if found["state"] == "absent":
        return 0
    print(f"  site     {found['site']}")
    print(f"  network  {found['network']} on {found['bridge']}" + ("" if found["nat"] else ", no way to the outside"))
    print(f"  GPUs     {found['gpus']}, driver {found['driver_version']}")
    for row in found["hosts"]:
        print(f"  {row['name']:<8} {row['address']:<15} {row['state']}")
    for row in found["containers"]:
        print(f"  {row['name']:<8} {row['address']:<15} {row['state']:<8} vmid {row['vmid']} on {row['host']}")
    return 0


def _set(arguments: argparse.Namespace, instance: Instance) -> int:
    record = _existing(instance)
    with files.locked(instance.lock, instance.name):
        faults.change(
            instance, record, record.host(arguments.host), arguments.target, arguments.change, arguments.container
        )
    return 0


def _reset(arguments: argparse.Namespace, instance: Instance) -> int:
    record = _existing(instance)
    with files.locked(instance.lock, instance.name):
        for host in [record.host(arguments.host)] if arguments.host else record.hosts:
            faults.reset(instance, record, host)
    return 0


def _reboot(arguments: argparse.Namespace, instance: Instance) -> int:
    lab.reboot(instance, arguments.machine)
    return 0


def _destroy(arguments: argparse.Namespace, instance: Instance) -> int:
    lab.destroy(instance, _existing(instance), arguments.container)
    return 0


def _existing(instance: Instance) -> Record:
    lab.require_root()
    record = load(instance)
    if record is None:
        fix = f"lab.py up --name {instance.name}"
        raise LabError("absent", f"there is no laboratory {instance.name!r}", fix=fix, exit_code=2)
    return record


def _shell(arguments: argparse.Namespace, instance: Instance) -> int:
    record = _existing(instance)
    # one that is just starting refuses until its sshd listens: each attempt is a second
    command = access.ssh(instance, _address(record, arguments.machine), "-o", "ConnectionAttempts=20")
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not words:
        command.insert(1, "-t")
    sys.stdout.flush()
    os.execvp(command[0], [*command, *words])


def _address(record: Record, machine: str) -> str:
    # from the record: asking every host for its containers takes longer than most of what is done there
    known = {each.name: record.address(each.octet) for each in (*record.hosts, *site.declared(record))}
    if machine not in known:
        raise LabError(
            "machine-unknown", f"no host or container {machine!r}", why=f"there are {', '.join(known)}", exit_code=2
        )
    return known[machine]
