# SPDX-License-Identifier: Apache-2.0
"""The site as Ansible sees it (merged variables of each host), and the files in which each variable stands."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.nativetypes
import jinja2.sandbox

from rackwell import bounded
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import yamlsource
from rackwell.site.yamlsource import Document, Pointer, Sealed

HOSTS_FILE = "hosts.yml"
#: Seconds for ansible-inventory.
DEADLINE_S = 120
_VAULT = b"$ANSIBLE_VAULT;"


class Unresolved(str):
    """A value that rackwell leaves to Ansible: a template with lookups or facts, or a vaulted one."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Inventory:
    """Hosts, groups and merged variables.

    Attributes:
        groups: group -> its hosts, those of child groups included.
        depth: group -> distance from ``all``; deeper groups win.
        variables: host -> variables, templates resolved where that needs nothing but other variables.
        raw: host -> variables as they are written.
    """

    groups: dict[str, list[str]]
    depth: dict[str, int]
    variables: dict[str, dict[str, Any]]
    raw: dict[str, dict[str, Any]]

    def groups_of(self, host: str) -> list[str]:
        """The groups of `host`, the winning one first, ``all`` last."""
        mine = [group for group, hosts in self.groups.items() if host in hosts and group != "all"]
        return [*sorted(sorted(mine, reverse=True), key=lambda group: -self.depth.get(group, 0)), "all"]


def tool(name: str) -> str:
    """The path of one of Ansible's programs: the one installed beside this Python, else by ``PATH``."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def read(site: Path) -> Inventory:
    """Ask ``ansible-inventory`` for the merged view of ``site/hosts.yml``.

    Raises:
        RackwellError: Ansible refuses the inventory (exit 2).
    """
    environment = {
        **os.environ,
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_INVENTORY_ENABLED": "yaml",
    }
    if (site / "ansible.cfg").exists():
        environment["ANSIBLE_CONFIG"] = str(site / "ansible.cfg")
    command = ["ansible-inventory", "-i", str(site / HOSTS_FILE), "--list"]
    answer = bounded.run(
        [tool(command[0]), *command[1:]],
        DEADLINE_S,
        late=bounded.timed_out(
            "Ansible did not read the inventory in time",
            str(site / HOSTS_FILE),
            DEADLINE_S,
            "a lookup in the variables waits for something, or this machine is overloaded",
            f"try: {' '.join(command)}",
        ),
        env=environment,
    )
    if answer.returncode != 0:
        why = " ".join(line.strip() for line in answer.stderr.splitlines() if line.strip())[-600:]
        if "vault" in why.lower() and ("no vault secrets" in why.lower() or "decrypt" in why.lower()):
            raise RackwellError(
                Problem(
                    "vault-locked",
                    "a vaulted file of the site cannot be opened",
                    str(site / HOSTS_FILE),
                    why[-300:],
                    "give the vault's password: rackwell --vault-password-file FILE COMMAND, or --ask-vault-pass, "
                    "or set ANSIBLE_VAULT_PASSWORD_FILE",
                ),
                ExitCode.INVALID,
            )
        raise RackwellError(
            Problem(
                "inventory-refused",
                "Ansible cannot read the inventory",
                str(site / HOSTS_FILE),
                why or f"ansible-inventory ended with {answer.returncode}",
                f"try: {' '.join(command)}",
            ),
            ExitCode.INVALID,
        )
    return from_listing(json.loads(answer.stdout), site)


def from_listing(listing: Mapping[str, Any], site: Path) -> Inventory:
    """The inventory in what ``ansible-inventory --list`` prints."""
    raw: dict[str, dict[str, Any]] = {
        host: _plain(variables) for host, variables in listing.get("_meta", {}).get("hostvars", {}).items()
    }
    tree = {group: entry for group, entry in listing.items() if group != "_meta"}
    depth: dict[str, int] = {"all": 0}
    pending = ["all"]
    while pending:
        group = pending.pop()
        for child in tree.get(group, {}).get("children", []):
            if depth.get(child, -1) < depth[group] + 1:
                depth[child] = depth[group] + 1
                pending.append(child)
    groups = {group: _hosts_in(group, tree) for group in {*tree, *depth}}
    for host in (host for hosts in groups.values() for host in hosts):
        raw.setdefault(host, {})
    shared = {
        "inventory_dir": str(site),
        "inventory_file": str(site / HOSTS_FILE),
        "hostvars": {name: dict(variables) for name, variables in raw.items()},
        "groups": {group: sorted(hosts) for group, hosts in groups.items()},
    }
    environment = _environment()
    variables = {host: _resolved(host, raw[host], shared, environment) for host in raw}
    return Inventory({group: sorted(hosts) for group, hosts in groups.items()}, depth, variables, raw)


def _hosts_in(group: str, tree: Mapping[str, Any]) -> set[str]:
    entry = tree.get(group, {})
    found = set(entry.get("hosts", []))
    for child in entry.get("children", []):
        found |= _hosts_in(child, tree)
    return found


def _plain(value: Any) -> Any:
    """Ansible's JSON with its marks for vaulted and unsafe text taken away."""
    if isinstance(value, dict):
        if "__ansible_vault" in value:
            return Sealed(value["__ansible_vault"])
        if "__ansible_unsafe" in value:
            return value["__ansible_unsafe"]
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _concat(values: Iterable[Any]) -> Any:
    """One value stays what it is; several make text. (Jinja's own native mode would turn "595.58" into a number.)"""
    parts = list(values)
    return parts[0] if len(parts) == 1 else "".join(str(part) for part in parts)


