# SPDX-License-Identifier: Apache-2.0
"""A matrix while it is measured, and afterwards: ``SITE/.rackwell/matrices/<container>/<id>/matrix.json``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic

from rackwell import runid
from rackwell.errors import Problem, RackwellError
from rackwell.provision.variants import Change
from rackwell.site import files

FILE = "matrix.json"
State = Literal["pending", "measured", "refused", "crashed", "failed"]
SETTLED = frozenset({"measured", "refused", "crashed"})
"""States that a further run does not try again."""


class Step(pydantic.BaseModel):
    """One row of a matrix.

    Attributes:
        change: kind, name and value; None for the declared profile.
        state: refused - the declaration does not hold with it, or the server refused its arguments; crashed - it did
            not come to serve, and what ran before was brought back; failed - neither was found out.
        run: the run of its sweep in the store.
    """

    number: int
    variant: str
    change: dict[str, Any] | None = None
    state: State = "pending"
    run: str | None = None
    ready_seconds: float | None = None
    problems: list[dict[str, str]] = []
    findings: list[dict[str, Any]] = []


class Matrix(pydantic.BaseModel):
    """One matrix. `key`: what must be the same for it to be gone on with."""

    schema_: Literal["rackwell.bench_matrix/1"] = pydantic.Field(default="rackwell.bench_matrix/1", alias="schema")
    model_config = pydantic.ConfigDict(populate_by_name=True)
    id: str
    container: str
    bench: str
    profile: str
    date_utc: str
    key: dict[str, str]
    steps: list[Step]
    done: bool = False

    @property
    def left(self) -> list[Step]:
        """The steps that are to be tried."""
        return [step for step in self.steps if step.state not in SETTLED]


@dataclasses.dataclass(frozen=True)
class Place:
    """A matrix and its directory, which is its owner's alone: profiles lie in it."""

    matrix: Matrix
    path: Path

    @property
    def file(self) -> Path:
        """The matrix's file."""
        return self.path / FILE

    def profile(self, change: Change) -> Path:
        """The file of a variant's profile; its name is the profile's name in results."""
        return self.path / "profiles" / f"{self.matrix.profile}+{change.slug}.yml"

    def save(self) -> None:
        """Write the matrix. Raises RackwellError (exit 1)."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps(self.matrix.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False)
            files.write(self.file, text + "\n")
        except OSError as error:
            raise RackwellError(
                Problem("cannot-write", "the matrix cannot be stored", str(self.path), error.strerror or str(error))
            ) from error


def begin(
    state: Path, container: str, bench: str, profile: str, key: dict[str, str], changes: Sequence[Change]
) -> Place:
    """A new matrix: the declared profile, each change, and the declared profile again."""
    name, now = runid.new()
    steps = [
        Step(number=1, variant="declared"),
        *(
            Step(number=number, variant=str(change), change=change.as_dict())
            for number, change in enumerate(changes, 2)
        ),
        Step(number=len(changes) + 2, variant="declared, again"),
    ]
    matrix = Matrix(
        id=name,
        container=container,
        bench=bench,
        profile=profile,
        date_utc=now.isoformat(timespec="seconds"),
        key=key,
        steps=steps,
    )
    return Place(matrix, state / "matrices" / container / name)


def newest(state: Path, container: str) -> Place | None:
    """The newest matrix of `container`; None when there is none that can be read."""
    for file in sorted((state / "matrices" / container).glob(f"*/{FILE}"), reverse=True):
        try:
            return Place(Matrix.model_validate_json(file.read_bytes()), file.parent)
        except (OSError, pydantic.ValidationError):
            continue
    return None


def change_of(step: Step) -> Change | None:
    """The step's change; None for the declared profile."""
    if step.change is None:
        return None
    value = step.change.get("value")
    return Change(step.change["kind"], step.change["name"], tuple(value) if isinstance(value, list) else value)
