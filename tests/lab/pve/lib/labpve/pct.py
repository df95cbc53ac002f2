# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). The command line of `pct`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from . import schema
from .config import encode_text
from .containers import Containers
from .errors import PveError, UsageError
from .host import VERSION, Host

# command -> its arguments as the synopsis shows them, its own options (True: takes a value)
COMMANDS: dict[str, tuple[str, dict[str, bool]]] = {
    "create": ("<vmid> <ostemplate> [OPTIONS]", {}),
    "set": ("<vmid> [OPTIONS]", {}),
    "start": ("<vmid> [OPTIONS]", {"debug": True, "skiplock": True}),
    "stop": ("<vmid> [OPTIONS]", {"skiplock": True, "overrule-shutdown": True}),
    "shutdown": ("<vmid> [OPTIONS]", {"timeout": True, "forceStop": True}),
    "reboot": ("<vmid> [OPTIONS]", {"timeout": True}),
    "status": ("<vmid> [OPTIONS]", {"verbose": True}),
    "config": ("<vmid> [OPTIONS]", {"current": True, "snapshot": True}),
    "pending": ("<vmid>", {}),
    "destroy": ("<vmid> [OPTIONS]", {"force": True, "purge": True, "destroy-unreferenced-disks": True}),
    "unlock": ("<vmid>", {}),
    "list": ("", {}),
    "exec": ("<vmid> [<extra-args>] [OPTIONS]", {"keep-env": True}),
    "enter": ("<vmid> [OPTIONS]", {"keep-env": True}),
    "push": ("<vmid> <file> <destination> [OPTIONS]", {"user": True, "group": True, "perms": True}),
    "pull": ("<vmid> <path> <destination> [OPTIONS]", {"user": True, "group": True, "perms": True}),
    "version": ("", {}),
}
FLAGS = (
    "debug",
    "verbose",
    "force",
    "purge",
    "current",
    "skiplock",
    "forceStop",
    "keep-env",
    "overrule-shutdown",
    "destroy-unreferenced-disks",
    "start",
)


def split(words: list[str], flags: tuple[str, ...]) -> tuple[list[str], dict[str, list[str]]]:
    """Words as Perl's Getopt::Long of PVE takes them: ``--name value``, ``-name value``, ``--name=value``."""
    plain: list[str] = []
    options: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            plain += words[at:]
            break
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            following = words[at] if at < len(words) else None
            if name in flags and (following is None or following.lower() not in schema.TRUE + schema.FALSE):
                value = "1"
            elif following is None:
                raise UsageError([f"Option {name} requires an argument"], unknown=True)
            else:
                value, at = following, at + 1
        options.setdefault(name, []).append(value)
    return plain, options


