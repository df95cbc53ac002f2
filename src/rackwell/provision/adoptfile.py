# SPDX-License-Identifier: Apache-2.0
"""The files of a site that declare an adopted container: its host_vars, and its entry in hosts.yml."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files, yamlsource
from rackwell.site.node import CONTAINER_GROUP, PLACEHOLDER

PREFIX = "pve_container_"
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("host", "vmid", "hostname", "adopted")),
    (
        "What it was made with; none of it can be changed.",
        ("template", "storage", "disk_size", "ostype", "unprivileged"),
    ),
    ("", ("cores", "memory", "swap", "features", "onboot")),
    ("Its GPUs, and all other device nodes.", ("gpus", "devices", "device_mode")),
    ("", ("mounts",)),
    ("", ("bridge", "ip", "gateway", "net_options", "nameserver")),
    (
        "Every raw lxc line of its file: by an option of its own, or under raw.",
        ("cpuset", "numa_nodes", "memlock", "shm_size", "raw"),
    ),
    ("Further options of Proxmox VE.", ("options",)),
)


def host_vars(
    host: str, found: Mapping[str, Any], missing: Mapping[str, str], told: Sequence[str], origin: str, gpus: int
) -> str:
    """The text of the container's host_vars.

    Args:
        found: the declaration without its prefix.
        missing: variables that nobody can tell, and an example of each; they are left to fill in.
        told: lines of comment on what the declaration cannot say.
        gpus: how many GPUs the container has.
    """
    values = {"host": host, **found}
    values |= {name: f"{PLACEHOLDER} {example}".rstrip() for name, example in missing.items() if name not in found}
    lines = ["---", f"# Written by `rackwell adopt` from {origin}.", *(f"# {text}" for text in told)]
    for comment, names in _GROUPS:
        mine = {PREFIX + name: values[name] for name in names if name in values}
        if mine:
            lines += ["", *([f"# {comment}"] if comment else []), _dumped(mine)]
    if gpus:
        lines += ["", f"gpu_probe_gpus: {gpus}"]
    return "\n".join(lines) + "\n"


def _dumped(values: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text.rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as in the site that `rackwell init` writes."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def existing(site: Path, name: str) -> list[Path]:
    """What of the site holds variables of a host of this name."""
    base = site / "host_vars" / name
    return [
        path
        for path in (base.with_name(f"{name}{end}") for end in (".yml", ".yaml", ".json", ""))
        if files.exists(path)
    ]


def with_container(text: str, name: str, path: Path) -> str:
    """hosts.yml with container `name` in the group of the containers; all else in it stays as it is.

    Raises:
        RackwellError: it is written in a way that cannot be added to (exit 2).
    """
    data = yamlsource.parse(text, path).data
    group = ((data or {}).get("all") or {}).get("children", {}).get(CONTAINER_GROUP)
    if isinstance(group, dict) and name in (group.get("hosts") or {}):
        return text
    wanted = copy.deepcopy(data)
    try:
        children = wanted["all"]["children"]
        entry = children[CONTAINER_GROUP] = children.get(CONTAINER_GROUP) or {}
        entry["hosts"] = {**(entry.get("hosts") or {}), name: None}
        for edited in _attempts(text, name):
            if yamlsource.parse(edited, path).data == wanted:
                return edited
    except (KeyError, TypeError, AttributeError):
        pass
    raise RackwellError(
        Problem(
            "hosts-unwritable",
            f"{path.name} cannot be added to",
            str(path),
            f"it is not written with one host a line under all, children, {CONTAINER_GROUP}, hosts",
            f"add the host {name} to the group {CONTAINER_GROUP} there, then run again",
        ),
        ExitCode.INVALID,
    )


def _attempts(text: str, name: str) -> Iterator[str]:
    """The text with an entry where it can stand; the caller sees which of them means what is wanted."""
    lines = text.splitlines()
    quoted = yaml.safe_dump({name: None}, allow_unicode=True, default_flow_style=False).partition(": null")[0]
    chain = ["all", "children", CONTAINER_GROUP, "hosts"]
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(chain):
        pairs = node.value if isinstance(node, yaml.MappingNode) and not node.flow_style else []
        found = next(((k, v) for k, v in pairs if k.value == key), None)
        if found is None:
            if not pairs:
                return
            yield _inserted(lines, _end(lines, pairs), pairs[0][0].start_mark.column, [*chain[depth:], quoted])
            return
        key_node, node = found
        if _empty(node):
            line, start, end = node.start_mark.line, node.start_mark.column, node.end_mark.column
            if node.end_mark.line == line and end > start:  # `null`, `~` or `{}` make room
                lines[line] = lines[line][:start].rstrip() + lines[line][end:]
            yield _inserted(
                lines, key_node.start_mark.line + 1, key_node.start_mark.column + 2, [*chain[depth + 1 :], quoted]
            )
            return
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        yield _inserted(lines, _end(lines, node.value), node.value[0][0].start_mark.column, [quoted])


def _empty(node: yaml.Node) -> bool:
    """Nothing stands there, or what says so."""
    null = isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
    return null or (isinstance(node, yaml.MappingNode) and not node.value)


def _end(lines: list[str], pairs: list[tuple[yaml.Node, yaml.Node]]) -> int:
    """The line after the last one of a mapping, without the blank lines and comments that follow it."""
    key, value = pairs[-1]
    end = max(key.start_mark.line + 1, min(value.end_mark.line + (value.end_mark.column > 0), len(lines)))
    while end > key.start_mark.line + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _inserted(lines: list[str], at: int, column: int, keys: list[str]) -> str:
    new = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(keys)]
    return "\n".join([*lines[:at], *new, *lines[at:]]) + "\n"
