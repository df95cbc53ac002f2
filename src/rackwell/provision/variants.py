# SPDX-License-Identifier: Apache-2.0
"""Variants of a serving profile, each with one change: a flag set or taken away, a variable of the environment."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import declared
from rackwell.provision.declared import Target
from rackwell.site import files, validation, yamlsource
from rackwell.site.profile import EnvironmentName, FlagName, FlagValue, OneLine, Profile
from rackwell.site.validation import Declared, Real, Whole

Kind = Literal["set", "unset", "env", "unenv"]


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of a profile. kind: set or unset a flag, set or unset a variable of the environment."""

    kind: Kind
    name: str
    value: Any = None

    def __str__(self) -> str:
        if self.kind in {"unset", "unenv"}:
            return f"without {self.name}"
        return self.name if self.value is True else f"{self.name}={_plain(self.value)}"

    @property
    def slug(self) -> str:
        """A name for files and results."""
        text = f"{'no-' if self.kind in {'unset', 'unenv'} else ''}{self.name}"
        text += "" if self.kind in {"unset", "unenv"} or self.value is True else f"-{_plain(self.value)}"
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:80]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)

    def made(self, profile: dict[str, Any]) -> dict[str, Any]:
        """A copy of a profile's data with this change; equal to `profile` where it changes nothing."""
        changed = copy.deepcopy(profile)
        part = "flags" if self.kind in {"set", "unset"} else "environment"
        values = dict(changed.get(part) or {})
        if self.kind in {"unset", "unenv"}:
            values.pop(self.name, None)
        else:
            values[self.name] = self.value
        if values or part in changed:
            changed[part] = values
        return changed


class Variant(Declared):
    """A variant as a file gives it: exactly one of the four, with exactly one entry."""

    name: OneLine | None = pydantic.Field(default=None, description="for people; by its change if absent")
    set: Annotated[dict[FlagName, FlagValue], pydantic.Field(min_length=1, max_length=1)] | None = None
    unset: FlagName | None = None
    environment: (
        Annotated[dict[EnvironmentName, OneLine | Whole | Real], pydantic.Field(min_length=1, max_length=1)] | None
    ) = None
    unset_environment: EnvironmentName | None = None

    @pydantic.model_validator(mode="after")
    def _one(self) -> Variant:
        given = [self.set, self.unset, self.environment, self.unset_environment]
        if sum(one is not None for one in given) != 1:
            raise ValueError("must be one change: set, unset, environment or unset_environment")
        return self

    @property
    def change(self) -> Change:
        """What it changes."""
        for kind, mapping in (("set", self.set), ("env", self.environment)):
            if mapping is not None:
                (name, value), *_ = mapping.items()
                return Change("set" if kind == "set" else "env", name, value)
        return Change("unset", self.unset) if self.unset is not None else Change("unenv", self.unset_environment or "")


class Variants(Declared):
    """``--vary FILE``: the variants in the order in which they are measured."""

    variants: Annotated[list[Variant], pydantic.Field(min_length=1)]


def from_file(path: Path) -> list[Change]:
    """The changes in a file. Raises RackwellError with file and line (exit 2)."""
    found = validation.validate(Variants, yamlsource.load(path), "file of variants")
    return [variant.change for variant in found.variants]


def from_options(settings: Iterable[str], unset: Iterable[str], env: Iterable[str]) -> list[Change]:
    """The changes that options ask for.

    Args:
        settings: ``flag=value``, ``flag=a,b`` stays one text, ``flag`` alone is a bare flag. env: ``NAME=value``.

    Raises:
        RackwellError: one of them is none (exit 2).
    """
    entries: list[dict[str, Any]] = []
    for text in settings:
        name, equals, value = text.partition("=")
        entries.append({"set": {name.removeprefix("--"): _value(value) if equals else True}})
    entries += [{"unset": name.removeprefix("--")} for name in unset]
    for text in env:
        name, equals, value = text.partition("=")
        entries.append({"environment": {name: value}} if equals else {"unset_environment": name})
    if not entries:
        return []
    try:
        return [variant.change for variant in Variants.model_validate({"variants": entries}).variants]
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        text = str(next(iter(entries[_index(first["loc"])].values())))
        raise RackwellError(
            Problem("wrong-variant", f"{text} is no change of a profile", "command line", first["msg"], "correct it"),
            ExitCode.INVALID,
        ) from None


def _index(location: tuple[int | str, ...]) -> int:
    return next((part for part in location if isinstance(part, int)), 0)


def _value(text: str) -> Any:
    """A value as YAML would read it, where that is a plain one; else the text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, (bool, int, float, str)) else text


def checked(profile: dict[str, Any], changes: Iterable[Change]) -> list[Change]:
    """`changes` once each, in order. Raises RackwellError when one changes nothing, or when there is none (exit 2)."""
    found = list(dict.fromkeys(_hashable(change) for change in changes))
    problems = [
        Problem("variant-without-effect", f"'{change}' changes nothing", "", "the declared profile says so already")
        for change in found
        if change.made(profile) == profile
    ]
    if not found:
        problems.append(
            Problem(
                "no-variants", "there is no variant to measure", "", "", "name one: --set FLAG=VALUE, or --vary FILE"
            )
        )
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)
    return found


def _hashable(change: Change) -> Change:
    return dataclasses.replace(change, value=tuple(change.value)) if isinstance(change.value, list) else change


class _Dumper(yaml.SafeDumper):
    """Writes what only Ansible can open as it was."""


_Dumper.add_representer(
    yamlsource.Sealed, lambda dumper, value: dumper.represent_scalar("!vault", str(value), style="|")
)
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_list(value))


def written(profile: dict[str, Any], change: Change, path: Path) -> None:
    """Write the variant's profile; it holds what the declared one holds, so it is for its owner alone."""
    text = yaml.dump(change.made(profile), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    files.write(path, f"# {change}\n{text}")
    path.chmod(0o600)


def target(declared_target: Target, path: Path) -> Target:
    """`declared_target` with the profile at `path`.

    Raises:
        RackwellError: the profile does not hold, or the lint refuses it (exit 2).
    """
    node = declared_target.container
    variables = {**node.variables, "inference_server_profile_file": str(path)}
    role = node.roles["inference_server"].model_copy(update={"inference_server_profile_file": str(path)})
    changed = dataclasses.replace(node, variables=variables, roles={**node.roles, "inference_server": role})
    site = declared_target.site
    varied = dataclasses.replace(site, containers={**site.containers, node.name: changed})
    validation.validate(Profile, yamlsource.load(path), "profile")
    return declared.target(varied, node.name)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)