class Pct:
    """One invocation."""

    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.host = containers.host

    def run(self, words: list[str]) -> int:
        """Do what the words say; the exit code."""
        if not words or words[0] not in COMMANDS:
            print(
                f"ERROR: unknown command 'pct {words[0]}'" if words else "ERROR: no command specified", file=sys.stderr
            )
            for name, (synopsis, _) in COMMANDS.items():
                print(f"       pct {name} {synopsis}".rstrip(), file=sys.stderr)
            return 255
        name, rest = words[0], words[1:]
        try:
            self.host.require_root()
            if name == "exec":
                return self.exec(rest)
            plain, options = split(rest, FLAGS)
            return self._dispatch(name, plain, options)
        except PveError as error:
            print(error.text, file=sys.stderr)
            if isinstance(error, UsageError):
                print(f"pct {name} {COMMANDS[name][0]}".rstrip(), file=sys.stderr)
            return error.code

    def _dispatch(self, name: str, plain: list[str], options: dict[str, list[str]]) -> int:
        last = {key: values[-1] for key, values in options.items()}
        wanted = COMMANDS[name][0].count("<")
        if name not in ("create", "set"):
            unknown = [f"Unknown option: {key}" for key in last if key not in COMMANDS[name][1]]
            if unknown:
                raise UsageError(unknown, unknown=True)
        if len(plain) > wanted:
            raise UsageError(["too many arguments"], unknown=True)
        if len(plain) < wanted:
            raise UsageError(["not enough arguments"], unknown=True)
        call = getattr(self, "do_" + name)
        if name in ("list", "version"):
            return int(call() or 0)
        vmid = parse_vmid(plain[0])
        if name == "set":
            return int(call(vmid, options) or 0)
        return int(call(vmid, *plain[1:], last) or 0)

    # one method a command ------------------------------------------------------

    def do_create(self, vmid: int, template: str, options: dict[str, str]) -> None:
        if "ssh-public-keys" in options:
            options["ssh-public-keys"] = Path(options["ssh-public-keys"]).read_text()
        self.containers.create(vmid, {**options, "ostemplate": template})

    def do_set(self, vmid: int, options: dict[str, list[str]]) -> None:
        delete = [
            key
            for text in options.pop("delete", [])
            for key in text.replace(";", ",").replace(" ", ",").split(",")
            if key
        ]
        revert = [key for text in options.pop("revert", []) for key in text.split(",") if key]
        digest = options.pop("digest", [None])[-1]
        self.containers.set(vmid, {key: values[-1] for key, values in options.items()}, delete, digest, tuple(revert))

    def do_start(self, vmid: int, _options: dict[str, str]) -> None:
        self.containers.start(vmid)

    def do_stop(self, vmid: int, _options: dict[str, str]) -> None:
        self.containers.stop(vmid)

    def do_shutdown(self, vmid: int, options: dict[str, str]) -> None:
        self.containers.shutdown(vmid, int(options.get("timeout", "60")), options.get("forceStop") == "1")

    def do_reboot(self, vmid: int, options: dict[str, str]) -> None:
        self.containers.reboot(vmid, int(options.get("timeout", "60")))

    def do_destroy(self, vmid: int, options: dict[str, str]) -> None:
        self.containers.destroy(vmid, options.get("force") == "1")

    def do_unlock(self, vmid: int, _options: dict[str, str]) -> None:
        self.containers.unlock(vmid)

    def do_status(self, vmid: int, options: dict[str, str]) -> None:
        found = self.containers.status(vmid)
        if options.get("verbose") == "1":
            for key in sorted(found):
                if not isinstance(found[key], dict):
                    print(f"{key}: {found[key]}")
        else:
            print(f"status: {found['status']}")

    def do_config(self, vmid: int, options: dict[str, str]) -> None:
        conf = self.host.read(vmid)
        keys = conf.main.all_keys() if options.get("current") == "1" else conf.effective()
        for key in sorted(keys):
            print(f"{key}: {encode_text(keys[key]) if key == 'description' else keys[key]}")
        for key, value in conf.main.lxc:
            print(f"{key}: {value}")

    def do_pending(self, vmid: int, _options: dict[str, str]) -> None:
        for row in self.containers.pending(vmid):
            show = encode_text if row["key"] == "description" else str
            if "value" in row:
                print(f"{'del' if row.get('delete') else 'cur'} {row['key']}: {show(row['value'])}")
            if "pending" in row:
                print(f"new {row['key']}: {show(row['pending'])}")

    def do_list(self) -> None:
        vmids = self.host.vmids()
        if vmids:
            print(f"{'VMID':<10} {'Status':<10} {'Lock':<12} {'Name':<20}")
        for vmid in vmids:
            found = self.containers.status(vmid)
            print(f"{vmid:<10} {found['status']:<10} {found.get('lock', ''):<12} {found['name']:<20}")

    def do_version(self) -> None:
        print(VERSION)

    def do_push(self, vmid: int, file: str, target: str, options: dict[str, str]) -> None:
        names = {"root": "0"}
        user, group = options.get("user"), options.get("group")
        self.containers.push(
            vmid, Path(file), target, names.get(user or "", user), names.get(group or "", group), options.get("perms")
        )

    def do_pull(self, vmid: int, source: str, file: str, options: dict[str, str]) -> None:
        self.containers.pull(vmid, source, Path(file))
        if "perms" in options:
            Path(file).chmod(int(options["perms"], 8))

    def do_enter(self, vmid: int, options: dict[str, str]) -> None:
        self._attach(vmid, [], options.get("keep-env", "1") == "1")

    def exec(self, words: list[str]) -> int:
        """`pct exec <vmid> [--keep-env 0|1] [--] command…`: becomes the command, so its exit code is its own."""
        command: list[str] = []
        if "--" in words:
            cut = words.index("--")
            words, command = words[:cut], words[cut + 1 :]
        plain, options = split(words, FLAGS)
        unknown = [f"Unknown option: {key}" for key in options if key != "keep-env"]
        if unknown:
            raise UsageError(unknown, unknown=True)
        command = plain[1:] + command
        if not plain:
            raise UsageError(["not enough arguments"], unknown=True)
        if not command:
            raise PveError("missing command")
        self._attach(parse_vmid(plain[0]), command, options.get("keep-env", ["1"])[-1] == "1")
        return 255

    def _attach(self, vmid: int, command: list[str], keep_env: bool) -> None:
        self.host.read(vmid)
        if not self.containers.lxc.running(vmid):
            raise PveError(f"container '{vmid}' not running!")
        words = self.containers.lxc.attach(vmid, command, keep_env)
        sys.stdout.flush()
        os.execvp(words[0], words)


def parse_vmid(text: str) -> int:
    """A container's number.

    Raises:
        UsageError: no number, or below 100.
    """
    if not text.isdigit():
        raise UsageError([f"vmid: type check ('integer') failed - got '{text}'"])
    if not 100 <= int(text) <= 999999999:
        raise UsageError(["vmid: value must have a minimum value of 100"])
    return int(text)


def main(arguments: list[str] | None = None, root: str | None = None) -> int:
    """Entry of the script."""
    words: Any = sys.argv[1:] if arguments is None else arguments
    host = Host(Path(root or "/"))
    return Pct(Containers(host, schema.load())).run(list(words))
