# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). The command line of `pvesh`: the API's paths that rackwell uses, printed as JSON."""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import schema
from .containers import Containers
from .errors import PveError, UsageError, missing_config
from .host import RELEASE, VERSION, Host
from .pct import parse_vmid, split

SYNOPSIS = "pvesh {} <api_path> [OPTIONS] [FORMAT_OPTIONS]"
FORMATS = ("json", "json-pretty", "text", "yaml")


class Pvesh:
    """One invocation."""

    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.host = containers.host
        lxc = r"/nodes/(?P<node>[^/]+)/lxc"
        one = lxc + r"/(?P<vmid>[^/]+)"
        self.routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("get", r"/version", lambda: {"version": VERSION, "release": RELEASE, "repoid": "0000000000000000"}),
            ("get", r"/cluster/resources", self.resources),
            ("get", r"/nodes", lambda: [{"node": self.host.node, "status": "online", "type": "node"}]),
            ("get", r"/nodes/(?P<node>[^/]+)/storage", self.storages),
            ("get", r"/nodes/(?P<node>[^/]+)/storage/(?P<storage>[^/]+)/content", self.content),
            ("get", lxc, self.listing),
            ("create", lxc, self.create),
            ("get", one + "/config", self.config),
            ("set", one + "/config", self.change),
            ("get", one + "/pending", self.containers.pending),
            ("get", one + "/status/current", self.containers.status),
            ("create", one + r"/status/(?P<action>start|stop|shutdown|reboot)", self.act),
            ("delete", one, self.delete),
        ]

    def run(self, words: list[str]) -> int:
        """Do what the words say; the exit code."""
        verb = words[0] if words else ""
        if verb not in ("get", "set", "create", "delete"):
            print(f"ERROR: unknown command 'pvesh {verb}'" if verb else "ERROR: no command specified", file=sys.stderr)
            return 255
        try:
            self.host.require_root()
            plain, options = split(
                words[1:], ("noborder", "noheader", "human-readable", "quiet", "current", "force", "purge")
            )
            last = {key: values[-1] for key, values in options.items()}
            form = last.pop("output-format", "text")
            quiet = last.pop("quiet", "0") == "1"
            for key in ("noborder", "noheader", "human-readable", "noproxy"):
                last.pop(key, None)
            if len(plain) != 1 or form not in FORMATS:
                raise UsageError(
                    ["api_path: property is missing and it is not optional" if not plain else "too many arguments"]
                )
            found = self._call(verb, plain[0], last)
        except PveError as error:
            print(error.text, file=sys.stderr)
            if isinstance(error, UsageError):
                print(SYNOPSIS.format(verb), file=sys.stderr)
            return error.code
        if found is not None and not quiet:
            print(show(found, form))
        return 0

    def _call(self, verb: str, path: str, options: dict[str, str]) -> Any:
        clean = "/" + path.strip("/")
        known = False
        for method, pattern, action in self.routes:
            match = re.fullmatch(pattern, clean)
            known = known or bool(match)
            if not match or method != verb:
                continue
            given: dict[str, Any] = match.groupdict()
            node = given.pop("node", self.host.node)
            if node not in (self.host.node, "localhost"):
                raise PveError(
                    f"hostname lookup '{node}' failed - failed to get address info for: {node}: "
                    "Name or service not known"
                )
            if "vmid" in given:
                given["vmid"] = parse_vmid(given["vmid"])
                if given["vmid"] not in self.host.vmids():
                    raise missing_config(self.host.node, given["vmid"])
            return action(**given, options=options) if _takes_options(action) else action(**given)
        if known:
            raise PveError(f"No '{verb}' handler defined for '{path}'")
        raise PveError(f"No '{verb}' handler defined for '{path}'")

    # what the paths show --------------------------------------------------------

    def listing(self) -> list[dict[str, Any]]:
        """Every container of the node."""
        return [self.containers.status(vmid) for vmid in self.host.vmids()]

    def resources(self, options: dict[str, str]) -> list[dict[str, Any]]:
        """The cluster's resources; ``--type vm`` gives the guests only."""
        kind = options.get("type")
        guests = [{**row, "id": f"lxc/{row['vmid']}", "node": self.host.node} for row in self.listing()]
        for row in guests:
            row.pop("ha")
        if kind == "vm":
            return guests
        rest: list[dict[str, Any]] = [
            {"id": f"node/{self.host.node}", "node": self.host.node, "type": "node", "status": "online"}
        ]
        rest += [
            {
                "id": f"storage/{self.host.node}/{row['storage']}",
                "node": self.host.node,
                "type": "storage",
                "storage": row["storage"],
                "maxdisk": row["total"],
                "disk": row["used"],
                "status": "available",
            }
            for row in self.storages({})
        ]
        found = guests + rest
        return [row for row in found if kind in (None, row["type"])]

    def storages(self, options: dict[str, str]) -> list[dict[str, Any]]:
        """The node's storages with their space in bytes."""
        rows = []
        for storage in self.host.storages():
            if options.get("storage") not in (None, storage.name):
                continue
            if "content" in options and options["content"] not in storage.content:
                continue
            space = storage.space()
            rows.append(
                {
                    "storage": storage.name,
                    "type": "dir",
                    "content": ",".join(storage.content),
                    "active": 1,
                    "enabled": 1,
                    "shared": 0,
                    **space,
                    "used_fraction": space["used"] / space["total"] if space["total"] else 0,
                }
            )
        return rows

    def content(self, storage: str, options: dict[str, str]) -> list[dict[str, Any]]:
        """The templates of a storage; nothing else lies in the laboratory's."""
        place = self.host.storage(storage).path / "template/cache"
        files = sorted(file for file in place.glob("*.tar.*") if file.is_file()) if place.is_dir() else []
        if options.get("content", "vztmpl") != "vztmpl":
            return []
        return [
            {
                "volid": f"{storage}:vztmpl/{file.name}",
                "content": "vztmpl",
                "format": "t" + file.suffix[1:],
                "size": file.stat().st_size,
            }
            for file in files
        ]

    def config(self, vmid: int, options: dict[str, str]) -> dict[str, Any]:
        """The configuration; with what is pending, unless ``--current 1``."""
        conf = self.host.read(vmid)
        keys = conf.main.all_keys() if options.get("current") in schema.TRUE else conf.effective()
        found: dict[str, Any] = {}
        for key, value in keys.items():
            kind = (schema.find(self.containers.tables["create"], key) or {}).get("type")
            found[key] = int(value) if kind in ("integer", "boolean") and re.fullmatch(r"\d+", value) else value
        if conf.main.lxc:
            found["lxc"] = [list(pair) for pair in conf.main.lxc]
        found["digest"] = self.containers.digest(vmid)
        return found

    # what they do -----------------------------------------------------------------

    def create(self, options: dict[str, str]) -> str:
        """A new container."""
        if "vmid" not in options:
            raise UsageError(["vmid: property is missing and it is not optional"])
        vmid = parse_vmid(options.pop("vmid"))
        self.containers.create(vmid, options)
        return self._upid("vzcreate", vmid)

    def change(self, vmid: int, options: dict[str, str]) -> None:
        """Set and delete options."""
        delete = [key for key in re.split(r"[,; ]+", options.pop("delete", "")) if key]
        revert = tuple(key for key in re.split(r"[,; ]+", options.pop("revert", "")) if key)
        self.containers.set(vmid, options, delete, options.pop("digest", None), revert)

    def act(self, vmid: int, action: str, options: dict[str, str]) -> str:
        """Start, stop, shutdown, reboot."""
        if action in ("shutdown", "reboot") and "timeout" in options:
            getattr(self.containers, action)(vmid, int(options["timeout"]))
        else:
            getattr(self.containers, action)(vmid)
        return self._upid(f"vz{action}", vmid)

    def delete(self, vmid: int, options: dict[str, str]) -> str:
        """Remove a container."""
        self.containers.destroy(vmid, options.get("force") in schema.TRUE)
        return self._upid("vzdestroy", vmid)

    def _upid(self, kind: str, vmid: int) -> str:
        now = int(time.time())
        return f"UPID:{self.host.node}:{now % 0xFFFFFF:08X}:{now:08X}:{now:08X}:{kind}:{vmid}:root@pam:"


def _takes_options(action: Callable[..., Any]) -> bool:
    return "options" in inspect.signature(action).parameters


def show(found: Any, form: str) -> str:
    """JSON; ``text`` is a plain list here, not PVE's box."""
    if form == "json":
        return json.dumps(found, separators=(",", ":"), sort_keys=True)
    if form == "json-pretty":
        return json.dumps(found, indent=3, sort_keys=True)
    if isinstance(found, dict):
        return "\n".join(f"{key}: {found[key]}" for key in sorted(found))
    if isinstance(found, list):
        return "\n".join(json.dumps(row, sort_keys=True) for row in found)
    return str(found)


def main(arguments: list[str] | None = None, root: str | None = None) -> int:
    """Entry of the script."""
    words = sys.argv[1:] if arguments is None else arguments
    return Pvesh(Containers(Host(Path(root or "/")), schema.load())).run(list(words))
