# SPDX-License-Identifier: Apache-2.0
"""The patches of a build: found in the catalogue or at a path, held against the pinned versions, applied in order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rackwell.build import patchfile
from rackwell.build.catalogue.meta import FlagValue, PatchMeta, load_patch
from rackwell.build.catalogue.ranges import VersionRange
from rackwell.build.model import BuildSpec, PatchUse
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.files import is_file


@dataclasses.dataclass(frozen=True)
class PatchRequirement:
    """What a patch of a build asks of the profile, and how it is judged.

    Attributes:
        needs_flags: flag -> the value it needs, or a list of which any will do.
        hindering_flags: flag -> the value with which the patch has no effect.
        accept_risk: why the build takes a harmful patch all the same.
    """

    name: str
    project: str
    needs_flags: dict[str, FlagValue | list[FlagValue]]
    status: str
    touches_code_path: bool
    where: str
    hindering_flags: dict[str, FlagValue] = dataclasses.field(default_factory=dict)
    accept_risk: str | None = None


@dataclasses.dataclass(frozen=True)
class Patch:
    """One patch of a build, chosen for the pinned version.

    Attributes:
        name: as the build names it.
        where: ``file:line`` of the build that asks for it.
        diff: the diff's file.
        sha256: of the diff's bytes.
        version: of the project, as the build pins it.
        accept_risk: why the build takes a harmful patch all the same.
    """

    name: str
    meta: PatchMeta
    where: str
    diff: Path
    sha256: str
    files: tuple[patchfile.FilePatch, ...]
    version: str
    accept_risk: str | None = None


def find_patches(spec: BuildSpec, catalog: Path) -> list[Patch]:
    """The patches of `spec` in order.

    Raises:
        RackwellError: one problem for each patch that is unknown, not for this version, upstream already, unreadable,
            harmful without a reason, or without another that it needs (exit 2).
    """
    found: list[Patch] = []
    problems: list[Problem] = []
    for index, use in enumerate(spec.patches):
        try:
            found.append(_find(spec, use, spec.where("patches", index), catalog))
        except RackwellError as error:
            problems += error.problems
    problems += [problem for patch in found for problem in _companions(spec, patch, catalog)]
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)
    return found


def patch_requirements(spec: BuildSpec, catalog: Path) -> list[PatchRequirement]:
    """What the patches of `spec` need of a profile. Raises as `find_patches` does."""
    return [
        PatchRequirement(
            patch.name,
            patch.meta.project,
            patch.meta.flags_for(patch.version),
            patch.meta.status,
            patch.meta.touches_at(patch.version),
            patch.where,
            dict(patch.meta.hindering_flags),
            patch.accept_risk,
        )
        for patch in find_patches(spec, catalog)
    ]


def apply_series(patches: list[Patch], version: str, read: Callable[[str], bytes | None]) -> dict[str, bytes | None]:
    """Apply `patches`, all of one project, in order.

    Args:
        version: the project's, for messages.
        read: the unpatched content of a file, None when there is none.

    Returns:
        path -> new content, None for a deleted file; only files that differ from the unpatched ones.

    Raises:
        RackwellError: a patch does not apply, is in the source already, or changes nothing (exit 2).
    """
    tree: dict[str, bytes | None] = {}
    for patch in patches:
        before: dict[str, bytes | None] = {}
        failures: list[patchfile.PatchError] = []
        after: dict[str, bytes | None] = {}
        for file in patch.files:
            before[file.path] = tree[file.path] if file.path in tree else read(file.path)
            try:
                if ".dist-info/" in file.path:
                    raise patchfile.PatchError("it changes the wheel's own metadata", file.line, file.path)
                after[file.path] = patchfile.apply(before[file.path], file)
            except patchfile.PatchError as error:
                failures.append(error)
        if failures:
            raise RackwellError(_refusals(patch, version, failures), ExitCode.INVALID)
        if after == before:
            raise RackwellError(
                Problem(
                    "patch-changes-nothing",
                    f"patch {patch.name} changes nothing in {patch.meta.project} {version}",
                    str(patch.diff),
                    "the files are the same with and without it",
                    f"remove it from {patch.where}",
                ),
                ExitCode.INVALID,
            )
        tree.update(after)
    return {path: content for path, content in tree.items() if content != read(path)}


def _find(spec: BuildSpec, use: PatchUse, where: str, catalog: Path) -> Patch:
    name = use.name
    own = name.startswith((".", "/"))
    folder = (spec.path.parent / name) if own else catalog / "patches" / name
    outside = not own and ".." in Path(name).parts
    if outside or not is_file(folder / "patch.yml"):
        raise _invalid(
            "patch-unknown",
            f"there is no patch {name}",
            where,
            "it leads out of the catalogue" if outside else f"{folder / 'patch.yml'} does not exist",
            "give a name of the catalogue, or a path to a directory with patch.yml that begins with ./ or ../",
        )
    meta, document = load_patch(folder / "patch.yml")
    if meta.project not in spec.sources:
        raise _invalid(
            "patch-without-source",
            f"patch {name} is for {meta.project}, which this build does not take as a source",
            where,
            f"sources: {', '.join(sorted(spec.sources)) or 'none'}",
            f"add {meta.project} to `sources`, or remove the patch",
        )
    version = spec.sources[meta.project].version
    if not version:
        raise _invalid(
            "patch-needs-version",
            f"nothing says which version of {meta.project} patch {name} is for",
            where,
            f"{meta.project} is a git source without `version`",
            f"add `version` at {spec.where('sources', meta.project)}: what the commit calls itself, such as 0.5.11",
        )
    if meta.is_upstream(version):
        raise _invalid(
            "patch-upstream-already",
            f"patch {name} is in {meta.project} {version} already",
            where,
            f"upstream has it since {meta.upstream_since}",
            "remove it from the build",
        )
    file = meta.diff_for(version)
    if file is None:
        raise _invalid(
            "patch-not-for-version",
            f"patch {name} does not say that it applies to {meta.project} {version}",
            where,
            f"it applies to {', '.join(sorted(meta.applies_to, key=lambda text: VersionRange.parse(text).low))}",
            f"pin one of these versions, or add a diff for {version} to {document.where(('applies_to',))}",
        )
    _judge_risk(use, meta, where)
    diff = folder / file
    try:
        data = diff.read_bytes()
        files = tuple(patchfile.parse(data))
    except OSError as error:
        reason = error.strerror or str(error)
        fix = f"put the diff there, or correct {document.where(('applies_to',))}"
        raise _invalid(
            "patch-unreadable", f"the diff of patch {name} cannot be read", str(diff), reason, fix
        ) from error
    except patchfile.PatchError as error:
        why = f"{error.file}: {error.reason}" if error.file else error.reason
        raise _invalid(
            "patch-malformed", f"the diff of patch {name} is malformed", f"{diff}:{error.line}", why, "make it anew"
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    return Patch(name, meta, where, diff, digest, files, version, use.accept_risk)


def _judge_risk(use: PatchUse, meta: PatchMeta, where: str) -> None:
    """A harmful patch needs a reason, and no other may have one: it would be read as a warning."""
    if meta.status == "harmful" and use.accept_risk is None:
        measured = "".join(f" Measured: {item.setup}: {item.result}." for item in meta.measured)
        raise _invalid(
            "patch-harmful",
            f"patch {use.name} is known to be harmful",
            where,
            f"{meta.risk.strip()}{measured}",
            f'take it out of the build, or write `{{name: {use.name}, accept_risk: "why it is wanted"}}`',
        )
    if meta.status != "harmful" and use.accept_risk is not None:
        raise _invalid(
            "patch-not-harmful",
            f"patch {use.name} needs no accept_risk",
            where,
            f"its status is {meta.status}",
            f"write only `{use.name}`",
        )


def _companions(spec: BuildSpec, patch: Patch, catalog: Path) -> Iterator[Problem]:
    """Patches that `patch` needs, and that neither the build nor the pinned version of their project has."""
    named = {use.name for use in spec.patches}
    for name in patch.meta.needs_patches:
        if name in named:
            continue
        try:
            needed, _ = load_patch(catalog / "patches" / name / "patch.yml")
        except RackwellError as error:
            yield from error.problems
            continue
        source = spec.sources.get(needed.project)
        if source is not None and source.version and needed.is_upstream(source.version):
            continue
        since = f", which is upstream since {needed.upstream_since}" if needed.upstream_since else ""
        pinned = (
            f"the build pins {needed.project} {source.version} and does not ask for it"
            if source is not None
            else f"the build does not pin {needed.project} under `sources`, so rackwell cannot tell what it has"
        )
        yield Problem(
            "patch-needs-patch",
            f"patch {patch.name} does not work without {name}",
            patch.where,
            f"it needs {name}{since}; {pinned}",
            f"add {name} to `patches`" if source is not None else f"add {needed.project} to `sources`",
        )


def _refusals(patch: Patch, version: str, failures: list[patchfile.PatchError]) -> list[Problem]:
    target = f"{patch.meta.project} {version}"
    if len(failures) == len(patch.files) and all(failure.present for failure in failures):
        places = ", ".join(failure.file for failure in failures)
        return [
            Problem(
                "patch-upstream-already",
                f"patch {patch.name} is in {target} already",
                f"{patch.diff}:{failures[0].line}",
                f"the change stands in {places}: it came from upstream or from a patch before it",
                f"remove it from {patch.where}",
            )
        ]
    return [
        Problem(
            "patch-needs-fuzz" if failure.fuzz else "patch-does-not-apply",
            f"patch {patch.name} " + ("applies only with fuzz to " if failure.fuzz else "does not apply to ") + target,
            f"{patch.diff}:{failure.line}",
            (f"{failure.file}, hunk {failure.hunk}: " if failure.hunk else f"{failure.file}: ") + failure.reason,
            f"make the diff anew from the files of {target}, or remove the patch from {patch.where}",
        )
        for failure in failures
    ]


def _invalid(code: str, what: str, where: str, why: str = "", fix: str = "") -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), ExitCode.INVALID)
