# SPDX-License-Identifier: Apache-2.0
"""The lock of a build: exactly which wheels, by hash, for one Python on one platform.

It stands beside the build file, belongs under version control, names no index, and is a requirements file that pip and
uv can read::

    # rackwell-lock/1 inputs-sha256:<64 hex>
    numpy==2.3.5 --hash=sha256:<64 hex>  # numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl 16900000 bytes

Wheels that are built here from a git commit are no index's, so they stand in comments: what they are built from, what
with, and what must come out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import tomllib
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from rackwell import bounded
from rackwell.build import compiler
from rackwell.build.files import write_atomically
from rackwell.build.model import BuildSpec, Source
from rackwell.build.wheelfile import UV_PLATFORM, best, marker_environment
from rackwell.errors import ExitCode, Problem, RackwellError

#: Seconds for uv, and for pip, which may bring some 10 GB.
DEADLINE_S = 3600
_TOOLS_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_HEADER = re.compile(r"^# rackwell-lock/1 inputs-sha256:([0-9a-f]{64})$")
_LINE = re.compile(
    r"^(?P<project>[a-z0-9-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})  "
    r"# (?P<filename>[^\s/]+\.whl) (?P<size>\d+) bytes$"
)
_GIT = re.compile(
    r"^# git (?P<project>[a-z0-9-]+)==(?P<version>\S+) commit:(?P<commit>[0-9a-f]{40}) tree:(?P<tree>[0-9a-f]{40}) "
    r"sha256:(?P<sha256>[0-9a-f]{64})  (?P<filename>[^\s/]+\.whl) (?P<size>\d+) bytes$"
)
_SUBMODULE = re.compile(r"^#   submodule commit:(?P<commit>[0-9a-f]{40}) tree:(?P<tree>[0-9a-f]{40})  (?P<path>.+)$")
_WITH = "#   with "
_INSTALLER = "# the installer: travels with the release, is no part of its environment"
_SOURCES = "# the sources"
_GIT_SOURCES = "# the git sources: built here, with the wheels below each, from exactly these trees"
_DEPENDENCIES = "# what they need"


@dataclasses.dataclass(frozen=True, order=True)
class LockedWheel:
    """One wheel of a lock. `size` is 0 where the index does not tell."""

    project: str
    version: str
    filename: str
    sha256: str
    size: int


@dataclasses.dataclass(frozen=True, order=True)
class LockedSubmodule:
    """A submodule of a git source: its place in the tree, its commit, and that one's tree."""

    path: str
    commit: str
    tree: str


@dataclasses.dataclass(frozen=True, order=True)
class LockedGit:
    """A git source.

    Attributes:
        wheel: what the build must give, byte for byte.
        commit, tree, submodules: what it is built from.
        tools: the wheels that it is built with; several of one project where each is for another Python.
    """

    wheel: LockedWheel
    commit: str
    tree: str
    submodules: tuple[LockedSubmodule, ...]
    tools: tuple[LockedWheel, ...]


@dataclasses.dataclass(frozen=True)
class Lock:
    """`installer` is uv, `sources` the projects that may be patched, `dependencies` the rest."""

    inputs: str
    installer: LockedWheel
    sources: tuple[LockedWheel, ...]
    dependencies: tuple[LockedWheel, ...]
    git: tuple[LockedGit, ...] = ()

    @property
    def wheels(self) -> tuple[LockedWheel, ...]:
        """All that an index has."""
        return (self.installer, *self.sources, *self.dependencies)

    def text(self) -> str:
        """The lock as its file has it."""

        def lines(wheels: Sequence[LockedWheel]) -> list[str]:
            return [_line(wheel) for wheel in sorted(wheels)]

        parts = [
            f"# rackwell-lock/1 inputs-sha256:{self.inputs}",
            "# Written by `rackwell build`. To resolve again: `rackwell build --relock`.",
            _INSTALLER,
            *lines([self.installer]),
            _SOURCES,
            *lines(self.sources),
            *([_GIT_SOURCES] if self.git else []),
            *(line for git in sorted(self.git) for line in _git_lines(git)),
            _DEPENDENCIES,
            *lines(self.dependencies),
        ]
        return "\n".join(parts) + "\n"


def _line(wheel: LockedWheel) -> str:
    return f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}  # {wheel.filename} {wheel.size} bytes"


def _git_lines(git: LockedGit) -> list[str]:
    wheel = git.wheel
    ids = f"commit:{git.commit} tree:{git.tree} sha256:{wheel.sha256}"
    return [
        f"# git {wheel.project}=={wheel.version} {ids}  {wheel.filename} {wheel.size} bytes",
        *(f"#   submodule commit:{sub.commit} tree:{sub.tree}  {sub.path}" for sub in sorted(git.submodules)),
        *(f"{_WITH}{_line(tool)}" for tool in sorted(git.tools)),
    ]


