# SPDX-License-Identifier: Apache-2.0
"""Each role's argument_specs, its defaults and the typed variables of the command line say the same."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from rackwell.site import variables

ROLES = Path(__file__).parents[2] / "roles"


def ansible_type(annotation: Any) -> str:
    """The type that argument_specs gives to a variable of this Python type."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return ansible_type(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return ansible_type(type(typing.get_args(annotation)[0]))
    if origin in {typing.Union, types.UnionType}:
        arms = [arm for arm in typing.get_args(annotation) if arm is not type(None)]
        return ansible_type(arms[0]) if len(arms) == 1 else "raw"
    if origin is list:
        return "list"
    if origin is dict:
        return "dict"
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return "dict"
    return {str: "str", int: "int", float: "float", bool: "bool"}[annotation]


def choices(annotation: Any) -> list[Any] | None:
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is typing.Literal else None


def element_type(annotation: Any) -> str | None:
    return ansible_type(typing.get_args(annotation)[0]) if ansible_type(annotation) == "list" else None


def options(role: str) -> dict[str, dict[str, Any]]:
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())
    return dict(specs["argument_specs"]["main"]["options"])


def test_every_role_is_typed() -> None:
    assert {path.parent.parent.name for path in ROLES.glob("*/meta/argument_specs.yml")} == set(variables.ROLES)


@pytest.mark.parametrize("role", sorted(variables.ROLES))
def test_same_variables(role: str) -> None:
    assert set(options(role)) == set(variables.ROLES[role].model_fields)


@pytest.mark.parametrize("role", sorted(variables.ROLES))
def test_same_types_and_defaults(role: str) -> None:
    spec = options(role)
    for name, field in variables.ROLES[role].model_fields.items():
        told = spec[name]
        # pydantic takes the outer Annotated apart
        assert told.get("type", "str") == ansible_type(field.annotation), name
        assert told.get("elements") == element_type(field.annotation), name
        assert told.get("choices") == choices(field.annotation), name
        assert told.get("required", False) == field.is_required(), name
        default = None if field.is_required() else field.default
        assert told.get("default") == default, name


def test_mounts_have_the_same_keys() -> None:
    inner = options("pve_container")["pve_container_mounts"]["options"]
    fields = variables.Mount.model_fields
    assert set(inner) == set(fields)
    for name, field in fields.items():
        assert inner[name].get("required", False) == field.is_required(), name
        if not field.is_required():
            assert inner[name]["default"] == field.default, name


@pytest.mark.parametrize("role", sorted(variables.ROLES))
def test_role_defaults_are_those_of_its_specs(role: str) -> None:
    path = ROLES / role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    assert defaults == {name: told["default"] for name, told in options(role).items() if "default" in told}
