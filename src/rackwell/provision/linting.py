# SPDX-License-Identifier: Apache-2.0
"""The lint of a site: each profile with each build that it runs on, once, however many containers have the two."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rackwell import shipped
from rackwell.build import BuildSpec
from rackwell.build import lock as locks
from rackwell.build.fetch import Blobs
from rackwell.build.series import Patch, find_patches
from rackwell.build.wheelfile import WheelName
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.lint import Context, Finding, Linter, ignore
from rackwell.lint.context import LEVELS
from rackwell.lint.facts import gpu_facts, model_facts
from rackwell.lint.tables import Table, read_wheel
from rackwell.provision import gpus
from rackwell.site import files
from rackwell.site.declaration import Site
from rackwell.site.node import Node
from rackwell.site.profile import Profile
from rackwell.site.yamlsource import Document

_SGLANG, _FLASHINFER = "sglang", "flashinfer-python"
_ADDED = re.compile(r"^\+.*?--([a-z0-9]+(?:-[a-z0-9]+)+)", re.MULTILINE)
_LEVEL_OF = {"nvlink": "NVL", "same-switch": "PXB", "same-root-complex": "PHB", "cross-socket": "SYS"}


@dataclasses.dataclass(frozen=True)
class _Build:
    """What a build tells the lint."""

    spec: BuildSpec
    table: Table | None
    flashinfer_table: Table | None
    versions: Mapping[str, str]
    packages: Mapping[str, str]
    added: frozenset[str]
    untabled: str


class Lint:
    """Lints containers of one site, and remembers what it has seen."""

    def __init__(self, site: Site, linter: Linter | None = None) -> None:
        self._site = site
        self._catalog = shipped.catalog()
        self._linter = linter or Linter(self._catalog)
        self._blobs = Blobs(site.state)
        self._builds: dict[Path, _Build] = {}
        self._units: dict[tuple[Any, ...], list[Finding]] = {}
        self._read: dict[Path, list[ignore.Ignore]] = {}
        self._models: dict[str, Mapping[str, Any]] = {}

    def server(
        self, container: Node, spec: BuildSpec, profile: Profile, document: Document, tokens: int | None
    ) -> None:
        """Lint the server of `container`.

        Args:
            tokens: input and output tokens of one request of its benchmark, when it has one.

        Raises:
            RackwellError: the profile names facts that there are none of (exit 2).
        """
        machine = {**self._machine(container), "bench_tokens": tokens}
        count = self._gpus(container)
        probe = container.value("gpu_probe_environment")
        probe = {str(key): str(value) for key, value in probe.items()} if isinstance(probe, dict) else {}
        key = (document.path, spec.path, count, tuple(machine.items()), tuple(sorted(probe.items())))
        if key in self._units:
            return
        self._units[key] = []  # facts that are missing are told once
        build = self._build(spec)
        where = _where(document, spec)
        context = Context(
            flags=profile.flags,
            environment={name: str(value) for name, value in profile.environment.items()},
            limits=profile.limits.model_dump(),
            server=profile.server.model_dump(),
            sane=profile.sane.model_dump(),
            model=self._model(profile, document),
            gpu={**self._gpu(profile, document), "count": count},
            machine=machine,
            probe_environment=probe,
            line=where,
            **_of(build),
        )
        self._units[key] = self._linter.lint(context)
        self._comments(document.path)
        self._comments(spec.path)

    def client(self, spec: BuildSpec) -> None:
        """Lint the build of a benchmark's client."""
        key = (spec.path, "bench-client")
        if key not in self._units:
            context = Context(role="bench-client", line=_where(None, spec), **_of(self._build(spec)))
            self._units[key] = self._linter.lint(context)
            self._comments(spec.path)

    def engine(self, spec: BuildSpec) -> tuple[str, locks.LockedWheel | None, Path | None]:
        """Version of SGLang in a build, the wheel that is locked, and where it lies when it is fetched."""
        version = self._build(spec).versions.get(_SGLANG, "")
        lock = self._lock(spec)
        wheels = [*lock.sources, *lock.dependencies, *(git.wheel for git in lock.git)] if lock is not None else []
        locked = next((wheel for wheel in wheels if wheel.project == _SGLANG), None)
        path = self._blobs.path(locked.sha256) if locked is not None else None
        return version, locked, path if path is not None and files.is_file(path) else None

    def findings(self, *, whole: bool) -> list[Finding]:
        """Everything found so far, each thing once, what is ignored with its reason.

        Args:
            whole: all containers of the site were linted, so that comments about nothing can be told.
        """
        found: dict[tuple[str, str, str], Finding] = {}
        for unit in self._units.values():
            for finding in unit:
                found.setdefault((finding.code, finding.where, finding.what), finding)
        comments = [comment for path in self._read for comment in self._read[path]]
        result = ignore.apply(found.values(), comments)
        rules = {rule.id: rule for rule in self._linter.rules}
        for code, what, comment in ignore.faults(comments, result, rules):
            if whole or code != "RW192":
                rule = rules[code]
                result.append(Finding(code, rule.severity, what, comment.where, rule.why, rule.fix, (comment.where,)))
        order = {"error": 0, "warning": 1, "note": 2}
        return sorted(result, key=lambda f: (order[f.severity], f.code, f.where))

    # ---- what the site tells ----------------------------------------------------------------------------------

    def _comments(self, path: Path) -> None:
        if path not in self._read:
            self._read[path] = ignore.read(path)

    def _gpus(self, container: Node) -> int | None:
        declared = container.value("pve_container_gpus")
        if isinstance(declared, list):
            return len(declared)
        host = self._site.hosts.get(self._site.host_of(container))
        count = host.value("pve_host_gpus") if host is not None else None
        return count if isinstance(count, int) else None

    def _machine(self, container: Node) -> dict[str, Any]:
        driver = re.match(r"\d+", container.text("nvidia_userspace_version") or "")
        return {
            "driver": int(driver[0]) if driver else None,
            "template": container.text("pve_container_template"),
            "p2p_level": _p2p_level(gpus.latest(self._site.state, container.name)),
        }

    def _model(self, profile: Profile, document: Document) -> Mapping[str, Any]:
        asked = profile.model.facts
        name = asked or PurePosixPath(profile.model.path).name
        if name not in self._models:
            self._models[name] = model_facts(self._catalog, [self._site.path], name)
        found = self._models[name]
        if asked and not found:
            raise _no_facts("model", asked, document.where(("model", "facts")), self._site.path)
        return found

    def _gpu(self, profile: Profile, document: Document) -> Mapping[str, Any]:
        found = gpu_facts(self._catalog, [self._site.path], profile.gpu or "")
        if profile.gpu and not found:
            raise _no_facts("GPU", profile.gpu, document.where(("gpu",)), self._site.path)
        return found

    # ---- what a build tells -----------------------------------------------------------------------------------

    def _build(self, spec: BuildSpec) -> _Build:
        if spec.path not in self._builds:
            self._builds[spec.path] = self._look(spec)
        return self._builds[spec.path]

    def _look(self, spec: BuildSpec) -> _Build:
        lock = self._lock(spec)
        packages = _packages(spec, lock)
        versions = {name: source.version for name, source in spec.sources.items() if source.version}
        if lock is not None:
            versions |= {git.wheel.project: git.wheel.version for git in lock.git}
        table, reason = self._table(spec, lock, _SGLANG, versions)
        if _FLASHINFER not in versions:
            # it is not patched, and comes with what SGLang asks for
            follows = table.pinned(_FLASHINFER) if table is not None and spec.dependencies == "full" else ""
            if version := packages.get(_FLASHINFER) or follows:
                versions[_FLASHINFER] = version
        flashinfer_table = self._table(spec, lock, _FLASHINFER, versions)[0]
        return _Build(spec, table, flashinfer_table, versions, packages, _added(spec, self._catalog), reason)

    def _lock(self, spec: BuildSpec) -> locks.Lock | None:
        """The lock that holds for the build as it is now."""
        # a build that ships with rackwell brings its lock, which its first `rackwell build` copies into the site
        for folder in dict.fromkeys((self._site.path / "builds", spec.path.parent)):
            with contextlib.suppress(RackwellError, OSError):
                lock = locks.read_lock(folder / f"{spec.name}.lock")
                if lock is not None and lock.inputs == locks.inputs_digest(spec, spec.python):
                    return lock
        return None

    def _table(
        self, spec: BuildSpec, lock: locks.Lock | None, project: str, versions: Mapping[str, str]
    ) -> tuple[Table | None, str]:
        """The table of `project`, or why there is none: the shipped one, else that of the locked wheel."""
        wheels = [*lock.sources, *lock.dependencies, *(git.wheel for git in lock.git)] if lock is not None else []
        locked = next((wheel for wheel in wheels if wheel.project == project), None)
        source = spec.sources.get(project)
        git = source is not None and source.git is not None
        version = versions.get(project) or (locked.version if locked is not None else "")
        shipped = None if git or not version else self._linter.tables.get(project, version)
        if shipped is not None:
            same = locked is None or locked.filename != shipped.wheel or locked.sha256 == shipped.sha256
            if same:
                return shipped, ""
        if source is None and locked is None:
            return None, f"the build has no {project} as a source"
        if locked is None:
            return None, f"no table of this {project} ships with rackwell, and the build is not locked yet"
        path = self._blobs.path(locked.sha256)
        if not files.is_file(path):
            return None, f"no table of this {project} ships with rackwell, and its wheel is not fetched yet"
        return self._extracted(path, locked)

    def _extracted(self, path: Path, locked: locks.LockedWheel) -> tuple[Table | None, str]:
        kept = self._site.state / "flags" / f"{locked.sha256}.json"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return Table.from_bytes(kept.read_bytes()), ""
        try:
            table = read_wheel(path, locked.project, locked.version, locked.filename, locked.sha256)
        except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
            return None, f"{locked.filename} cannot be read: {error}"
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            files.write(kept, table.as_bytes().decode())
        return table, ""