def inputs_digest(spec: BuildSpec, python: str) -> str:
    """Digest of everything in the build that the choice of wheels follows from."""
    inputs = {
        "python": python,
        "platform": UV_PLATFORM,
        "sources": {name: _declared(source) for name, source in spec.sources.items()},
        "dependencies": spec.dependencies,
        "requirements": sorted(compiler.requirements(spec)),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _declared(source: Source) -> str | dict[str, Any]:
    if source.git is None:
        return source.version
    keys = ("git", "commit", "tag", "subdirectory", "submodules", "version")
    return {key: getattr(source, key) for key in keys}


def read_lock(path: Path) -> Lock | None:
    """The lock in `path`, or None when there is none.

    Raises:
        RackwellError: the file is not as `Lock.text` writes it (exit 2).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise _damaged(path, 1, "it is not text") from None
    lines = text.splitlines()
    header = _HEADER.match(lines[0]) if lines else None
    if header is None:
        raise _damaged(path, 1, "the first line does not name the digest of the inputs")
    sections: dict[str, list[LockedWheel]] = {_INSTALLER: [], _SOURCES: [], _DEPENDENCIES: []}
    section: list[LockedWheel] | None = None
    git: list[LockedGit] = []
    for number, line in enumerate(lines[1:], start=2):
        if line in sections:
            section = sections[line]
        elif line.startswith(("# git ", "#   ")):
            if not _take_git(line, git):
                raise _damaged(path, number, f"'{line[:80]}' is no part of a locked git source")
        elif line.startswith("#") or not line.strip():
            continue
        else:
            match = _LINE.match(line)
            if match is None or section is None:
                raise _damaged(path, number, f"'{line[:80]}' is not a locked wheel")
            section.append(_wheel(match))
    if len(sections[_INSTALLER]) != 1:
        raise _damaged(path, 1, f"it names {len(sections[_INSTALLER])} installers instead of one")
    return Lock(
        header[1], sections[_INSTALLER][0], tuple(sections[_SOURCES]), tuple(sections[_DEPENDENCIES]), tuple(git)
    )


def _wheel(match: re.Match[str]) -> LockedWheel:
    return LockedWheel(match["project"], match["version"], match["filename"], match["sha256"], int(match["size"]))


def _take_git(line: str, git: list[LockedGit]) -> bool:
    """Add what a line says of a git source: a new one, or a part of the last. False when it says neither."""
    if match := _GIT.match(line):
        git.append(LockedGit(_wheel(match), match["commit"], match["tree"], (), ()))
        return True
    if not git:
        return False
    last = git[-1]
    if match := _SUBMODULE.match(line):
        found = LockedSubmodule(match["path"], match["commit"], match["tree"])
        git[-1] = dataclasses.replace(last, submodules=(*last.submodules, found))
    elif line.startswith(_WITH) and (match := _LINE.match(line.removeprefix(_WITH))):
        git[-1] = dataclasses.replace(last, tools=(*last.tools, _wheel(match)))
    else:
        return False
    return True


def write_lock(path: Path, lock: Lock) -> None:
    """Put the lock into its file, whole or not at all."""
    write_atomically(path, lock.text().encode())


def resolve(spec: BuildSpec, python: str, git: Mapping[Path, LockedGit] | None = None) -> Lock:
    """Resolve the build's inputs against the package index that this machine is set up for.

    Args:
        git: the wheels of the git sources, as files of their own names.

    Raises:
        RackwellError: no set of wheels satisfies the build, or the index cannot be asked.
    """
    built = git or {}
    released = {name: source for name, source in spec.sources.items() if source.git is None}
    pins = [f"{name}=={source.version}" for name, source in sorted(released.items())]
    installer = f"uv=={importlib.metadata.version('uv')}"
    if spec.dependencies == "full":
        alone = [installer]
        followed = [
            *pins,
            *(f"{git.wheel.project} @ {path.as_uri()}" for path, git in built.items()),
            *compiler.requirements(spec),
        ]
    else:
        alone = [installer, *pins]
        followed = compiler.requirements(spec)
    taken = {w.project: w for w in _compile(spec, alone, python, follow=False)}
    rest = {w.project: w for w in _compile(spec, followed, python, follow=True)} if followed else {}
    uv = taken.pop("uv")
    if spec.dependencies == "full":
        taken = {name: rest.pop(name) for name in released}
    if both := sorted((taken.keys() | {git.wheel.project for git in built.values()}) & rest.keys()):
        raise RackwellError(
            Problem(
                "source-also-required",
                f"{both[0]} is a source, and the requirements ask for it too",
                spec.where("requirements"),
                "one of the requirements depends on it",
                "remove that requirement, or set `dependencies: full`",
            ),
            ExitCode.INVALID,
        )
    return Lock(
        inputs_digest(spec, python),
        uv,
        tuple(sorted(taken.values())),
        tuple(sorted(rest.values())),
        tuple(sorted(built.values())),
    )


def resolve_tools(spec: BuildSpec, requirements: Sequence[str], name: str) -> tuple[LockedWheel, ...]:
    """The wheels that the git source `name` is built with.

    A project that has no wheel for every Python has one for each here, so that one lock serves several machines.

    Raises:
        RackwellError: no set of wheels satisfies `requirements`.
    """
    if not requirements:
        return ()
    # the versions of the oldest Python that rackwell runs on are everyone's
    packages = _packages(spec, requirements, _TOOLS_PYTHONS[0], follow=True, tools_of=name)
    found = {_chosen(spec, package, python) for package in packages for python in _fitted(package)}
    return tuple(sorted(found))


def _fitted(package: dict[str, Any]) -> list[str]:
    """The Pythons that need a package of tools, without those that it has no wheel for while it has for others."""
    marker = package.get("marker")
    needed = [
        python
        for python in _TOOLS_PYTHONS
        if not marker or Marker(str(marker)).evaluate(dict(marker_environment(python)))
    ]
    names = [wheel_filename(wheel) for wheel in package.get("wheels", [])]
    return [python for python in needed if best(names, python)] or needed[:1]


def late(what: str, where: str) -> Problem:
    """The problem of uv or pip that did not end in `DEADLINE_S`."""
    return bounded.timed_out(
        what,
        where,
        DEADLINE_S,
        "the network or the package index is too slow or does not answer",
        "see to the network (is the index that pip is set up for reachable?), then run again",
    )


def uv_command(inputs: Path, python: str, *, follow: bool, universal: bool = False) -> list[str]:
    """The command that resolves the requirements in the file `inputs`; it writes pylock.toml to its output.

    `universal`: for `python` and every newer one, with markers.
    """
    return [
        sys.executable,
        *("-m", "uv", "pip", "compile", str(inputs)),
        # this form tells sizes and file names, too
        *("--format", "pylock.toml", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"),
        *("--python-version", python, "--only-binary", ":all:"),
        *(["--universal"] if universal else ["--python-platform", UV_PLATFORM]),
        *("--python", sys.executable, "--no-python-downloads"),
        *([] if follow else ["--no-deps"]),
    ]


def uv_environment() -> dict[str, str]:
    """This process's environment, in which uv trusts the certificates that the machine trusts."""
    return {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _compile(spec: BuildSpec, requirements: Sequence[str], python: str, *, follow: bool) -> list[LockedWheel]:
    packages = _packages(spec, requirements, python, follow=follow)
    # a wheel of this machine's comes back as an archive: it is a git source, and locked as one
    return [_chosen(spec, package, python) for package in packages if "archive" not in package]


def _packages(
    spec: BuildSpec, requirements: Sequence[str], python: str, *, follow: bool, tools_of: str = ""
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="rackwell-lock-") as folder:
        inputs = Path(folder) / "requirements.in"
        inputs.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        done = bounded.run(
            uv_command(inputs, python, follow=follow, universal=bool(tools_of)),
            DEADLINE_S,
            late=late("uv did not find a set of wheels in time", str(spec.path)),
            cwd=folder,  # not where a project's settings would be picked up
            env=uv_environment(),
        )
    if done.returncode != 0:
        what = f"what {tools_of} needs to be built" if tools_of else f"build {spec.name}"
        where = ("sources", tools_of) if tools_of else ("requirements" if follow and spec.requirements else "sources",)
        raise RackwellError(
            Problem(
                "resolve-failed",
                f"no set of wheels for Python {python} satisfies {what}",
                spec.where(*where),
                _said(done.stderr),
                "change the versions asked for; or, if the index did not answer, make it reachable and run again",
            ),
            ExitCode.FAILED,
        )
    packages: list[dict[str, Any]] = tomllib.loads(done.stdout).get("packages", [])
    return packages


def _chosen(spec: BuildSpec, package: dict[str, Any], python: str) -> LockedWheel:
    wheels = {wheel_filename(wheel): wheel for wheel in package.get("wheels", [])}
    filename = best(list(wheels), python)
    project, version = canonicalize_name(package["name"]), str(package.get("version", ""))
    if filename is None:
        raise RackwellError(
            Problem(
                "no-wheel",
                f"{project} {version} has no wheel for Python {python} on {UV_PLATFORM}",
                str(spec.path),
                "releases are made from wheels alone",
                "ask for another version, or build a wheel and name it under `wheels`",
            ),
            ExitCode.FAILED,
        )
    wheel = wheels[filename]
    sha256 = wheel.get("hashes", {}).get("sha256")
    if not sha256:
        raise RackwellError(
            Problem("no-hash", f"the index tells no sha256 of {filename}", str(spec.path), "", "use an index that does")
        )
    return LockedWheel(project, version, filename, sha256, int(wheel.get("size", 0)))


def wheel_filename(wheel: dict[str, Any]) -> str:
    """The file name of a wheel that uv tells of."""
    place = str(wheel.get("name") or wheel.get("url") or wheel.get("path"))
    return urllib.parse.unquote(urllib.parse.urlsplit(place).path.rsplit("/", 1)[-1])


def _said(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("warning:")]
    text = " ".join(lines)
    return text if len(text) <= 1500 else text[:1500] + " …"


def _damaged(path: Path, line: int, why: str) -> RackwellError:
    return RackwellError(
        Problem(
            "lock-damaged",
            f"{path.name} is not a lock that rackwell wrote",
            f"{path}:{line}",
            why,
            "restore the file, or delete it and run `rackwell build` to resolve again",
        ),
        ExitCode.INVALID,
    )
