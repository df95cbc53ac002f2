# SPDX-License-Identifier: Apache-2.0
"""The patches of a build: found in the catalogue or at a path, held against the pinned versions, applied in order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from rackwell.build import patchfile
from rackwell.build.model import BuildSpec, PatchMeta, load_patch
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site.files import is_file


@dataclasses.dataclass(frozen=True)
class PatchRequirement:
    """What a patch of a build asks of the profile, and how it is judged."""

    name: str
    project: str
    needs_flags: dict[str, str | bool | int]
    status: str
    touches_code_path: bool
    where: str


@dataclasses.dataclass(frozen=True)
class Patch:
    """One patch of a build, chosen for the pinned version.

    Attributes:
        name: as the build names it.
        where: ``file:line`` of the build that asks for it.
        diff: the diff's file.
        sha256: of the diff's bytes.
    """

    name: str
    meta: PatchMeta
    where: str
    diff: Path
    sha256: str
    files: tuple[patchfile.FilePatch, ...]


def find_patches(spec: BuildSpec, catalog: Path) -> list[Patch]:
    """The patches of `spec` in order.

    Raises:
        RackwellError: one problem for each patch that is unknown, not for this version, upstream already or
            unreadable (exit 2).
    """
    found: list[Patch] = []
    problems: list[Problem] = []
    for index, name in enumerate(spec.patches):
        try:
            found.append(_find(spec, name, spec.where("patches", index), catalog))
        except RackwellError as error:
            problems += error.problems
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)
    return found


def patch_requirements(spec: BuildSpec, catalog: Path) -> list[PatchRequirement]:
    """What the patches of `spec` need of a profile. Raises as `find_patches` does."""
    return [
        PatchRequirement(
            patch.name,
            patch.meta.project,
            dict(patch.meta.needs_flags),
            patch.meta.status,
            patch.meta.touches_code_path,
            patch.where,
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


def _find(spec: BuildSpec, name: str, where: str, catalog: Path) -> Patch:
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
    if meta.upstream_since is not None and Version(version) >= Version(meta.upstream_since):
        raise _invalid(
            "patch-upstream-already",
            f"patch {name} is in {meta.project} {version} already",
            where,
            f"upstream has it since {meta.upstream_since}",
            "remove it from the build",
        )
    if version not in meta.applies_to:
        raise _invalid(
            "patch-not-for-version",
            f"patch {name} does not say that it applies to {meta.project} {version}",
            where,
            f"it applies to {', '.join(sorted(meta.applies_to, key=Version))}",
            f"pin one of these versions, or add a diff for {version} to {document.where(('applies_to',))}",
        )
    diff = folder / meta.applies_to[version]
    try:
        data = diff.read_bytes()
        files = tuple(patchfile.parse(data))
    except OSError as error:
        reason = error.strerror or str(error)
        fix = f"put the diff there, or correct {document.where(('applies_to', version))}"
        raise _invalid(
            "patch-unreadable", f"the diff of patch {name} cannot be read", str(diff), reason, fix
        ) from error
    except patchfile.PatchError as error:
        why = f"{error.file}: {error.reason}" if error.file else error.reason
        raise _invalid(
            "patch-malformed", f"the diff of patch {name} is malformed", f"{diff}:{error.line}", why, "make it anew"
        ) from error
    return Patch(name, meta, where, diff, hashlib.sha256(data).hexdigest(), files)


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
            "patch-does-not-apply",
            f"patch {patch.name} does not apply to {target}",
            f"{patch.diff}:{failure.line}",
            (f"{failure.file}, hunk {failure.hunk}: " if failure.hunk else f"{failure.file}: ") + failure.reason,
            f"make the diff anew from the files of {target}, or remove the patch from {patch.where}",
        )
        for failure in failures
    ]


def _invalid(code: str, what: str, where: str, why: str = "", fix: str = "") -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), ExitCode.INVALID)
