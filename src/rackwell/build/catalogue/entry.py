# SPDX-License-Identifier: Apache-2.0
"""The catalogue as a folder: one entry a patch, ``patches/PROJECT/NAME/patch.yml`` with its diffs beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rackwell.build import patchfile
from rackwell.build.catalogue.meta import PatchMeta, load_patch
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files, validation
from rackwell.site.yamlsource import Document


@dataclasses.dataclass(frozen=True)
class Entry:
    """One patch.

    Attributes:
        name: as a build would ask for it: its name in the catalogue, or ``./patches/NAME`` for one of the site.
        diffs: file name -> the diff, in the order of `meta.applies_to`.
    """

    name: str
    folder: Path
    meta: PatchMeta
    document: Document
    diffs: dict[str, tuple[patchfile.FilePatch, ...]]


def load_entry(folder: Path, name: str) -> Entry:
    """The patch in `folder`, its diffs read.

    Raises:
        RackwellError: ``patch.yml`` or a diff does not hold, or a diff is missing (exit 2).
    """
    meta, document = load_patch(folder / "patch.yml")
    diffs: dict[str, tuple[patchfile.FilePatch, ...]] = {}
    problems: list[Problem] = []
    for text, filename in meta.applies_to.items():
        if filename in diffs:
            continue
        path = folder / filename
        try:
            diffs[filename] = tuple(patchfile.parse(path.read_bytes()))
        except OSError as error:
            where = document.where(("applies_to", text))
            why = error.strerror or str(error)
            problems.append(
                Problem("patch-unreadable", f"the diff {filename} cannot be read", where, why, "put it there")
            )
        except patchfile.PatchError as error:
            why = f"{error.file}: {error.reason}" if error.file else error.reason
            where = f"{path}:{error.line}"
            problems.append(Problem("patch-malformed", f"the diff {filename} is malformed", where, why, "make it anew"))
    for stray in sorted(path.name for path in folder.glob("*.patch") if path.name not in meta.applies_to.values()):
        where = document.where(("applies_to",))
        fix = f"name it there, or remove {folder / stray}"
        problems.append(Problem("patch-stray", f"no version uses the diff {stray}", where, "", fix))
    if problems:
        raise RackwellError(problems, ExitCode.INVALID)
    return Entry(name, folder, meta, document, diffs)


def load_all(catalog: Path, site: Path | None = None) -> tuple[list[Entry], list[Problem]]:
    """Every patch of the catalogue, then every patch of the site, and what is wrong with those that do not hold.

    Args:
        catalog: the directory with ``patches/``.
        site: a site, whose own patches lie in ``builds/patches/NAME``.
    """
    entries: list[Entry] = []
    problems: list[Problem] = []
    for name, folder in _folders(catalog, site):
        try:
            entry = load_entry(folder, name)
            if not name.startswith(".") and entry.meta.name != name:
                problems.append(_misnamed(entry))
            entries.append(entry)
        except RackwellError as error:
            problems += error.problems
    return entries, problems


def find(name: str, catalog: Path, site: Path | None = None) -> Entry:
    """The patch `name`; the last part of its name is enough where no other ends so.

    Raises:
        RackwellError: there is none, there are several, or it does not hold (exit 2).
    """
    known = dict(_folders(catalog, site))
    hits = [key for key in known if key == name] or [key for key in known if key.rsplit("/", 1)[-1] == name]
    if len(hits) == 1:
        return load_entry(known[hits[0]], hits[0])
    if hits:
        what, fix = f"several patches are called {name}", f"give the whole name: {', '.join(hits)}"
    else:
        what = f"there is no patch {name}"
        fix = validation.suggest(name, known, 0.5) or f"there is: {', '.join(known) or 'none'}"
    raise RackwellError(Problem("patch-unknown", what, str(catalog / "patches"), "", fix), ExitCode.INVALID)


def _folders(catalog: Path, site: Path | None) -> Iterator[tuple[str, Path]]:
    for path in sorted((catalog / "patches").glob("*/*/patch.yml")):
        yield "/".join(path.parent.parts[-2:]), path.parent
    if site is not None:
        for path in sorted((site / "builds" / "patches").glob("*/patch.yml")):
            if files.is_file(path):
                yield f"./patches/{path.parent.name}", path.parent


def _misnamed(entry: Entry) -> Problem:
    return Problem(
        "wrong-value",
        f"'name' in the patch {entry.name} does not hold",
        entry.document.where(("name",)),
        f"it is {entry.meta.name}, and its place in the catalogue is {entry.name}",
        f"write `name: {entry.name}`",
    )
