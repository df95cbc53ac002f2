# SPDX-License-Identifier: Apache-2.0
"""A git source: one commit with its submodules, as files, and what tells it from every other."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from rackwell.build import gitcommand, giturl
from rackwell.build.gitmirror import Mirror
from rackwell.build.gittree import Snapshot, UnsafeError
from rackwell.build.lock import LockedSubmodule
from rackwell.build.model import Source
from rackwell.errors import ExitCode, Problem, RackwellError

_DEPTH = 8


@dataclasses.dataclass(frozen=True)
class Checkout:
    """The files of a git source, below `folder`.

    Attributes:
        tree: the id of the commit's tree.
        submodules: each one's place, commit and tree, by place; empty when the source leaves them out.
        time: when the commit was made, in seconds since 1970.
    """

    folder: Path
    tree: str
    submodules: tuple[LockedSubmodule, ...]
    time: int


def check_out(
    source: Source, where: str, state: Path, folder: Path, progress: Callable[[str], None], *, ask_tag: bool
) -> Checkout:
    """Bring the files of `source` into ``folder/tree``.

    Args:
        where: ``file:line`` of the source.
        state: ``SITE/.rackwell``.
        ask_tag: ask the repository for the tag even when the commit is here.

    Raises:
        RackwellError: see `Mirror.snapshot`; or a submodule cannot be had.
    """
    assert source.git is not None and source.commit is not None  # noqa: S101, PT018 (the model's validator)
    brought = _Brought(where, state, folder, progress, source.submodules)
    mirror = Mirror(state, source.git, where)
    if ask_tag and source.tag is not None:
        mirror.check_tag(source.tag, source.commit)
    target = folder / "tree"
    shutil.rmtree(target, ignore_errors=True)
    top = brought.bring(mirror, source.commit, None if ask_tag else source.tag, target, "", 0)
    return Checkout(target, top.tree, tuple(sorted(brought.submodules)), top.time)


@dataclasses.dataclass
class _Brought:
    where: str
    state: Path
    folder: Path
    progress: Callable[[str], None]
    follow: bool
    submodules: list[LockedSubmodule] = dataclasses.field(default_factory=list)

    def bring(self, mirror: Mirror, commit: str, tag: str | None, target: Path, above: str, depth: int) -> Snapshot:
        """Write the commit's files, and those of its submodules, below `target`."""
        found = mirror.snapshot(commit, tag, self.folder, self.progress)
        try:
            found.export(target)
        except UnsafeError as error:
            raise self._error(
                "git-tree-unsafe",
                f"commit {commit[:12]} of {mirror.url} cannot be used",
                str(error),
                "pin another commit",
            ) from error
        if self.follow and found.submodules:
            self._follow(found, mirror.url, target, above, depth)
        return found

    def _follow(self, found: Snapshot, url: str, target: Path, above: str, depth: int) -> None:
        if depth >= _DEPTH:
            raise self._error(
                "git-submodule-unknown",
                f"the submodules of {url} are nested more than {_DEPTH} deep",
                f"{above} has submodules, too",
                "set `submodules: false`, or pin another commit",
            )
        urls = self._urls(found)
        for path, commit in sorted(found.submodules.items()):
            place = f"{above}{path}"
            try:
                theirs = giturl.resolved(urls[path], url)
            except KeyError:
                raise self._unknown(
                    place, url, found.commit, "its .gitmodules does not say where it comes from"
                ) from None
            except ValueError as error:
                why = f"its .gitmodules says {urls[path]!r}: it {error}"
                raise self._unknown(place, url, found.commit, why) from None
            try:
                inner = self.bring(
                    Mirror(self.state, theirs, self.where), commit, None, target / path, f"{place}/", depth + 1
                )
            except RackwellError as error:
                first = error.problems[0]
                what = first.what if "submodule" in first.what else f"submodule {place}: {first.what}"
                error.problems[0] = dataclasses.replace(first, what=what)
                raise
            self.submodules.append(LockedSubmodule(place, commit, inner.tree))

    def _urls(self, found: Snapshot) -> dict[str, str]:
        """Path -> URL, as .gitmodules has it; git reads the file, which is in its own language."""
        text = found.read(".gitmodules")
        if text is None:
            return {}
        file = self.folder / "gitmodules"
        file.write_bytes(text)
        done = gitcommand.run(["config", "--file", str(file), "--no-includes", "--null", "--list"], self.where)
        values: dict[str, dict[str, str]] = {}
        for item in done.stdout.split("\0"):
            key, _, value = item.partition("\n")
            if key.startswith("submodule."):
                name, _, variable = key.removeprefix("submodule.").rpartition(".")
                values.setdefault(name, {})[variable] = value
        return {value["path"]: value["url"] for value in values.values() if {"path", "url"} <= value.keys()}

    def _unknown(self, place: str, url: str, commit: str, why: str) -> RackwellError:
        return self._error(
            "git-submodule-unknown",
            f"submodule {place} of {url} cannot be fetched",
            f"commit {commit[:12]}: {why}",
            "set `submodules: false` if the wheel does not need it, or pin another commit",
        )

    def _error(self, code: str, what: str, why: str, fix: str) -> RackwellError:
        return RackwellError(Problem(code, what, self.where, why, fix), ExitCode.FAILED)
