# SPDX-License-Identifier: Apache-2.0
"""A profile's flags against the options of its SGLang."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from packaging.version import Version

from rackwell.lint.context import Context
from rackwell.lint.matches import Match
from rackwell.lint.options import Option
from rackwell.lint.tables import NO_TABLE, Table, Tables
from rackwell.site.validation import near

#: Flags of recipes that go round, and what has them instead.
ELSEWHERE = {
    "enable-pcie-oneshot-allreduce": "the fork lukealonso/sglang",
    "sleep-on-idle": "later releases and the fork lukealonso/sglang",
    "b12x": "the fork lukealonso/sglang",
}
_SIZE = re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")


def _given(context: Context) -> Iterator[tuple[str, Any, Option | None]]:
    """Each flag that is set, and its option; flags that a patch of the build brings are not judged."""
    for name, value in context.flags.items() if _table(context).options else ():
        if value is not False and name not in context.added:
            yield name, value, _table(context).by_name.get(name)


def _table(context: Context) -> Table:
    return context.table or NO_TABLE


def _meant(name: str, known: dict[str, Option]) -> str:
    """The option that argparse takes `name` for as an abbreviation; empty when none, or several, begin with it."""
    whole = {known[other].names for other in known if other.startswith(name)}
    return next((other for other in sorted(known) if other.startswith(name)), "") if len(whole) == 1 else ""


def unknown(context: Context, tables: Tables) -> Iterator[Match]:
    """Flags that no release has."""
    for name, _, option in _given(context):
        if option is not None or _table(context).unread or _meant(name, _table(context).by_name):
            continue
        if any(name in other.by_name for other in tables.all("sglang")):
            continue
        hint = near(name, _table(context).by_name, 0.75)
        elsewhere = ELSEWHERE.get(name)
        fix = (
            f"did you mean '{hint}'?"
            if hint
            else f"it is a flag of {elsewhere}: remove it"
            if elsewhere
            else "remove it"
        )
        yield Match({"name": name, "fix": fix}, (("flags", name),))


def removed(context: Context, tables: Tables) -> Iterator[Match]:
    """Flags that an earlier release had, with what replaced them; also those that end the start with a message."""
    for name, _, option in _given(context):
        if option is not None and not option.refused:
            continue
        before = [t for t in tables.all("sglang") if _older(t.version, _table(context).version) and name in t.by_name]
        if option is None and not before:
            continue
        last = before[-1] if before else _table(context)
        successor = option.successor if option is not None else _successor(name, tables, _table(context).version)
        values = {"name": name, "last": last.version, "fix": _instead(successor, name)}
        yield Match(values, (("flags", name),))


def _successor(name: str, tables: Tables, version: str) -> str:
    """What the last release that warned of `name` said to give instead."""
    for table in reversed(tables.all("sglang")):
        option = table.by_name.get(name)
        if option is not None and option.successor and _older(table.version, version):
            return option.successor
    return ""


def not_yet(context: Context, tables: Tables) -> Iterator[Match]:
    """Flags that only later releases have."""
    for name, _, option in _given(context):
        if option is not None or _meant(name, _table(context).by_name):
            continue
        having = [table.version for table in tables.all("sglang") if name in table.by_name]
        if having and not any(_older(version, _table(context).version) for version in having):
            yield Match({"name": name, "first": having[0]}, (("flags", name),))


def wrong_choice(context: Context, tables: Tables) -> Iterator[Match]:
    """Values that are not among an option's choices."""
    for name, value, option in _given(context):
        if option is None or option.takes == "none" or not option.choices or value is True:
            continue
        for item in value if isinstance(value, list) else [value]:
            if str(item) in map(str, option.choices):
                continue
            choices = [str(choice) for choice in option.choices]
            hint = near(str(item), choices, 0.6)
            having = [
                table.version
                for table in tables.all("sglang")
                if (other := table.by_name.get(name)) is not None and str(item) in map(str, other.choices)
            ]
            span = having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}" if having else ""
            elsewhere = ELSEWHERE.get(str(item))
            told = f" SGLang {span} has it." if span else f" It is a choice of {elsewhere}." if elsewhere else ""
            values = {
                "name": name,
                "value": item,
                "choices": choices,
                "told": told,
                "fix": f"did you mean '{hint}'?" if hint else "give one of them",
            }
            yield Match(values, (("flags", name),))


