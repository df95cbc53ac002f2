# SPDX-License-Identifier: Apache-2.0
"""From a git source's files to its wheel: in an environment of locked wheels, without a network where that can be had.

The project's own build code runs here, as the one who runs rackwell: whoever pins a commit trusts it that far.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from rackwell import bounded
from rackwell.build import lock as locks
from rackwell.build import pep517
from rackwell.build.fetch import Blobs, fetch
from rackwell.build.gitsource import Checkout, check_out
from rackwell.build.lock import LockedGit, LockedWheel
from rackwell.build.model import BuildSpec, Source
from rackwell.build.wheelfile import MALFORMED, Wheel, best, repacked
from rackwell.errors import ExitCode, Problem, RackwellError

BUILD_S = 1800
_SETUP_S = 300
_PYTHON = sys.executable
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Yard:
    """Where git sources are built: the build, the site's state, its store, and a scratch folder inside the state."""

    spec: BuildSpec
    state: Path
    blobs: Blobs
    folder: Path
    progress: Progress

    def fresh(self, name: str) -> Path:
        """An empty folder in the scratch folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))


def lock_git(yard: Yard) -> dict[Path, LockedGit]:
    """Build every git source of the build with the newest tools that it allows.

    Returns:
        the wheel, under its own name in the scratch folder -> what to lock.

    Raises:
        RackwellError: a source cannot be had, or does not build.
    """
    found: dict[Path, LockedGit] = {}
    for name, source in sorted(yard.spec.sources.items()):
        if source.git is None:
            continue
        yard.progress(f"git source {name}: {source.git} at {(source.commit or '')[:12]}")
        work = _work(yard, name)
        tree = check_out(source, yard.spec.where("sources", name), yard.state, work, yard.progress, ask_tag=True)
        build = _Build(yard, name, source, tree, work)
        requirements = build.requirements()
        tools = locks.resolve_tools(yard.spec, requirements, name)
        build.prepare(tools)
        if further := [text for text in build.further() if text not in requirements]:
            tools = locks.resolve_tools(yard.spec, [*requirements, *further], name)
            build.prepare(tools)
        wheel = build.wheel()
        named = work / "wheel" / wheel.filename
        named.parent.mkdir(exist_ok=True)
        shutil.copyfile(yard.blobs.path(wheel.sha256), named)
        assert source.commit is not None  # noqa: S101 (the model's validator)
        found[named] = LockedGit(wheel, source.commit, tree.tree, tree.submodules, tools)
    return found


def bring_git(yard: Yard, locked: Sequence[LockedGit]) -> int:
    """Build the locked git sources whose wheels are not in the store, and hold them against the lock.

    Returns:
        how many were built.

    Raises:
        RackwellError: another tree, or another wheel, than the lock says.
    """
    missing = yard.blobs.missing(git.wheel.sha256 for git in locked)
    wanted = [git for git in locked if git.wheel.sha256 in missing]
    for git in wanted:
        name = git.wheel.project
        source, where = yard.spec.sources[name], yard.spec.where("sources", name)
        yard.progress(f"git source {name}: {source.git} at {git.commit[:12]}")
        work = _work(yard, name)
        tree = check_out(source, where, yard.state, work, yard.progress, ask_tag=False)
        if (tree.tree, tree.submodules) != (git.tree, tuple(sorted(git.submodules))):
            raise _error(
                "git-tree-differs",
                f"commit {git.commit[:12]} of {source.git} is not the tree that was locked",
                where,
                _difference(tree, git),
                "restore the lock; or, if the change is right, run `rackwell build --relock`",
            )
        build = _Build(yard, name, source, tree, work)
        build.prepare(git.tools)
        wheel = build.wheel()
        if wheel != git.wheel:
            raise _error(
                "git-build-differs",
                f"{name} does not build to the wheel that was locked",
                where,
                f"{git.wheel.filename} with sha256 {git.wheel.sha256} is locked, "
                f"{wheel.filename} with {wheel.sha256} came out, with Python {RUNNING}",
                "its build follows something besides the tree (the machine, the Python): build on one like that which "
                "locked it, or give its wheel under `wheels`",
            )
    return len(wanted)


def _work(yard: Yard, name: str) -> Path:
    work = yard.fresh(f"git-{name}")
    # a wall: whoever looks above the tree for a repository must not find the site's
    (work / ".git").write_text("gitdir: /dev/null\n", encoding="ascii")
    return work


class _Build:
    """One source on its way to a wheel. `work` is a folder of its own."""

    def __init__(self, yard: Yard, name: str, source: Source, tree: Checkout, work: Path) -> None:
        self._yard, self._name, self._source, self._tree, self._work = yard, name, source, tree, work
        self._where = yard.spec.where("sources", name)
        self._project = tree.folder / source.subdirectory
        self._python = work / "venv" / "bin" / "python"
        if not any((self._project / file).is_file() for file in ("pyproject.toml", "setup.py")):
            raise _error(
                "git-no-project",
                f"there is no Python project in {source.subdirectory or 'the root'} of {source.git}",
                self._where,
                f"commit {(source.commit or '')[:12]} has neither pyproject.toml nor setup.py there",
                "give the `subdirectory` that has one",
            )
        try:
            self._system = pep517.system(self._project)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._failed(f"its pyproject.toml cannot be used: {error}") from error

    def requirements(self) -> list[str]:
        """What the project says that it is built with."""
        return list(self._system["requires"])

    def prepare(self, tools: Sequence[LockedWheel]) -> None:
        """Make the environment, of `tools` and nothing else."""
        mine = fitting(tools)
        if unfit := sorted({tool.project for tool in tools} - {tool.project for tool in mine}):
            raise _error(
                "git-tools-unfit",
                f"{self._name} is built with {unfit[0]}, which has no wheel for this Python",
                self._where,
                f"{', '.join(t.filename for t in tools if t.project == unfit[0])}; this is Python {RUNNING}",
                "run rackwell with another Python; or, if it is newer than the lock, run `rackwell build --relock`",
            )
        tools = mine
        folder = self._work / "tools"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fetch(tools, RUNNING, self._yard.blobs, folder, self._yard.progress)
        for tool in tools:
            os.link(self._yard.blobs.path(tool.sha256), folder / tool.filename)
        wanted = folder / "requirements.txt"
        wanted.write_text("".join(f"{t.project}=={t.version} --hash=sha256:{t.sha256}\n" for t in tools), "ascii")
        shutil.rmtree(self._work / "venv", ignore_errors=True)
        offline = ("--offline", "--no-config", "--quiet")
        self._uv("venv", *offline, "--no-project", "--python", _PYTHON, str(self._work / "venv"))
        if tools:
            exact = ("--no-deps", "--no-index", "--require-hashes", "--find-links", str(folder))
            self._uv("pip", "install", *offline, *exact, "--python", str(self._python), "--requirement", str(wanted))

    def further(self) -> list[str]:
        """What the backend asks for beyond `requirements`."""
        return [str(text) for text in self._ask("requires")]

    def wheel(self) -> LockedWheel:
        """Build, judge and keep the wheel."""
        self._yard.progress(
            f"  building {self._name}" + ("" if _cut_off() else " (this machine cannot cut its network off)")
        )
        built = self._work / "out" / str(self._ask("wheel"))
        try:
            with Wheel(built) as wheel:
                if any(tag.abi != "none" or tag.platform != "any" for tag in wheel.name.tags):
                    raise _error(
                        "git-build-not-pure",
                        f"{self._name} builds to {built.name}, which is for one platform",
                        self._where,
                        "what a compiler makes is not the same on every machine",
                        "build it where it is to run, and give it under `wheels`",
                    )
                project, version = wheel.metadata()
                self._judge(project, version)
                data = repacked(wheel)
                filename = built.name
        except (*MALFORMED, OSError) as error:
            raise self._failed(f"{built.name} is no wheel: {error}") from error
        digest = hashlib.sha256(data).hexdigest()
        if not self._yard.blobs.holds(digest):
            self._yard.blobs.add_bytes(data, digest)
        return LockedWheel(str(canonicalize_name(project)), str(Version(version)), filename, digest, len(data))

    def _judge(self, project: str, version: str) -> None:
        if canonicalize_name(project) != self._name:
            raise _error(
                "git-project-differs",
                f"the repository holds {project}, not {self._name}",
                self._where,
                f"its metadata says so, in {self._source.subdirectory or 'the root'}",
                f"name the source {canonicalize_name(project)}, or give another `subdirectory`",
            )
        declared = self._source.version
        if declared and Version(declared) != Version(version):
            raise _error(
                "git-version-differs",
                f"{self._name} calls itself {version}, the build says {declared}",
                self._where,
                f"commit {(self._source.commit or '')[:12]} states its version itself",
                f"write `version: {version}`, or leave it out",
            )

    def _ask(self, question: str) -> Any:
        out = self._work / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        command = [str(self._python), "-P", "-s", str(Path(pep517.__file__)), str(self._project), question, str(out)]
        done = bounded.run(
            [*_cut_off(), *command],
            BUILD_S,
            late=bounded.timed_out(
                f"{self._name} was not built in time",
                self._where,
                BUILD_S,
                "its build hangs, or waits for something",
                "build it where it is to run, and give it under `wheels`",
            ),
            cwd=self._project,
            env=self._environment(),
            on_line=_unheard,  # both streams in one, so that the last lines are the last
        )
        if done.returncode != 0:
            raise self._failed(_tail(done.stdout))
        try:
            return json.loads((out / "answer.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._failed(f"its backend gave no answer: {error}") from error

    def _environment(self) -> dict[str, str]:
        """Nothing of this machine but where its programs are."""
        home = self._work / "home"
        home.mkdir(exist_ok=True)
        version = self._source.version
        pretend = {}
        if version:
            pretend["SETUPTOOLS_SCM_PRETEND_VERSION"] = version
            # two tools that ask git themselves, and what they take instead
            pretend["PBR_VERSION"] = version
            pretend["POETRY_DYNAMIC_VERSIONING_BYPASS"] = version
        return {
            "PATH": f"{self._python.parent}:/usr/local/bin:/usr/bin:/bin",
            "VIRTUAL_ENV": str(self._work / "venv"),
            "HOME": str(home),
            "TMPDIR": str(home),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SOURCE_DATE_EPOCH": str(max(self._tree.time, 315_619_200)),  # a zip archive begins in 1980
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
            **pretend,
        }

    def _uv(self, *arguments: str) -> None:
        done = bounded.run(
            [sys.executable, "-m", "uv", *arguments],
            _SETUP_S,
            late=bounded.timed_out(
                f"the environment that {self._name} is built in was not made in time",
                self._where,
                _SETUP_S,
                "the disk is too slow or full",
                "see to the disk, then run again",
            ),
            cwd=self._work,
            env={**locks.uv_environment(), "UV_LINK_MODE": "copy"},
        )
        if done.returncode != 0:
            raise self._failed(f"its environment cannot be made: {_tail(done.stderr)}")

    def _failed(self, why: str) -> RackwellError:
        return _error(
            "git-build-failed",
            f"{self._name} at {(self._source.commit or '')[:12]} does not build",
            self._where,
            why,
            "give `version` if it asks git for that; else build it elsewhere, and give the wheel under `wheels`",
        )


_cut: list[tuple[str, ...]] = []


def _cut_off() -> tuple[str, ...]:
    """What a command begins with that must not reach the network; empty where the kernel does not let us."""
    if not _cut:
        command = ("unshare", "--user", "--map-current-user", "--net", "--")
        late = Problem("timed-out", "unshare hangs")
        try:
            works = bounded.run([*command, "true"], 10, late=late).returncode == 0
        except (OSError, RackwellError):
            works = False
        _cut.append(command if works else ())
    return _cut[0]


def fitting(tools: Sequence[LockedWheel]) -> list[LockedWheel]:
    """Those for this Python: of each project the best one."""
    projects: dict[str, list[LockedWheel]] = {}
    for tool in tools:
        projects.setdefault(tool.project, []).append(tool)
    chosen = {best([tool.filename for tool in some], RUNNING) for some in projects.values()}
    return [tool for tool in tools if tool.filename in chosen]


def network_is_cut() -> bool:
    """Whether builds of git sources have no network on this machine."""
    return bool(_cut_off())


def _unheard(line: str) -> None:
    del line


def _difference(tree: Checkout, git: LockedGit) -> str:
    if tree.tree != git.tree:
        return f"tree {git.tree} is locked, the commit has {tree.tree}"
    locked, found = set(git.submodules), set(tree.submodules)
    only = sorted(sub.path for sub in locked ^ found)
    return f"the submodules differ: {', '.join(dict.fromkeys(only))}"


def _tail(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", " ".join(lines[-12:]))[-1500:] or "it said nothing"


def _error(code: str, what: str, where: str, why: str, fix: str) -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), ExitCode.FAILED)
