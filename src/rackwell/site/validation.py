# SPDX-License-Identifier: Apache-2.0
"""From what pydantic finds to what a person needs: the key, the line, what was expected, the likely spelling."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pydantic

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.yamlsource import Document, Pointer


class Declared(pydantic.BaseModel):
    """Base of the models of files: an unknown key is an error, a value is never changed after reading."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


def not_bool(value: Any) -> Any:
    """Refuse ``true`` where a number is meant: Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


M = typing.TypeVar("M", bound=pydantic.BaseModel)

Whole = typing.Annotated[int, pydantic.BeforeValidator(not_bool)]
"""A whole number; digits in quotes count, as they do for Ansible."""
Real = typing.Annotated[float, pydantic.BeforeValidator(not_bool)]


def validate(model: type[M], document: Document, label: str) -> M:
    """`document` as `model`.

    Args:
        label: what the file is, for the messages ("profile", "bench").

    Raises:
        RackwellError: with one problem for each finding (exit 2).
    """
    data = document.data
    if not isinstance(data, dict):
        raise RackwellError(
            Problem(
                "not-a-mapping",
                f"the {label} is empty or not a mapping",
                document.where(),
                "",
                "write `key: value` lines",
            ),
            ExitCode.INVALID,
        )
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise RackwellError(problems(error, model, data, document.where, label), ExitCode.INVALID) from error


def problems(
    error: pydantic.ValidationError,
    model: type[pydantic.BaseModel],
    data: Any,
    where: Callable[[Pointer], str],
    label: str,
) -> list[Problem]:
    """One problem for each place in `data` that pydantic complains about."""
    found: dict[str, Problem] = {}
    # a misspelt key is one mistake, though it is also a missing one
    meant = set()
    for item in sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden"):
        pointer = _place(item["loc"], data)
        if item["type"] == "extra_forbidden" and pointer:
            meant.add((*pointer[:-1], near(str(pointer[-1]), _keys_at(model, pointer[:-1]))))
        if item["type"] == "missing" and pointer in meant:
            continue
        problem = _problem(item["type"], item["msg"], item.get("input"), pointer, model, where(pointer), label)
        # each arm of a union complains for itself: the first of a place is enough
        found.setdefault(".".join(map(str, pointer[:1])) + problem.where + problem.code, problem)
    return list(found.values())


def near(name: str, known: Iterable[str], cutoff: float = 0.75) -> str:
    """The one of `known` that `name` is most likely meant to be; empty when none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), "")


def suggest(name: str, known: Iterable[str], cutoff: float = 0.75) -> str:
    """``did you mean …?``, or nothing when nothing is near."""
    found = near(name, known, cutoff)
    return f"did you mean '{found}'?" if found else ""


def _place(location: Sequence[str | int], data: Any) -> Pointer:
    """Pydantic's location without what names no data: the arms of unions, such as ``str`` and ``list[str]``."""
    pointer: list[str | int] = []
    for part in location:
        if isinstance(data, dict):
            key = next((key for key in data if key == part or str(key) == str(part)), None)
            if key is not None:
                data = data[key]
            elif _names_arm(part):
                continue
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        else:
            continue
        pointer.append(part)
    return tuple(pointer)


_ARMS = {"str", "int", "float", "bool", "function-before", "constrained-str", "literal"}


def _names_arm(part: str | int) -> bool:
    return isinstance(part, str) and ("[" in part or part in _ARMS)


def _problem(
    kind: str, message: str, value: Any, pointer: Pointer, model: type[pydantic.BaseModel], where: str, label: str
) -> Problem:
    name = ".".join(str(part) for part in pointer) or label
    last = str(pointer[-1]) if pointer else label
    if kind == "extra_forbidden":
        known = _keys_at(model, pointer[:-1])
        hint = suggest(last, known) or (f"known here: {', '.join(sorted(known))}" if known else "")
        return Problem("unknown-key", f"unknown key '{name}' in the {label}", where, "", hint or "remove it")
    if kind == "missing":
        return Problem(
            "missing-key", f"'{name}' is missing in the {label}", where, "it has no default", f"add `{last}:`"
        )
    why = f"{_lowered(message)}; found {_shown(value)}"
    return Problem("wrong-value", f"'{name}' in the {label} does not hold", where, why, _type_hint(kind, value))


def _lowered(message: str) -> str:
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = "a number that is too large"
    return text if len(text) <= 80 else text[:77] + "..."


def _type_hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return f'put it in quotes: "{str(value).lower() if isinstance(value, bool) else value}"'
    return "correct it there"


def _keys_at(model: type[pydantic.BaseModel], pointer: Pointer) -> set[str]:
    """The keys that `model` knows below `pointer`."""
    current: Any = model
    for part in pointer:
        if isinstance(part, str):
            field = current.model_fields.get(part)
            if field is None:
                return set()
            current = _model_in(field.annotation)
            if current is None:
                return set()
    return set(current.model_fields)


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    if typing.get_origin(annotation) in {list, typing.Union, types.UnionType, typing.Annotated}:
        for argument in typing.get_args(annotation):
            if found := _model_in(argument):
                return found
    return None
