# SPDX-License-Identifier: Apache-2.0
"""The build file, typed."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import pydantic
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rackwell.build import giturl
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.validation import Declared, validate
from rackwell.site.yamlsource import Document, Pointer, load


def _version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion as error:
        raise ValueError("must be one version, such as 0.5.9") from error
    return value


def _project(value: str) -> str:
    if canonicalize_name(value) != value or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", value):
        raise ValueError("must be a project's name in small letters, digits and dashes")
    return value


def _requirement(value: str) -> str:
    try:
        parsed = Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"must be a requirement such as numpy==2.3.5 ({error.args[0].splitlines()[0]})") from error
    except RecursionError:
        raise ValueError("must be a requirement such as numpy==2.3.5 (nested too deeply)") from None
    if parsed.url is not None:
        raise ValueError("must not name a URL: give a wheel of your own under `wheels`")
    return value


def _commit(value: str) -> str:
    if re.fullmatch(r"[0-9a-f]{40}", value):
        return value
    if re.fullmatch(r"[0-9a-f]{4,39}", value):
        raise ValueError("is a short commit id, which another commit may come to share: give all 40 digits")
    raise ValueError("must be a commit id of 40 hexadecimal digits: a branch or a tag can move")


def _tag(value: str) -> str:
    # git's own rule (git check-ref-format), as far as a tag needs it
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/+-]*", value) or re.search(r"\.\.|//|/\.|\.lock(/|$)|[./]$", value):
        raise ValueError("must be a tag's name, such as v0.5.9")
    return value


def _subdirectory(value: str) -> str:
    path = PurePosixPath(value)
    if not value.isprintable() or path.is_absolute() or ".." in path.parts or "\\" in value:
        raise ValueError("must be a directory inside the repository, such as python")
    return "" if str(path) == "." else str(path)


Sha256 = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PythonVersion = Annotated[str, pydantic.StringConstraints(pattern=r"^3\.(9|[1-9][0-9])$")]
VersionText = Annotated[str, pydantic.AfterValidator(_version)]
ProjectName = Annotated[str, pydantic.AfterValidator(_project)]
RequirementText = Annotated[str, pydantic.AfterValidator(_requirement)]
GitUrl = Annotated[str, pydantic.AfterValidator(giturl.checked)]
CommitText = Annotated[str, pydantic.AfterValidator(_commit)]
TagText = Annotated[str, pydantic.AfterValidator(_tag)]
SubdirectoryText = Annotated[str, pydantic.AfterValidator(_subdirectory)]


def _beside(value: str) -> str:
    if not value.isprintable() or PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts:
        raise ValueError("must be the name of a file beside patch.yml")
    return value


def _reason(value: str) -> str:
    if not value.strip():
        raise ValueError("must say why the risk is taken")
    return value.strip()


BesideText = Annotated[str, pydantic.Field(min_length=1), pydantic.AfterValidator(_beside)]


class Strict(Declared):
    """Base of the build's models: nothing is converted, an unknown key is an error."""

    model_config = pydantic.ConfigDict(strict=True)


class Source(Strict):
    """One project that may be patched: a released wheel, or a wheel built here from one commit of a git repository.

    Attributes:
        version: of a git source: what its wheel is to be called. Empty: what the project says of itself.
        sha256: of a released wheel.
        git: URL of the repository; None for a released wheel.
        commit: the whole id of the commit.
        tag: a tag that must lead to the commit. It is looked at when the repository is asked, not in each build.
        subdirectory: where in the repository the project lies; empty for its root.
        submodules: whether they are brought, too.
    """

    version: VersionText = ""
    sha256: Sha256 | None = None
    git: GitUrl | None = None
    commit: CommitText | None = None
    tag: TagText | None = None
    subdirectory: SubdirectoryText = ""
    submodules: bool = True

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Source:
        if self.git is None:
            if named := sorted(self.model_fields_set & {"commit", "tag", "subdirectory", "submodules"}):
                raise ValueError(f"has {named[0]}, which is for a git source: give `git: URL` as well")
            if not self.version:
                raise ValueError("needs `version`, or `git` and `commit`")
        elif self.commit is None:
            raise ValueError("needs `commit`, the whole id: a branch or a tag can move")
        elif self.sha256 is not None:
            raise ValueError("has sha256, which is for a released wheel: a git source is pinned by its commit")
        return self


class OwnWheel(Strict):
    """A wheel of the operator's; `path` is relative to the build file."""

    path: str
    sha256: Sha256 | None = None


