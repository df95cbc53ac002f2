# SPDX-License-Identifier: Apache-2.0
"""What a patch does to one version of its project, found by trying it, and whether that is what the patch says."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence

from rackwell.build import patchfile
from rackwell.build.catalogue.entry import Entry
from rackwell.build.catalogue.meta import Proof
from rackwell.build.catalogue.ranges import VersionRange

Read = Callable[[str], bytes | None]
"""The content of a file of the unpatched source, None when there is none."""


class Verdict(enum.StrEnum):
    """What came of trying a patch."""

    APPLIES = "applies"
    UPSTREAM = "upstream"
    DOES_NOT_APPLY = "does not apply"
    NO_EFFECT = "no effect"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One diff against one source. `reason` says which file, hunk and line stand against it."""

    verdict: Verdict
    reason: str = ""
    fuzz: int = 0


@dataclasses.dataclass(frozen=True)
class Cell:
    """A patch against a version.

    Attributes:
        diff: file name of the diff that the verdict is about; empty where it rests on a proof.
        claimed: the patch says that it applies to the version.
        contradiction: what the patch says that is not so; empty when it says nothing wrong.
    """

    version: str
    verdict: Verdict
    diff: str
    reason: str
    claimed: bool
    contradiction: str = ""


def judge(entry: Entry, version: str, read: Read) -> Cell:
    """Try `entry` on the source that `read` reads."""
    meta = entry.meta
    claimed = meta.diff_for(version)
    cell = _tried(entry, version, read, claimed)
    contradiction = ""
    if claimed is not None and cell.verdict is not Verdict.APPLIES:
        contradiction = f"it says that it applies to {version}, and {_because(cell)}"
    elif meta.is_upstream(version) and cell.verdict is not Verdict.UPSTREAM:
        contradiction = f"it says that {version} has the change, and {_because(cell)}"
    elif cell.verdict is Verdict.UPSTREAM and not meta.is_upstream(version):
        contradiction = f"{version} has the change, and the patch does not say so"
    return dataclasses.replace(cell, contradiction=contradiction)


def try_diff(files: Sequence[patchfile.FilePatch], read: Read) -> Trial:
    """Apply all of one diff, strictly, and say what came of it."""
    failures: list[patchfile.PatchError] = []
    changes = False
    for file in files:
        before = read(file.path)
        try:
            changes = patchfile.apply(before, file) != before or changes
        except patchfile.PatchError as error:
            failures.append(error)
    if not failures:
        return Trial(Verdict.APPLIES) if changes else Trial(Verdict.NO_EFFECT, "the files are the same after it")
    if len(failures) == len(files) and all(failure.present for failure in failures):
        return Trial(Verdict.UPSTREAM, f"all of it stands in {', '.join(failure.file for failure in failures)}")
    worst = min(failures, key=lambda failure: (failure.present, failure.fuzz > 0))
    hunk = f", hunk {worst.hunk}" if worst.hunk else ""
    return Trial(Verdict.DOES_NOT_APPLY, f"{worst.file}{hunk}: {worst.reason}", worst.fuzz)


def _tried(entry: Entry, version: str, read: Read, claimed: str | None) -> Cell:
    if claimed is not None:
        trial = try_diff(entry.diffs[claimed], read)
        return Cell(version, trial.verdict, claimed, trial.reason, True)
    trials = {name: try_diff(files, read) for name, files in entry.diffs.items()}
    for wanted in (Verdict.UPSTREAM, Verdict.APPLIES):
        for name, trial in trials.items():
            if trial.verdict is wanted:
                return Cell(version, wanted, name, trial.reason, False)
    for proof in entry.meta.upstream_proof:
        if version in VersionRange.parse(proof.versions) and (line := _proved(proof, read)):
            return Cell(version, Verdict.UPSTREAM, "", f"it stands in {proof.file}, line {line}", False)
    name = _nearest(entry, version)
    return Cell(version, trials[name].verdict, name, trials[name].reason, False)


def _proved(proof: Proof, read: Read) -> int:
    """The line (from 1) where `proof` stands, 0 when it does not."""
    content = read(proof.file)
    if content is None:
        return 0
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    wanted = [line.strip() for line in proof.lines]
    places: Iterator[int] = (at for at in range(len(lines)) if lines[at : at + len(wanted)] == wanted)
    return next(places, -1) + 1


def _nearest(entry: Entry, version: str) -> str:
    """The diff of the newest range that begins at or before `version`, else of the oldest: its failure says most."""
    ranges = sorted(((VersionRange.parse(text).low, name) for text, name in entry.meta.applies_to.items()))
    before = [name for low, name in ranges if low <= VersionRange.parse(version).low]
    return before[-1] if before else ranges[0][1]


def _because(cell: Cell) -> str:
    what = {
        Verdict.APPLIES: f"{cell.diff} still applies",
        Verdict.UPSTREAM: f"the change is there already ({cell.reason})",
        Verdict.NO_EFFECT: "it changes nothing",
        Verdict.DOES_NOT_APPLY: f"it does not: {cell.reason}",
    }
    return what[cell.verdict]
