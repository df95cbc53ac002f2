# SPDX-License-Identifier: Apache-2.0
"""The metadata of a patch: ``patch.yml``, typed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from packaging.version import Version

from rackwell.build.catalogue.ranges import VersionRange, check_range, key_for
from rackwell.build.model import BesideText, ProjectName, Strict, VersionText
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.validation import validate
from rackwell.site.yamlsource import Document, Pointer, load

RangeText = Annotated[str, pydantic.AfterValidator(check_range)]
Text = Annotated[str, pydantic.Field(min_length=1)]
FlagValue = str | bool | int


class FlagsFor(Strict):
    """Server flags that a patch needs in a range of its project's versions."""

    versions: RangeText
    flags: dict[str, FlagValue | list[FlagValue]]


def _form(value: object) -> str:
    """Which of its two forms `needs_flags` has: a complaint is about that one alone."""
    return "list[by version]" if isinstance(value, list) else "dict[flags]"


NeedsFlags = Annotated[
    Annotated[dict[str, FlagValue | list[FlagValue]], pydantic.Tag("dict[flags]")]
    | Annotated[list[FlagsFor], pydantic.Tag("list[by version]")],
    pydantic.Discriminator(_form),
]


class Author(Strict):
    """Who made the change, and what they said of it, in their own words."""

    who: Text
    words: Text


class Measured(Strict):
    """One measurement that is known: what was run, what came of it, and what it does not show."""

    setup: Text
    result: Text
    caveat: str = ""


class Proof(Strict):
    """How it shows in a source that the change is upstream: `lines` stand in `file`, one after the other.

    Blanks around a line do not count.
    """

    versions: RangeText
    file: Text
    lines: Annotated[list[Text], pydantic.Field(min_length=1)]


class PatchMeta(Strict):
    """``patch.yml`` of a catalogue entry."""

    name: Text
    project: ProjectName
    summary: Text
    why: str = ""
    author: Author | None = None
    applies_to: Annotated[dict[RangeText, BesideText], pydantic.Field(min_length=1)]
    """A version or a range ``>=A,<B`` of the project -> file name of the diff beside ``patch.yml``."""
    upstream_since: VersionText | None = None
    upstream: str = ""
    """How it came upstream, or what became of the attempt."""
    upstream_proof: list[Proof] = pydantic.Field(default_factory=list)
    """Where the change stands in sources that have it, when the diffs cannot tell (the code has moved)."""
    needs_flags: NeedsFlags = pydantic.Field(default_factory=dict)
    """Server flags (long names without dashes) without which the patch has no effect; a list: any of its values."""
    hindering_flags: dict[str, FlagValue] = pydantic.Field(default_factory=dict)
    """Server flags with which the patch has no effect."""
    needs_patches: list[Text] = pydantic.Field(default_factory=list)
    """Patches of the catalogue that must come with it, unless their project has them already."""
    touches_code_path: bool | dict[RangeText, bool] = True
    """Whether the engine runs what the patch changes; by version where that differs."""
    evidence: str | list[Text] = ""
    measured: list[Measured] = pydantic.Field(default_factory=list)
    risk: str = ""
    status: Literal["recommended", "neutral", "harmful"] = "neutral"

    def diff_for(self, version: str) -> str | None:
        """File name of the diff for `version`, None when the patch does not say that it applies to it."""
        key = key_for(version, dict(self.applies_to))
        return None if key is None else self.applies_to[key]

    def is_upstream(self, version: str) -> bool:
        """Whether the patch says that `version` has the change."""
        return self.upstream_since is not None and Version(version) >= Version(self.upstream_since)

    def flags_for(self, version: str) -> dict[str, FlagValue | list[FlagValue]]:
        """Flags that the patch needs at `version`."""
        if isinstance(self.needs_flags, dict):
            return dict(self.needs_flags)
        found: dict[str, FlagValue | list[FlagValue]] = {}
        for need in self.needs_flags:
            if version in VersionRange.parse(need.versions):
                found.update(need.flags)
        return found

    def touches_at(self, version: str) -> bool:
        """Whether the engine runs the changed code at `version`."""
        if isinstance(self.touches_code_path, bool):
            return self.touches_code_path
        key = key_for(version, dict(self.touches_code_path))
        return True if key is None else self.touches_code_path[key]

    def evidence_list(self) -> list[str]:
        """What is known, point by point."""
        if isinstance(self.evidence, str):
            return [self.evidence] if self.evidence else []
        return list(self.evidence)


def load_patch(path: Path) -> tuple[PatchMeta, Document]:
    """Read a ``patch.yml``.

    Raises:
        RackwellError: one problem for each thing that is wrong, with file and line (exit 2).
    """
    document = load(path)
    meta = validate(PatchMeta, document, "patch")
    if problems := list(_contradictions(meta, document)):
        raise RackwellError(problems, ExitCode.INVALID)
    return meta, document


def _contradictions(meta: PatchMeta, document: Document) -> Iterator[Problem]:
    """What no single key shows."""

    def problem(pointer: Pointer, what: str, why: str, fix: str) -> Problem:
        return Problem("wrong-value", what, document.where(pointer), why, fix)

    for where, texts in _range_maps(meta):
        for first, second in combinations(texts, 2):
            if VersionRange.parse(first).overlaps(VersionRange.parse(second)):
                yield problem(
                    (*where, second),
                    f"'{where[0]}' in the patch does not hold",
                    f"a version can be in both {first} and {second}",
                    "let each version be in one range alone",
                )
    if meta.upstream_since is not None:
        for text in meta.applies_to:
            if VersionRange.parse(text).reaches(meta.upstream_since):
                yield problem(
                    ("applies_to", text),
                    f"'applies_to.{text}' in the patch does not hold",
                    f"it holds versions that have the change: upstream_since is {meta.upstream_since}",
                    f"end the range below {meta.upstream_since}",
                )
    if meta.upstream_proof and meta.upstream_since is None:
        yield problem(
            ("upstream_proof",),
            "'upstream_proof' in the patch does not hold",
            "the patch does not say since when upstream has the change",
            "add `upstream_since:`, or remove the proof",
        )
    if meta.status == "harmful" and not meta.risk.strip():
        yield problem(("status",), "'risk' is missing in the patch", "a harmful patch says what it does", "add `risk:`")


def _range_maps(meta: PatchMeta) -> Iterator[tuple[Pointer, list[str]]]:
    """Where ranges stand of which one alone may hold a version."""
    yield ("applies_to",), list(meta.applies_to)
    if not isinstance(meta.touches_code_path, bool):
        yield ("touches_code_path",), list(meta.touches_code_path)