def wrong_type(context: Context, tables: Tables) -> Iterator[Match]:
    """Values that argparse cannot turn into what the option takes."""
    del tables
    for name, value, option in _given(context):
        if option is None or option.takes == "none" or value is True:
            continue
        for item in value if isinstance(value, list) else [value]:
            if not _fits(item, option.type):
                wanted = {"int": "a whole number", "float": "a number", "size": "a whole number, as 16384 or 16k"}
                yield Match({"name": name, "value": item, "wanted": wanted[option.type]}, (("flags", name),))


def _fits(value: Any, kind: str) -> bool:
    text = str(value)
    if kind == "int":
        return re.fullmatch(r"[+-]?\d+", text) is not None
    if kind == "size":
        return re.fullmatch(r"[+-]?\d+", text) is not None or _SIZE.fullmatch(text) is not None
    if kind == "float":
        try:
            float(text)
        except ValueError:
            return False
    return True


def wrong_count(context: Context, tables: Tables) -> Iterator[Match]:
    """A value for a bare flag, none for an option that takes one, several for an option that takes one."""
    del tables
    for name, value, option in _given(context):
        if option is None:
            continue
        told, fix = "", ""
        if option.takes == "none" and value is not True:
            told, fix = f"it is a bare flag, and has the value {value!r}", f"write `{name}: true`, or remove it"
        elif option.takes in {"one", "some"} and value is True:
            told, fix = "it takes a value, and stands alone", f"write `{name}: VALUE`"
        elif option.takes in {"one", "maybe"} and isinstance(value, list) and len(value) != 1:
            told, fix = f"it takes one value, and has {len(value)}", "give one"
        elif option.takes == "some" and value == []:
            told, fix = "it takes one value or more, and has none", "give one, or remove it"
        elif option.takes.isdigit() and (len(value) if isinstance(value, list) else 1) != int(option.takes):
            told, fix = f"it takes {option.takes} values", f"give {option.takes}"
        if told:
            yield Match({"name": name, "told": told, "fix": fix}, (("flags", name),))


def deprecated(context: Context, tables: Tables) -> Iterator[Match]:
    """Options that work, and warn."""
    del tables
    for name, _, option in _given(context):
        if option is not None and option.deprecated and not option.refused:
            yield Match({"name": name, "fix": _instead(option.successor, name)}, (("flags", name),))


def abbreviated(context: Context, tables: Tables) -> Iterator[Match]:
    """Abbreviations, which argparse takes as long as no other option begins so."""
    del tables
    for name, _, option in _given(context):
        if option is None and (whole := _meant(name, _table(context).by_name)):
            yield Match({"name": name, "whole": whole}, (("flags", name),))


def not_checked(context: Context, tables: Tables) -> Iterator[Match]:
    """No table: nothing of the above could be told."""
    del tables
    if context.flags and (context.table is None or not context.table.options):
        yield Match({"reason": context.untabled or "the build does not take SGLang as a source"})


def _instead(successor: str, name: str) -> str:
    """How to write in a profile what a source says to give instead."""
    if not successor:
        return f"remove `{name}`: the source names nothing in its place"
    if re.fullmatch(r"--[a-z0-9-]+(=\S+)?", successor):
        flag, _, value = successor[2:].partition("=")
        return f"write `{flag}: {value}`" if value else f"use `{flag}`"
    if found := re.fullmatch(r"--([a-z0-9-]*)\{([a-z,]+)\}=(\S+)", successor):
        return "write " + " and ".join(f"`{found[1]}{part}: {found[3]}`" for part in found[2].split(","))
    return f"give {successor.strip().rstrip('.')}"


def _older(version: str, other: str) -> bool:
    return Version(version) < Version(other)


CHECKS: dict[str, Callable[[Context, Tables], Iterator[Match]]] = {
    "flags-abbreviated": abbreviated,
    "flags-deprecated": deprecated,
    "flags-not-checked": not_checked,
    "flags-not-yet": not_yet,
    "flags-removed": removed,
    "flags-unknown": unknown,
    "flags-wrong-choice": wrong_choice,
    "flags-wrong-count": wrong_count,
    "flags-wrong-type": wrong_type,
}