class _Native(jinja2.sandbox.ImmutableSandboxedEnvironment, jinja2.nativetypes.NativeEnvironment):
    """Jinja whose results keep their type, as Ansible's do, and whose templates reach nothing but variables.

    One serves all hosts, each template compiled once; what templates see of other hosts they cannot change.
    """

    concat = staticmethod(_concat)
    most = 2000
    left = most
    """Templates that a host may still render: those that name all variables of all hosts lead to each other."""

    def compiled(self, text: str) -> jinja2.Template:
        """The template `text`. Raises jinja2.TemplateError."""
        known: dict[str, jinja2.Template] = self.__dict__.setdefault("_compiled", {})
        if text not in known:
            known[text] = self.from_string(text)
        return known[text]

    # what takes for ever, or all memory, is left to Ansible
    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """A product of two numbers, nothing else."""
        if operator != "*" or not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            raise LookupError(operator)
        return super().call_binop(context, operator, left, right)


def _lookup(kind: str, name: str = "") -> str:
    """The one lookup that means the same here as there; all others are Ansible's."""
    if kind.rpartition(".")[2] != "env" or name not in os.environ:
        raise LookupError(kind)
    return os.environ[name]


def _environment() -> _Native:
    environment = _Native(undefined=jinja2.StrictUndefined)
    environment.globals["lookup"] = _lookup
    environment.filters.update(
        split=lambda text, by=None: text.split(by),
        basename=os.path.basename,
        dirname=os.path.dirname,
        bool=lambda value: str(value).lower() in {"1", "true", "yes", "on", "y", "t"},
        regex_replace=lambda text, pattern, by: re.sub(pattern, by, text),
    )
    return environment


def _resolved(host: str, raw: Mapping[str, Any], shared: Mapping[str, Any], environment: _Native) -> dict[str, Any]:
    """Variables of `host` with simple templates replaced by their values; the rest becomes `Unresolved`."""
    own = {"inventory_hostname": host, "inventory_hostname_short": host.split(".", maxsplit=1)[0]}
    scope = {**raw, **shared, **own}
    environment.left = environment.most
    return {name: _render(value, scope, environment, 0) for name, value in raw.items()}


