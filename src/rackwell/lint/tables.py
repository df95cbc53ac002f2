# SPDX-License-Identifier: Apache-2.0
"""What one release of an engine takes: its options, its environment variables, what it requires.

Tables of the released versions ship in ``catalog/flags``. ``python -m rackwell.lint.tables --cache DIR`` makes them
again from the wheels of ``catalog/patches/wheels.yml``, which ``rackwell patches verify --all --cache DIR`` fetches.
For any other wheel a table is read on the spot, and kept by the wheel's hash.
"""

from __future__ import annotations

import argparse
import dataclasses
import email.parser
import gzip
import json
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rackwell.lint.environment import Variable, read_environment
from rackwell.lint.options import Option, read_options

SCHEMA = "rackwell.flags/1"
PROJECTS = ("sglang", "flashinfer-python")


@dataclasses.dataclass(frozen=True)
class Table:
    """What a wheel's source says.

    Attributes:
        wheel: its file name. sha256: its hash.
        requires: project -> specifier, of what it always requires. python: the Pythons that it runs on.
        unread: places of options that could not be read; with one of them no option can be called unknown.
    """

    project: str
    version: str
    wheel: str
    sha256: str
    options: tuple[Option, ...]
    environment: tuple[Variable, ...]
    requires: dict[str, str]
    python: str = ""
    unread: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Option]:
        """Option by each of its names, without dashes."""
        return {name.lstrip("-"): option for option in self.options for name in option.names}

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Environment variable by name."""
        return {variable.name: variable for variable in self.environment}

    def pinned(self, project: str) -> str:
        """The one version of `project` that it requires; empty when it requires none, or a range."""
        specifier = self.requires.get(project, "")
        return specifier.removeprefix("==") if specifier.startswith("==") and "," not in specifier else ""

    def as_bytes(self) -> bytes:
        """The table as it is kept: JSON, one line."""
        data = {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}}
        data["options"] = [_lean(option, Option(())) for option in self.options]
        data["environment"] = [_lean(variable, Variable("")) for variable in self.environment]
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Table:
        """Read what `as_bytes` wrote. Raises ValueError, KeyError or TypeError when it is something else."""
        given = json.loads(data)
        if given.pop("schema") != SCHEMA:
            raise ValueError(f"not {SCHEMA}")
        given["options"] = tuple(Option(**{**o, **_tuples(o)}) for o in given["options"])
        given["environment"] = tuple(Variable(**variable) for variable in given["environment"])
        given["unread"] = tuple(given["unread"])
        return cls(**given)


NO_TABLE = Table("", "0", "", "", (), (), {})
"""In the place of a table that there is not: it knows no options."""


def _lean(item: Any, default: Any) -> dict[str, Any]:
    return {
        field.name: getattr(item, field.name)
        for field in dataclasses.fields(item)
        if getattr(item, field.name) != getattr(default, field.name)
    }


def _tuples(option: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(option[key]) for key in ("names", "choices") if key in option}


def read_wheel(path: Path, project: str, version: str, filename: str, sha256: str) -> Table:
    """Read the table of a wheel.

    Raises:
        OSError, ValueError, LookupError, zipfile.BadZipFile: it cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())

        def read(name: str) -> bytes | None:
            return archive.read(name) if name in names else None

        command_line = read_options(read)
        sources = ((name, archive.read(name)) for name in sorted(names) if name.endswith(".py"))
        environment = read_environment(sources)
        metadata = next((name for name in sorted(names) if name.endswith(".dist-info/METADATA")), None)
        requires, python = _metadata(archive.read(metadata).decode() if metadata else "")
    return Table(
        project,
        version,
        filename,
        sha256,
        tuple(command_line.options),
        tuple(environment),
        requires,
        python,
        tuple(command_line.unread),
    )


def _metadata(text: str) -> tuple[dict[str, str], str]:
    headers = email.parser.HeaderParser().parsestr(text)
    requires: dict[str, str] = {}
    for value in headers.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(value)
        except InvalidRequirement:
            continue
        if requirement.marker is None:
            requires[canonicalize_name(requirement.name)] = str(requirement.specifier)
    return dict(sorted(requires.items())), str(headers.get("Requires-Python", ""))


class Tables:
    """The tables that ship with rackwell."""

    def __init__(self, catalog: Path) -> None:
        self._folder = catalog / "flags"
        self._known: dict[tuple[str, str], Table] = {}

    def versions(self, project: str) -> list[str]:
        """The versions of `project` that there is a table of, oldest first."""
        found = []
        for path in self._folder.glob(f"{project}-*.json.gz"):
            version = path.name[len(project) + 1 : -len(".json.gz")]
            try:
                found.append(Version(version))
            except InvalidVersion:
                continue
        return [str(version) for version in sorted(found)]

    def get(self, project: str, version: str) -> Table | None:
        """The table of `project` at `version`, None when none ships."""
        key = (project, version)
        if key not in self._known:
            path = self._folder / f"{project}-{version}.json.gz"
            if not path.is_file():
                return None
            self._known[key] = Table.from_bytes(gzip.decompress(path.read_bytes()))
        return self._known[key]

    def all(self, project: str) -> list[Table]:
        """All tables of `project`, oldest first."""
        return [table for version in self.versions(project) if (table := self.get(project, version)) is not None]


def main() -> None:
    """Make the shipped tables again."""
    from rackwell import shipped
    from rackwell.build.catalogue.wheels import known_wheels

    parser = argparse.ArgumentParser(prog="python -m rackwell.lint.tables", description=main.__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="what `rackwell patches verify --cache` has filled")
    parser.add_argument("--only", default="", help="PROJECT-VERSION")
    arguments = parser.parse_args()
    catalog = shipped.catalog()
    (catalog / "flags").mkdir(exist_ok=True)
    for project in PROJECTS:
        for version, wheel in known_wheels(catalog).wheels[project].items():
            if arguments.only not in {"", f"{project}-{version}"}:
                continue
            blob = arguments.cache / "blobs" / "sha256" / wheel.sha256
            table = read_wheel(blob, project, version, wheel.filename, wheel.sha256)
            packed = gzip.compress(table.as_bytes(), 9, mtime=0)
            path = catalog / "flags" / f"{project}-{version}.json.gz"
            path.write_bytes(packed)
            print(f"{path.name}: {len(table.options)} options, {len(table.environment)} variables, {len(packed)} bytes")


if __name__ == "__main__":
    main()
