# SPDX-License-Identifier: Apache-2.0
"""Local mirrors of git repositories: ``git/<SHA-256 of the URL>.git``, bare, with the commits that were asked for."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rackwell.build import gitcommand
from rackwell.build.files import no_space
from rackwell.build.gittree import DamagedError, Snapshot, UnsafeError
from rackwell.errors import ExitCode, Problem, RackwellError

_WAIT_S = gitcommand.FETCH_S
_MISSING = re.compile(
    r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object|did not (?:send|receive)|bad object"
)
_INCOMPLETE = re.compile(r"early EOF|index-pack|repository corruption|hung up unexpectedly|disconnect|Connection reset")
_UNADVERTISED = re.compile(r"unadvertised object|no such remote ref|couldn't find remote ref|not our ref")


class Mirror:
    """The mirror of one repository.

    Args:
        state: ``SITE/.rackwell``.
        where: ``file:line`` of what asks for it, for messages.
    """

    def __init__(self, state: Path, url: str, where: str) -> None:
        self.url = url
        self.path = state / "git" / f"{hashlib.sha256(url.encode()).hexdigest()}.git"
        self._where = where

    def snapshot(self, commit: str, tag: str | None, folder: Path, progress: Callable[[str], None]) -> Snapshot:
        """The commit's files, fetched when they are not here, or here and damaged.

        Args:
            tag: must lead to the commit; looked at when the repository is asked.
            folder: an empty folder on the mirror's file system.

        Raises:
            RackwellError: the repository does not answer or does not have the commit, the tag has moved, or the commit
                cannot be used. What was here before still is.
        """
        with self._locked() as lock:
            damage = ""
            if self._holds(commit):
                try:
                    return self._read(commit, folder)
                except DamagedError as error:
                    damage = str(error)
                    progress(f"  the mirror of {self.url} is damaged ({damage}): fetching again")
                    shutil.rmtree(self.path)
            try:
                if tag is not None:
                    self._check_tag(tag, commit, lock)
                progress(f"  fetching commit {commit[:12]} of {self.url}")
                self._fetch(commit, lock)
                return self._read(commit, folder)
            except DamagedError as error:
                raise self._incomplete(commit, str(error)) from error
            except RackwellError as error:
                if damage:
                    note = f"the mirror here was damaged ({damage}) and has been removed; "
                    error.problems[0] = _with_why(error.problems[0], note)
                raise

    def check_tag(self, tag: str, commit: str) -> None:
        """Ask the repository where `tag` leads. Raises RackwellError when that is not `commit`."""
        with self._locked() as lock:
            self._check_tag(tag, commit, lock)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """One run at a time. A git that outlives a killed run holds the lock on: it has been given the open file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._error(
                            "git-mirror-busy",
                            f"another run is fetching {self.url}",
                            f"it holds {self.path.with_suffix('.lock')} for more than {_WAIT_S} s",
                            "wait for it, or end it, then run again",
                        ) from None
                    time.sleep(0.1)
            yield handle
        finally:
            os.close(handle)

    def _holds(self, commit: str) -> bool:
        return (self.path / "refs" / "rackwell" / commit).is_file()

    def _read(self, commit: str, folder: Path) -> Snapshot:
        try:
            return Snapshot(self.path, commit, folder, self._where)
        except (UnsafeError, ValueError) as error:
            raise self._error(
                "git-tree-unsafe",
                f"commit {commit[:12]} of {self.url} cannot be used",
                str(error),
                "pin another commit, and tell the project",
            ) from error

    def _check_tag(self, tag: str, commit: str, lock: int) -> None:
        ref = f"refs/tags/{tag}"
        done = gitcommand.run(["ls-remote", "--tags", "--", self.url, ref, f"{ref}^{{}}"], self._where, keep=[lock])
        if done.returncode != 0:
            raise self._failed(done.stderr, commit)
        listed = (line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
        found = {name: leads for leads, name in listed}
        leads = found.get(f"{ref}^{{}}") or found.get(ref)
        if leads != commit:
            raise self._error(
                "git-tag-moved",
                f"tag {tag} of {self.url} does not lead to the pinned commit",
                f"it leads to {leads}, {commit} is pinned" if leads else "the repository has no such tag",
                "find out why it was moved; then pin the commit that you want, or take `tag` out",
                ExitCode.INVALID,
            )

    def _fetch(self, commit: str, lock: int) -> None:
        if not (self.path / "HEAD").is_file():
            self._create()
        # we hold the lock, so whoever left these is gone
        for left in [*self.path.rglob("*.lock"), *self.path.glob("objects/**/tmp_*")]:
            left.unlink(missing_ok=True)
        wanted = f"+{commit}:refs/rackwell/{commit}"
        done = self._git_fetch([*("--depth", "1"), "--", self.url, wanted], lock)
        if done and _UNADVERTISED.search(done):
            # a server of the old kind gives only what a branch or tag leads to
            everything = ["+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*"]
            shallow = ["--unshallow"] if (self.path / "shallow").is_file() else []
            failed = self._git_fetch([*shallow, "--", self.url, *everything], lock)
            if failed:
                raise self._failed(failed, commit)
            kept = gitcommand.run(
                ["update-ref", f"refs/rackwell/{commit}", commit], self._where, folder=self.path, keep=[lock]
            )
            if kept.returncode != 0:
                raise self._failed(done, commit)
        elif done:
            raise self._failed(done, commit)

    def _git_fetch(self, arguments: list[str], lock: int) -> str:
        """What git said when it failed; empty when it did not."""
        options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance"]
        done = gitcommand.run(
            ["fetch", *options, *arguments], self._where, folder=self.path, seconds=gitcommand.FETCH_S, keep=[lock]
        )
        return "" if done.returncode == 0 else done.stderr or f"git ended with {done.returncode}"

    def _create(self) -> None:
        fresh = self.path.with_suffix(".partial")
        for old in (fresh, self.path):
            if old.exists():
                shutil.rmtree(old)
        done = gitcommand.run(["init", "--quiet", "--bare", "--template=", "--", str(fresh)], self._where)
        if done.returncode != 0:
            raise self._failed(done.stderr, "")
        fresh.rename(self.path)

    def _failed(self, said: str, commit: str) -> RackwellError:
        lines = [line.strip() for line in said.replace("\0", "").splitlines() if line.strip()]
        text = " ".join(line for line in lines if not line.startswith("warning:"))[-1000:]
        if "No space left on device" in text:
            return no_space(self.path, None)
        if _MISSING.search(text):
            return self._error(
                "git-commit-missing",
                f"{self.url} does not have commit {commit}",
                text,
                "pin a commit that the repository has; if it had it before, find out who rewrote it",
            )
        if _INCOMPLETE.search(text):
            return self._incomplete(commit, text)
        return self._error(
            "git-unreachable",
            f"{self.url} cannot be fetched from",
            text,
            "make it reachable for `git ls-remote` on this machine (network, name, credentials), then run again",
        )

    def _incomplete(self, commit: str, why: str) -> RackwellError:
        return self._error(
            "git-incomplete",
            f"commit {commit[:12]} did not come whole from {self.url}",
            why,
            "run again; if it stays so, the repository there or this machine's disk is damaged",
        )

    def _error(self, code: str, what: str, why: str, fix: str, exit_code: ExitCode = ExitCode.FAILED) -> RackwellError:
        return RackwellError(Problem(code, what, self._where, why, fix), exit_code)


def _with_why(problem: Problem, note: str) -> Problem:
    return Problem(problem.code, problem.what, problem.where, f"{note}{problem.why}", problem.fix)