def _home(value: str) -> str:
    path = PurePosixPath(value)
    # it becomes part of PATH and of a unit's environment
    if not re.fullmatch(r"/[A-Za-z0-9._/+-]+", value) or ".." in path.parts or str(path) == "/":
        raise ValueError("must be the toolkit's directory in the container, such as /usr/local/cuda-12.9")
    return str(path)


class Cuda(Strict):
    """Where the CUDA compiler comes from that the engine calls at run time.

    Attributes:
        wheels: from the package index, locked and staged with the release.
        home: a toolkit that the container has, CUDA_HOME.
        version: the oldest that will do. For SM120, FlashInfer from 0.6.7 on takes none before 12.9.
    """

    wheels: bool = False
    home: Annotated[str, pydantic.AfterValidator(_home)] | None = None
    version: Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]?\.[0-9]{1,2}$")] = "12.9"

    @pydantic.model_validator(mode="after")
    def _one(self) -> Cuda:
        if self.wheels == (self.home is not None):
            raise ValueError("needs one of `wheels: true` and `home: /usr/local/cuda-12.9`")
        return self


class PatchUse(Strict):
    """A patch that a build asks for; `accept_risk` is why a harmful one is wanted all the same."""

    name: Annotated[str, pydantic.Field(min_length=1)]
    accept_risk: Annotated[str, pydantic.AfterValidator(_reason)] | None = None


def _patch_use(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict):
        raise ValueError("must be a patch's name, or a mapping with `name` and `accept_risk`")
    return value


PatchItem = Annotated[
    PatchUse,
    pydantic.BeforeValidator(_patch_use),
    pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, PatchUse.model_json_schema()]}),
]


class _BuildFile(Strict):
    python: PythonVersion
    sources: dict[ProjectName, Source] = pydantic.Field(default_factory=dict)
    patches: list[PatchItem] = pydantic.Field(default_factory=list)
    wheels: list[OwnWheel] = pydantic.Field(default_factory=list)
    dependencies: Literal["full", "declared"] = "full"
    requirements: list[RequirementText] = pydantic.Field(default_factory=list)
    probe: bool = False
    cuda: Cuda | None = None

    @pydantic.model_validator(mode="after")
    def _whole(self) -> _BuildFile:
        if not (self.sources or self.wheels or self.requirements or self.probe):
            raise ValueError("names nothing to install: give sources, requirements or wheels")
        if self.patches and not self.sources:
            raise ValueError("has patches but no source that they could change")
        return self


class BuildSpec(_BuildFile):
    """A build file as read, with its place.

    Attributes beyond the file's keys: `name` (the file's name without ``.yml``), `path`, and `where` for messages.
    """

    _document: Document = pydantic.PrivateAttr()

    @property
    def name(self) -> str:
        """The build's name: what its release, its lock and its link are called."""
        return self.path.stem

    @property
    def path(self) -> Path:
        """The build file."""
        return self._document.path

    def where(self, *pointer: str | int) -> str:
        """``file:line`` of a key or item."""
        return self._document.where(pointer)


def load_build(path: Path) -> BuildSpec:
    """Read and check a build file.

    Raises:
        RackwellError: one problem for each thing that is wrong, with file and line (exit 2).
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", path.stem):
        raise RackwellError(
            Problem(
                "wrong-name",
                f"'{path.stem}' cannot be a build's name",
                str(path),
                "it becomes part of paths on the container",
                "rename the file: small letters, digits, dots, dashes and underscores, first a letter or digit",
            ),
            ExitCode.INVALID,
        )
    document = load(path)
    spec = validate(BuildSpec, document, "build")
    spec._document = document
    _refuse_twice(spec)
    return spec


def _refuse_twice(spec: BuildSpec) -> None:
    problems: list[Problem] = []
    seen: dict[str, Pointer] = {name: ("sources", name) for name in spec.sources}
    for index, text in enumerate(spec.requirements):
        name = canonicalize_name(Requirement(text).name)
        if name in seen:
            problems.append(_twice(spec, name, ("requirements", index), seen[name]))
        seen.setdefault(name, ("requirements", index))
    patches: dict[str, int] = {}
    for index, use in enumerate(spec.patches):
        if use.name in patches:
            problems.append(_twice(spec, use.name, ("patches", index), ("patches", patches[use.name])))
        patches.setdefault(use.name, index)
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)


def _twice(spec: BuildSpec, name: str, second: Pointer, first: Pointer) -> Problem:
    return Problem(
        "given-twice",
        f"{name} is given twice",
        spec.where(*second),
        f"it stands in {spec.where(*first)} already",
        "remove one of the two",
    )
