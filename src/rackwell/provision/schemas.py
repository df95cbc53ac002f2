# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of what adopt and drift print: ``python -m rackwell.provision.schemas DIRECTORY`` writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import pydantic

from rackwell.site.schema import Published


class Part(pydantic.BaseModel):
    """Base of every part; fields may be added."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True, populate_by_name=True)


class Problem(Part):
    """What is wrong, and what to do."""

    code: str
    what: str
    where: str
    why: str
    fix: str


class Difference(Part):
    """One difference. Also each of `drift` in the result of ``rackwell verify``."""

    code: str = pydantic.Field(description="docs/drift.md has the list")
    severity: Literal["error", "warning", "note"] = pydantic.Field(
        description="error: a run would change it, or refuse to; warning: it needs a person; note: no run touches it"
    )
    side: Literal["both", "machine", "declaration"] = pydantic.Field(description="who has more")
    key: str
    what: str
    where: str = pydantic.Field(description="HOST:FILE:LINE of the container's file, or FILE:LINE of the declaration")
    line: str = pydantic.Field(description="of the container's file; empty for what stands nowhere in it")
    found: str
    declared: str
    fix: str


class Counts(Part):
    """How many of each severity."""

    error: int
    warning: int
    note: int


class DriftResult(Part):
    """How a container differs from its declaration."""

    container: str
    host: str
    exists: bool | None = pydantic.Field(description="null when its host did not tell")
    changed: bool = pydantic.Field(description="whether a run would change something")
    counts: Counts
    drift: list[Difference]


class Untold(Part):
    """Something that the declaration cannot say; one that blocks waits for a person."""

    key: str
    what: str
    fix: str
    blocks: bool
    line: str
    number: int


class Oddity(Part):
    """What a hand has left in the container's file."""

    code: str
    severity: Literal["warning", "note"]
    what: str
    line: str
    number: int
    fix: str


class AdoptResult(Part):
    """A container that exists, as a declaration."""

    container: str
    host: str
    vmid: int
    dry_run: bool
    files: list[str] = pydantic.Field(description="those that were written")
    declaration: dict[str, Any] = pydantic.Field(description="variables of role pve_container without their prefix")
    text: str = pydantic.Field(description="of the container's host_vars")
    untold: list[Untold]
    oddities: list[Oddity]
    notes: list[str]
    proved: bool = pydantic.Field(description="held against the machine: a run of the role changes nothing")
    drift: DriftResult | None = pydantic.Field(description="null where it could not be held against the machine")


class Nothing(pydantic.BaseModel):
    """The result of a command that ended before it had one."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Envelope(Part):
    """What every command prints around its result; a command that ended early has an empty one."""

    schema_: str = pydantic.Field(alias="schema")
    ok: bool
    exit_code: Literal[0, 1, 2, 3, 4, 5, 6, 130]
    problems: list[Problem]


class Drift(Envelope):
    """``rackwell drift --json``"""

    schema_: Literal["rackwell.drift/1"] = pydantic.Field(alias="schema")
    result: DriftResult | Nothing


class Adopt(Envelope):
    """``rackwell adopt --json``"""

    schema_: Literal["rackwell.adopt/1"] = pydantic.Field(alias="schema")
    result: AdoptResult | Nothing


MODELS: dict[str, type[Part]] = {"drift": Drift, "adopt": Adopt}
PUBLISHED = Published(MODELS)

if __name__ == "__main__":
    PUBLISHED.write(Path(sys.argv[1]))
