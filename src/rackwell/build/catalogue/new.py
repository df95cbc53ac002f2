# SPDX-License-Identifier: Apache-2.0
"""A catalogue entry from an edited source tree: the difference to the released wheel, proved before it is kept."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from rackwell.build import patchfile
from rackwell.build.catalogue import differ
from rackwell.build.catalogue.entry import Entry, load_entry
from rackwell.build.catalogue.judge import Verdict, judge
from rackwell.build.catalogue.wheels import Held
from rackwell.build.files import telling_file_errors, write_atomically
from rackwell.build.wheelfile import MALFORMED, Wheel
from rackwell.errors import ExitCode, Problem, RackwellError

#: What a checkout calls the folders of a wheel: (in the checkout, in the wheel), the longest first.
_LAYOUTS: dict[str, list[tuple[str, str]]] = {
    "sglang": [("python/sglang/", "sglang/")],
    "flashinfer-python": [
        ("flashinfer/", "flashinfer/"),
        ("include/", "flashinfer/data/include/"),
        ("csrc/", "flashinfer/data/csrc/"),
    ],
}
#: Files that show that a tree is a checkout of the project, and not what a wheel unpacks to.
_MARKS = {"sglang": ("python/sglang",), "flashinfer-python": ("include/flashinfer", "csrc")}
_NOISE = re.compile(r"(^|/)(__pycache__|\.git|\.[^/]*_cache)/|\.(pyc|pyo|orig|rej|swp|bak)$|~$")
_NAME = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")


@dataclasses.dataclass(frozen=True)
class Made:
    """What `make` made.

    Attributes:
        changed: path in the wheel -> number of hunks.
        ignored: files of the tree that the wheel does not have, and that were not taken: a checkout has many.
        added_to: whether the entry was there, and got a diff for one version more.
    """

    entry: Entry
    diff: Path
    changed: dict[str, int]
    ignored: int
    added_to: bool


def check_name(text: str, project: str) -> str:
    """The last part of a patch's name.

    Raises:
        RackwellError: it cannot be one, or names another project (exit 2).
    """
    head, _, name = text.rpartition("/")
    if head not in {"", project} or not _NAME.match(name):
        fix = f"small letters, digits and dashes, such as {project}/my-change or my-change"
        raise _invalid("wrong-name", f"'{text}' cannot be the name of a patch of {project}", "NAME", "", fix)
    return name


def make(held: Held, tree: Path, folder: Path, name: str, summary: str) -> Made:
    """Make the entry in `folder`, or add a version to the one that is there.

    Args:
        held: the released wheel that the tree was before it was edited.
        tree: what a wheel unpacks to, or a checkout of the project.
        folder: of the entry; its last part is the entry's.
        name: the patch's own name, for ``patch.yml``.
        summary: one line on what it changes, for a new entry.

    Raises:
        RackwellError: nothing was changed, what was changed cannot be a patch, or there is a diff for the version
            already (exit 2). Nothing is written then.
    """
    with telling_file_errors(tree), _opened(held) as wheel:
        names = {entry.name for entry in wheel.entries()}
        layout, whole = _layout(held.project, tree)
        edited, ignored = _edited(wheel, names, tree, layout, whole)
        if not edited:
            why = f"every file of {tree} that {held.filename} has is the same"
            fix = "edit a file, or see that --version is the one that the tree was taken from"
            raise _invalid("patch-changes-nothing", "the tree is not changed", str(tree), why, fix)
        data = b"".join(differ.diff(path, old, new) for path, (old, new) in sorted(edited.items()))
        files = patchfile.parse(data)
        _prove(files, edited)
        with telling_file_errors(folder):
            added_to = (folder / "patch.yml").exists()
            _write(folder, held, name, summary, data, added_to)
        entry = load_entry(folder, name)
        cell = judge(entry, held.version, wheel.read)
        if cell.verdict is not Verdict.APPLIES:
            raise AssertionError(f"the entry was proved, and now {cell.verdict}: {cell.reason}")
    changed = {file.path: len(file.hunks) for file in files}
    return Made(entry, folder / f"{held.version}.patch", changed, ignored, added_to)


def _opened(held: Held) -> Wheel:
    try:
        return Wheel(held.path, held.filename)
    except MALFORMED as error:
        why = str(error) or type(error).__name__
        fix = f"remove {held.path} and run again"
        problem = Problem("wheel-malformed", f"{held.filename} cannot be read", str(held.path), why, fix)
        raise RackwellError(problem) from error


def _layout(project: str, tree: Path) -> tuple[list[tuple[str, str]], bool]:
    """How paths of the tree map to paths of the wheel, and whether the tree is all that the wheel is."""
    if any((tree / mark).is_dir() for mark in _MARKS.get(project, ())):
        return _LAYOUTS[project], False
    return [("", "")], True


def _edited(
    wheel: Wheel, names: set[str], tree: Path, layout: list[tuple[str, str]], whole: bool
) -> tuple[dict[str, tuple[bytes | None, bytes | None]], int]:
    """Path in the wheel -> (old, new) of all that differs; and how many files of the tree were left out."""
    edited: dict[str, tuple[bytes | None, bytes | None]] = {}
    seen: set[str] = set()
    ignored = 0
    tops = {name.split("/", 1)[0] for name in names if not _is_metadata(name)}
    for place in _walk(tree):
        path = next((to + place[len(at) :] for at, to in layout if place.startswith(at)), None)
        if path is None or _NOISE.search(path) or _is_metadata(path):
            continue
        # beside the package of a wheel there may lie all that a virtual environment has
        if path.split("/", 1)[0] not in tops:
            continue
        seen.add(path)
        if path not in names and not whole:
            ignored += 1
            continue
        content = wheel.read(path), (tree / place).read_bytes()
        if content[0] != content[1]:
            edited[path] = content
    if not seen & names:
        why = f"it has none of the files of {wheel.name.filename}"
        fix = f"give the folder that holds {'/, '.join(sorted(tops))}/, or a checkout of the project"
        raise _invalid("not-a-tree", "that is no tree of the project", str(tree), why, fix)
    if whole:
        kept = {name for name in names if not _is_metadata(name) and not _NOISE.search(name) and "/." not in name}
        edited.update({path: (wheel.read(path), None) for path in kept - seen})
    for path, (old, new) in sorted(edited.items()):
        if b"\0" in (old or b"") or b"\0" in (new or b""):
            raise _invalid("patch-binary", f"{path} is not text", str(tree / path), "a patch changes text", "undo it")
    return edited, ignored


def _walk(tree: Path) -> Iterator[str]:
    """Every regular file below `tree`, as a path with ``/``."""
    for base, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = Path(base, name)
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(tree).as_posix()


def _is_metadata(path: str) -> bool:
    return path.split("/", 1)[0].endswith((".dist-info", ".data"))


def _prove(files: list[patchfile.FilePatch], edited: dict[str, tuple[bytes | None, bytes | None]]) -> None:
    """The diff, read again and applied, gives the edited files byte for byte."""
    for file in files:
        old, new = edited[file.path]
        try:
            if patchfile.apply(old, file) != new:
                raise AssertionError(f"the diff of {file.path} does not give the edited file")
        except patchfile.PatchError as error:
            why = f"{error.file}: {error.reason}"
            fix = "keep the edit to lines of text in files that the wheel has"
            raise _invalid("patch-malformed", "the edit cannot be a patch", file.path, why, fix) from error


def _write(folder: Path, held: Held, name: str, summary: str, data: bytes, added_to: bool) -> None:
    filename = f"{held.version}.patch"
    if added_to:
        text = _with_version(load_entry(folder, name), held, filename)
        if (folder / filename).exists():
            raise _exists(folder / filename)
        write_atomically(folder / filename, data)
        write_atomically(folder / "patch.yml", text.encode())
        return
    if folder.exists():
        raise _invalid("file-exists", f"{folder.name} exists and is no patch", str(folder), "", "choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        (fresh / filename).write_bytes(data)
        (fresh / "patch.yml").write_text(_metadata(held, name, summary, filename), encoding="utf-8")
        fresh.chmod(0o755)
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _metadata(held: Held, name: str, summary: str, filename: str) -> str:
    def quoted(text: str) -> str:
        return yaml.safe_dump(text, width=10_000, allow_unicode=True).splitlines()[0]

    return (
        f"name: {name}\n"
        f"project: {held.project}\n"
        f"summary: {quoted(summary)}\n"
        'why: ""                       # what is wrong without it\n'
        f'applies_to:\n  "{held.version}": {filename}\n'
        "# upstream_since:              # the release that has the change\n"
        "needs_flags: {}               # server flags without which it has no effect\n"
        "touches_code_path: true       # does the engine run what it changes?\n"
        'evidence: ""                  # how that is known\n'
        "measured: []                  # setup, result and caveat of each measurement\n"
        'risk: ""\n'
        "status: neutral               # recommended, neutral or harmful\n"
    )


def _with_version(entry: Entry, held: Held, filename: str) -> str:
    """The text of ``patch.yml`` with one version more under ``applies_to``, all else as it stands."""
    meta, document = entry.meta, entry.document
    where = document.where(("applies_to",))
    if meta.project != held.project:
        fix = "choose another name"
        raise _invalid(
            "wrong-name", f"{entry.name} is a patch of {meta.project}", document.where(("project",)), "", fix
        )
    if meta.diff_for(held.version) is not None or meta.is_upstream(held.version):
        why = f"it has a diff for {held.version}" if meta.diff_for(held.version) else "upstream has the change there"
        fix = "choose another name, or edit the entry by hand"
        raise _invalid("patch-exists", f"{entry.name} says something of {held.version} already", where, why, fix)
    text = document.path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    last = max(document.line(("applies_to", key)) for key in meta.applies_to)
    if last == document.line(("applies_to",)):
        fix = "write each version on a line of its own"
        raise _invalid("patch-form", f"{entry.name} has its versions on one line", where, "", fix)
    indent = re.match(r"\s*", lines[last - 1])
    lines.insert(last, f'{indent[0] if indent else "  "}"{held.version}": {filename}\n')
    return "".join(lines)


def _exists(path: Path) -> RackwellError:
    return _invalid("file-exists", f"{path.name} exists", str(path), "no range names it", "remove it, or name it")


def _invalid(code: str, what: str, where: str, why: str = "", fix: str = "") -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), ExitCode.INVALID)