def is_template(value: Any) -> bool:
    """Whether `value` is text that Ansible would template."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def _render(value: Any, scope: Mapping[str, Any], environment: _Native, round_: int) -> Any:
    if isinstance(value, Sealed):
        return Unresolved(value)
    if isinstance(value, dict):
        return {key: _render(item, scope, environment, round_) for key, item in value.items()}
    if isinstance(value, list):
        return [_render(item, scope, environment, round_) for item in value]
    if not is_template(value):
        # a template may also give what no file holds: something undefined, a function
        return value if value is None or isinstance(value, (str, int, float, dt.date)) else Unresolved("{{ }}")
    environment.left -= 1
    if round_ > 8 or environment.left < 0:
        return Unresolved(value)
    try:
        rendered = environment.compiled(value).render(scope)
    except (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
        re.error,
    ):
        return Unresolved(value)
    # a variable may itself be a template
    return _render(rendered, scope, environment, round_ + 1)


@dataclasses.dataclass(frozen=True)
class Sources:
    """The YAML files of a site, to find the line of a variable."""

    site: Path
    hosts: Document
    group_vars: dict[str, list[Document]]
    host_vars: dict[str, list[Document]]
    places: dict[str, list[Pointer]]
    """Host or group -> the pointers in hosts.yml under which its variables stand."""

    def declared_at(self, name: str) -> str:
        """``file:line`` where host or group `name` is declared."""
        for pointer in self.places.get(name, []):
            return self.hosts.where(pointer)
        return self.hosts.where()

    def find(self, host: str, variable: str, inventory: Inventory, inside: Pointer = ()) -> str:
        """``file:line`` of `variable` (or of a part of it) as it holds for `host`; else where the host is declared."""
        for document, prefix in self._candidates(host, inventory):
            if document.has((*prefix, variable)):
                return document.where((*prefix, variable, *inside))
        return self.declared_at(host)

    def _candidates(self, host: str, inventory: Inventory) -> Iterator[tuple[Document, Pointer]]:
        """From the winning place to the weakest, in Ansible's order."""
        for document in reversed(self.host_vars.get(host, [])):
            yield document, ()
        for pointer in self.places.get(host, []):
            yield self.hosts, pointer
        groups = inventory.groups_of(host)
        for group in groups:
            for document in reversed(self.group_vars.get(group, [])):
                yield document, ()
        for group in groups:
            for pointer in self.places.get(group, []):
                yield self.hosts, (*pointer, "vars")


def read_sources(site: Path) -> tuple[Sources | None, list[Problem]]:
    """Read the site's files. None for the sources when hosts.yml itself is no good."""
    problems: list[Problem] = []
    hosts: Document | None = None
    try:
        hosts = yamlsource.load(site / HOSTS_FILE)
    except RackwellError as error:
        problems += error.problems
    per_kind: dict[str, dict[str, list[Document]]] = {"group_vars": {}, "host_vars": {}}
    for kind, found in per_kind.items():
        files, unlisted = _vars_files(site / kind)
        problems += unlisted
        for name, path in files:
            if _vaulted(path):
                # whole: Ansible opens it, and where a value stands in it nobody can be told
                continue
            try:
                document = yamlsource.load(path)
            except RackwellError as error:
                problems += error.problems
                continue
            if document.data is not None and not isinstance(document.data, dict):
                problems.append(
                    Problem(
                        "not-a-mapping",
                        f"{path.name} is not a mapping",
                        document.where(),
                        "",
                        "write `name: value` lines",
                    )
                )
                continue
            found.setdefault(name, []).append(document)
    if hosts is None:
        return None, problems
    if not isinstance(hosts.data, dict):
        problems.append(
            Problem("not-a-mapping", "hosts.yml is empty or not a mapping", hosts.where(), "", "start it with `all:`")
        )
        return None, problems
    places: dict[str, list[Pointer]] = {}
    for group, entry in hosts.data.items():
        _collect(group, entry, (group,), places)
    return Sources(site, hosts, per_kind["group_vars"], per_kind["host_vars"], places), problems


def _vaulted(path: Path) -> bool:
    """Whether `ansible-vault encrypt` was applied to the file."""
    try:
        # opening a pipe would wait for who writes into it
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(len(_VAULT)) == _VAULT
    except OSError:
        return False


def _collect(group: str, entry: Any, pointer: Pointer, places: dict[str, list[Pointer]]) -> None:
    places.setdefault(str(group), []).append(pointer)
    if not isinstance(entry, dict):
        return
    hosts = entry.get("hosts")
    for host in hosts if isinstance(hosts, dict) else []:
        places.setdefault(str(host), []).append((*pointer, "hosts", host))
    children = entry.get("children")
    for child, inner in children.items() if isinstance(children, dict) else []:
        _collect(child, inner, (*pointer, "children", child), places)


def _vars_files(folder: Path) -> tuple[list[tuple[str, Path]], list[Problem]]:
    """(host or group, file) for each file that Ansible reads in `folder`, in its order; or why there is no telling."""
    try:
        return list(_listed(folder)), []
    except OSError as error:
        why = error.strerror or str(error)
        fix = "make it a folder that you can read"
        return [], [Problem("file-unreadable", f"{folder.name} cannot be listed", str(folder), why, fix)]


def _listed(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name.endswith("~"):
            continue
        if entry.is_dir():
            yield from (
                (entry.name, path)
                for path in sorted(entry.rglob("*"))
                if path.is_file() and path.suffix in {"", ".yml", ".yaml", ".json"} and not path.name.startswith(".")
            )
        elif entry.suffix in {".yml", ".yaml", ".json"}:
            yield entry.stem, entry
        elif not entry.suffix:
            yield entry.name, entry