def errors(findings: Iterable[Finding]) -> list[Problem]:
    """What `check` and `provision` refuse."""
    return [finding.problem for finding in findings if finding.severity == "error" and not finding.ignored]


def _of(build: _Build) -> dict[str, Any]:
    return {
        "sglang": build.versions.get(_SGLANG),
        "flashinfer": build.versions.get(_FLASHINFER),
        "python": build.spec.python,
        "table": build.table,
        "flashinfer_table": build.flashinfer_table,
        "patches": frozenset(use.name for use in build.spec.patches),
        "added": build.added,
        "packages": build.packages,
        "dependencies": build.spec.dependencies,
        "untabled": build.untabled,
    }


def _where(document: Document | None, spec: BuildSpec) -> Callable[[tuple[str | int, ...]], str]:
    def where(pointer: tuple[str | int, ...]) -> str:
        if pointer[:1] == ("build",) or document is None:
            return spec.where(*pointer[1:])
        return document.where(pointer)

    return where


def _packages(spec: BuildSpec, lock: locks.Lock | None) -> dict[str, str]:
    """Version of each package that is known to be in the release, empty where only its name is."""
    found: dict[str, str] = {}
    for text in spec.requirements:
        requirement = Requirement(text)
        only = list(requirement.specifier)
        exact = only[0].version if len(only) == 1 and only[0].operator == "==" and "*" not in only[0].version else ""
        found[canonicalize_name(requirement.name)] = exact
    for wheel in spec.wheels:
        with contextlib.suppress(ValueError):
            name = WheelName.parse(PurePosixPath(wheel.path).name)
            found[name.project] = name.version
    if spec.cuda is not None:
        found["cuda"] = spec.cuda.version
    if lock is not None:
        found |= {wheel.project: wheel.version for wheel in (*lock.dependencies, *lock.sources)}
    return found


def _added(spec: BuildSpec, catalog: Path) -> frozenset[str]:
    """Options that the build's patches add to SGLang."""
    patches: list[Patch] = []
    with contextlib.suppress(RackwellError):
        patches = find_patches(spec, catalog)
    texts = []
    for patch in patches:
        with contextlib.suppress(OSError):
            texts.append(patch.diff.read_text(encoding="utf-8", errors="replace"))
    return frozenset(name for text in texts for name in _ADDED.findall(text))


def _p2p_level(path: Path) -> str | None:
    """The farthest NCCL level between two GPUs of the newest report; None when there is none, or it does not say."""
    try:
        classes = json.loads(path.read_bytes())["topology"]["classes"]
        levels = [_LEVEL_OF[name] for row in classes for name in row if name is not None]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return max(levels, key=LEVELS.index, default=None)


def _no_facts(what: str, name: str, where: str, site: Path) -> RackwellError:
    folder = site / ("models" if what == "model" else "gpus")
    fix = f"write {folder / f'{name}.yml'}, or correct the name"
    return RackwellError(
        Problem("unknown-facts", f"nothing is known of the {what} '{name}'", where, "", fix), ExitCode.INVALID
    )
