# SPDX-License-Identifier: Apache-2.0
"""What all documents about GPUs have in common: lenient parts, verdicts, and one way to read a document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from rackwell.errors import ExitCode, Problem, RackwellError

Verdict = Literal["pass", "degraded", "fail", "not-measured"]
LinkClass = Literal["nvlink", "same-switch", "same-root-complex", "cross-socket", "unknown"]
Pair = tuple[int, int]
"""(source, destination): indices of GPUs, in the direction in which the bytes move."""

GRAVITY: dict[str, int] = {"not-measured": 0, "pass": 1, "degraded": 2, "fail": 3}
"""Verdicts from the least to the gravest."""


class Part(pydantic.BaseModel):
    """Base of every part. Keys of a later version are ignored; the file on disk keeps them."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


Document = TypeVar("Document", bound=Part)


def parse(kind: type[Document], data: Mapping[str, Any], where: str) -> Document:
    """`data` as a document.

    Args:
        where: what the data came from, for the error.

    Raises:
        RackwellError: it is not such a document (exit 1).
    """
    try:
        return kind.model_validate(data)
    except pydantic.ValidationError as error:
        raise RackwellError(_invalid(kind, error, where)) from None


def load(kind: type[Document], path: Path) -> Document:
    """Read a document from a file.

    Raises:
        RackwellError: it cannot be read, or is something else (exit 2).
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        problem = Problem("file-unreadable", "the file cannot be read", str(path), error.strerror or str(error))
    except pydantic.ValidationError as error:
        problem = _invalid(kind, error, str(path))
    raise RackwellError(problem, ExitCode.INVALID)


def _invalid(kind: type[Part], error: pydantic.ValidationError, where: str) -> Problem:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the document"
    fields = kind.model_fields
    name = fields["schema_"].default if "schema_" in fields else kind.__name__
    return Problem("not-such-a-document", f"this is not {name}", where, f"{place}: {first['msg']}")
