# SPDX-License-Identifier: Apache-2.0
"""Which HTTP routes an SGLang release answers, read from its wheel as syntax trees; nothing of it is imported or run.

Inventories of the oldest and the newest release that rackwell knows ship in ``catalog/routes``;
``python -m rackwell.build.routes WHEEL...`` makes them again from the wheels themselves. Role api_proxy lets a few of
these routes through to the engine: what it lets through must be there, and what a new release brings must be told.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from rackwell.build.wheelfile import WheelName

SCHEMA = "rackwell.routes/1"
PROJECT = "sglang"
ENGINE = "sglang.srt.entrypoints.http_server"
"""The module whose application serves a model; the wheel holds other servers too, on other ports."""
_ROOT = "sglang/srt/"
ANY = "ANY"
"""In the place of a method: what is mounted decides by itself."""
WEBSOCKET = "WEBSOCKET"

_VERBS = {"get", "post", "put", "delete", "patch", "head", "options", "trace"}
_MAKERS = {"FastAPI", "APIRouter", "Starlette", "Router", "Application"}
# what FastAPI answers by itself unless it is told not to
_OWN = {
    "openapi_url": ("/openapi.json",),
    "docs_url": ("/docs",),
    "redoc_url": ("/redoc",),
    "swagger_ui_oauth2_redirect_url": ("/docs/oauth2-redirect",),
}


@dataclasses.dataclass(frozen=True, order=True)
class Route:
    """One path of a server.

    Attributes:
        path: as the source has it, parameters in braces.
        methods: in alphabetical order; `ANY` for what is mounted, `WEBSOCKET` for a web socket.
        server: module that the server is made in.
        admin: the level of administration that it asks for by the source, such as ``ADMIN_OPTIONAL``; empty for none.
        variable: environment variable that puts another path in its place; empty for none.
    """

    path: str
    methods: tuple[str, ...]
    server: str = ENGINE
    admin: str = ""
    variable: str = ""


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The routes of a release.

    Attributes:
        wheel: its file name. sha256: its hash.
        routes: of the engine first, then of the other servers in the wheel.
        unread: places of routes whose path could not be told.
    """

    version: str
    wheel: str
    sha256: str
    routes: tuple[Route, ...]
    unread: tuple[str, ...] = ()

    @property
    def engine(self) -> tuple[Route, ...]:
        """The routes of the server that serves a model."""
        return tuple(route for route in self.routes if route.server == ENGINE)

    def answers(self, path: str, method: str) -> bool:
        """Whether the engine has this very path, and the method on it."""
        return any(route.path == path and {method, ANY} & set(route.methods) for route in self.engine)

    def methods(self, path: str) -> tuple[str, ...]:
        """The methods of the engine on this very path."""
        return tuple(sorted({method for route in self.engine if route.path == path for method in route.methods}))

    def admin(self, path: str) -> str:
        """The level of administration that the path asks for; empty for none."""
        return next((route.admin for route in self.engine if route.path == path and route.admin), "")

    def beyond(self, other: Inventory) -> list[Route]:
        """Routes of the engine with a path or a method that `other` does not have."""
        return [
            route for route in self.engine if not all(other.answers(route.path, method) for method in route.methods)
        ]

    def as_text(self) -> str:
        """It as it is kept: JSON, a route a line, so that two releases can be compared by eye."""
        head = {"schema": SCHEMA, "project": PROJECT, "version": self.version, "wheel": self.wheel}
        lines = [f'  "{key}": {json.dumps(value)},' for key, value in {**head, "sha256": self.sha256}.items()]
        rows = ",\n".join(f"    {json.dumps(_lean(route))}" for route in self.routes)
        return "\n".join(["{", *lines, f'  "unread": {json.dumps(self.unread)},', f'  "routes": [\n{rows}\n  ]', "}\n"])

    @classmethod
    def from_text(cls, text: str) -> Inventory:
        """Read what `as_text` wrote. Raises ValueError, KeyError or TypeError when it is something else."""
        given = json.loads(text)
        if given["schema"] != SCHEMA:
            raise ValueError(f"not {SCHEMA}")
        routes = tuple(Route(**{**row, "methods": tuple(row["methods"])}) for row in given["routes"])
        return cls(given["version"], given["wheel"], given["sha256"], routes, tuple(given["unread"]))


def _lean(route: Route) -> dict[str, Any]:
    given = {field.name: getattr(route, field.name) for field in dataclasses.fields(route)}
    return {key: value for key, value in given.items() if value and not (key == "server" and value == ENGINE)}


def read_wheel(path: Path) -> Inventory:
    """The inventory of a wheel.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: it cannot be read, or is no wheel of SGLang.
    """
    name = WheelName.parse(path.name)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return read_archive(path, name.version, path.name, digest)


def read_archive(path: Path, version: str, filename: str, sha256: str) -> Inventory:
    """The inventory of a wheel whose file is named otherwise. Raises as `read_wheel`."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith(_ROOT) and name.endswith(".py")]
        routes, unread = read_sources((name, archive.read(name)) for name in sorted(names))
    if not any(route.server == ENGINE for route in routes):
        raise ValueError(f"{filename} has no module {ENGINE} with routes")
    return Inventory(version, filename, sha256, tuple(routes), tuple(unread))


def read_sources(sources: Iterable[tuple[str, bytes]]) -> tuple[list[Route], list[str]]:
    """The routes in `sources` (path, content), and the places of those that could not be told."""
    modules: dict[str, _Module] = {}
    for path, source in sources:
        if not any(word in source for word in (b"FastAPI", b"APIRouter", b"aiohttp", b"Mount(", b"Starlette")):
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        parts = path.removesuffix(".py").split("/")
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        modules[name] = _Module(name, tree, package, path)
    found: list[Route] = []
    unread: list[str] = []
    for module in modules.values():
        for owner in module.servers():
            routes, missed = _Server(modules, module).of(owner, "", module.name, frozenset())
            found += routes
            unread += missed
        found += _handed(modules, module)
    ordered = sorted(set(_merged(found)), key=lambda route: (route.server != ENGINE, route.server, route))
    return ordered, sorted(set(unread))


def _handed(modules: Mapping[str, _Module], module: _Module) -> Iterator[Route]:
    """Routes that are declared on an application which a function is handed: they count for the module itself."""
    for one in module.found:
        if one.path and _resolve(modules, module, one.owner) is None:
            yield Route(one.path, one.methods, module.name, one.admin, one.variable)


def _resolve(modules: Mapping[str, _Module], module: _Module, text: str) -> tuple[_Module, str] | None:
    """The module, and the name in it, that an application's or a router's expression stands for."""
    if text in module.made:
        return module, text
    head, _, rest = text.partition(".")
    if head not in module.imports:
        return None
    origin, name = module.imports[head]
    # `from package import module`, then `module.router`
    for target, inner in ((origin, name), (f"{origin}.{name}", rest)):
        there = modules.get(target)
        if there is not None and inner in there.made:
            return there, inner
    return None


def _merged(routes: Iterable[Route]) -> Iterator[Route]:
    """One route for each path, whatever its methods are declared in."""
    by_path: dict[tuple[str, str, str], Route] = {}
    for route in routes:
        key = (route.server, route.path, route.variable)
        before = by_path.get(key, route)
        methods = tuple(sorted({*before.methods, *route.methods}))
        by_path[key] = dataclasses.replace(route, methods=methods, admin=before.admin or route.admin)
    yield from by_path.values()


@dataclasses.dataclass(frozen=True)
class _Found:
    """A declaration as it stands in a module: `owner` is the source text of what it is declared on."""

    owner: str
    path: str
    methods: tuple[str, ...]
    admin: str = ""
    variable: str = ""


class _Module:
    """What one module declares."""

    def __init__(self, name: str, tree: ast.Module, package: bool, path: str) -> None:
        self.name = name
        self.path = path
        self.values: dict[str, ast.expr] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.made: dict[str, ast.Call] = {}
        self.found: list[_Found] = []
        self.included: list[tuple[str, ast.Call]] = []
        self.unread: list[str] = []
        self.mounts: list[tuple[str, _Found]] = []
        """Mounts made in a function that is handed the application: name of the function, and what it mounts."""
        self._package = package
        for node in ast.walk(tree):
            self._bind(node)
        self._walk(tree, "")

    def servers(self) -> list[str]:
        """What is made here and is no part of another: the applications."""
        return [owner for owner, call in self.made.items() if _called(call) not in {"APIRouter", "Router"}]

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                base = self.name.split(".")[: len(self.name.split(".")) - node.level + self._package]
                origin = ".".join([*base, *([origin] if origin else [])])
            for alias in node.names:
                self.imports[alias.asname or alias.name] = (origin, alias.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    self.values[target.id] = node.value
                if isinstance(node.value, ast.Call) and _called(node.value) in _MAKERS:
                    self.made[ast.unparse(target)] = node.value

    def _walk(self, node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside = child.name
                self._decorated(child)
            elif isinstance(child, ast.Call):
                self._call(child, function)
            self._walk(child, inside)

    def _decorated(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        calls = [decorator for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
        admin = ""
        for call in calls:
            if _called(call) == "auth_level" and call.args:
                level = ast.unparse(call.args[0]).rpartition(".")[2]
                admin = "" if level == "NORMAL" else level
        for call in calls:
            if isinstance(call.func, ast.Attribute):
                self._declared(call, call.func, admin)

    def _declared(self, call: ast.Call, function: ast.Attribute, admin: str) -> None:
        """``@owner.get(path)``, ``@owner.api_route(path, methods=...)``, ``@owner.websocket(path)``."""
        verb, owner = function.attr, ast.unparse(function.value)
        if verb in _VERBS:
            methods: tuple[str, ...] = (verb.upper(),)
        elif verb in {"api_route", "route"}:
            methods = self._methods(call)
        elif verb in {"websocket", "websocket_route"}:
            methods = (WEBSOCKET,)
        else:
            return
        self._add(owner, call, methods, admin)

    def _call(self, call: ast.Call, function: str) -> None:
        """The same as calls, and what is included and mounted."""
        name = _called(call)
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name == "include_router" and call.args:
            self.included.append((owner, call))
        elif name == "add_api_route" or (name == "add_route" and len(call.args) + len(call.keywords) < 3):
            self._add(owner, call, self._methods(call))
        elif name in {"add_websocket_route", "add_api_websocket_route"}:
            self._add(owner, call, (WEBSOCKET,))
        elif name == "add_route":  # aiohttp: the method comes first
            self._aiohttp(owner, call)
        elif name.startswith("add_") and name[4:] in _VERBS and owner.endswith(".router"):
            self._add(owner.removesuffix(".router"), call, (name[4:].upper(),))
        elif name == "mount" and owner in self.made:
            self._add(owner, call, (ANY,))
        elif name in _VERBS and owner in self.made and isinstance(call.func, ast.Attribute):
            # as a call, `app.get(path)(handler)`; decorators come past here too, and are the same route
            self._declared(call, call.func, "")
        elif name == "Mount" and call.args:
            path, variable = self._path(call.args[0])
            if path is not None:
                self.mounts.append((function, _Found("", path, (ANY,), "", variable)))

    def _aiohttp(self, owner: str, call: ast.Call) -> None:
        first = call.args[0] if call.args else None
        method = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        if method and not method.startswith("/"):
            rest = ast.Call(call.func, call.args[1:], call.keywords)
            rest.lineno = call.lineno
            self._add(owner.removesuffix(".router"), rest, (ANY if method == "*" else method.upper(),))
        else:
            self._add(owner, call, self._methods(call))

    def _add(self, owner: str, call: ast.Call, methods: tuple[str, ...], admin: str = "") -> None:
        given = next((k.value for k in call.keywords if k.arg == "path"), call.args[0] if call.args else None)
        path, variable = self._path(given)
        if path is None:
            # `.get(...)` is also what dictionaries have
            if owner in self.made:
                self.unread.append(f"{self.path}:{call.lineno}")
        else:
            self.found.append(_Found(owner, path, methods, admin, variable))

    @staticmethod
    def _methods(call: ast.Call) -> tuple[str, ...]:
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "methods"), None)
        if isinstance(given, (ast.List, ast.Tuple, ast.Set)):
            return tuple(sorted(str(e.value).upper() for e in given.elts if isinstance(e, ast.Constant)))
        return ("GET",) if given is None else (ANY,)

    def _path(self, node: ast.expr | None, depth: int = 0) -> tuple[str | None, str]:
        """A path, and the environment variable that replaces it; None where it cannot be told."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return (node.value, "") if node.value == "" or node.value.startswith("/") else (None, "")
        if isinstance(node, ast.Name) and node.id in self.values and depth < 4:
            return self._path(self.values[node.id], depth + 1)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"os.environ.get", "os.getenv", "getenv"}:
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if names and isinstance(names[0], str):
                default = names[1] if len(names) > 1 and isinstance(names[1], str) else f"${{{names[0]}}}"
                return default, names[0]
        return None, ""


class _Server:
    """Follows an application to all that it includes."""

    def __init__(self, modules: Mapping[str, _Module], home: _Module) -> None:
        self._modules, self._home = modules, home

    def of(
        self, owner: str, prefix: str, server: str, seen: frozenset[tuple[str, str]], module: _Module | None = None
    ) -> tuple[list[Route], list[str]]:
        """The routes of `owner` in `module`, and what of it could not be read."""
        module = module or self._home
        if (module.name, owner) in seen:
            return [], []
        seen |= {(module.name, owner)}
        made = module.made.get(owner)
        prefix += _text(made, "prefix")
        unread = list(module.unread)
        routes = [
            Route(f"{prefix}{one.path}" or "/", one.methods, server, one.admin, one.variable)
            for there in self._modules.values()
            for one in there.found
            if one.owner.rpartition(".")[2] == owner.rpartition(".")[2]
            and _resolve(self._modules, there, one.owner) == (module, owner)
        ]
        if made is not None and _called(made) == "FastAPI":
            routes += _own(made, server)
        if made is not None and _called(made) in {"FastAPI", "Starlette"}:
            routes += self._mounted(module, server)
        for at, call in module.included:
            if at != owner:
                continue
            found = _resolve(self._modules, module, ast.unparse(call.args[0]))
            if found is None:
                unread.append(f"{module.path}:{call.lineno}")
                continue
            inner, missed = self.of(found[1], prefix + _text(call, "prefix"), server, seen, found[0])
            routes += inner
            unread += missed
        return routes, unread

    def _mounted(self, module: _Module, server: str) -> Iterator[Route]:
        """What helpers mount that this module calls, or has itself."""
        for name, helper in self._modules.items():
            for function, mount in helper.mounts:
                origin = module.imports.get(function, ("", ""))
                # a name may be handed on by a package's __init__
                if name == module.name or (origin[1] == function and name.startswith(origin[0])):
                    yield Route(mount.path, mount.methods, server, "", mount.variable)


def _own(made: ast.Call, server: str) -> Iterator[Route]:
    """The pages of FastAPI; without a schema there is none of them."""
    given = {keyword.arg: keyword.value for keyword in made.keywords}

    def off(name: str) -> bool:
        value = given.get(name)
        return isinstance(value, ast.Constant) and value.value is None

    if off("openapi_url"):
        return
    for name, paths in _OWN.items():
        if not off(name):
            yield from (Route(path, ("GET", "HEAD"), server) for path in paths)


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _text(call: ast.Call | None, name: str) -> str:
    """A keyword's plain text; empty when there is none."""
    for keyword in call.keywords if call is not None else []:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""


class Inventories:
    """The inventories that ship with rackwell."""

    def __init__(self, catalog: Path) -> None:
        self._folder = catalog / "routes"

    def versions(self) -> list[str]:
        """The versions that there is an inventory of, oldest first."""
        found = []
        for path in self._folder.glob(f"{PROJECT}-*.json"):
            try:
                found.append(Version(path.stem.removeprefix(f"{PROJECT}-")))
            except InvalidVersion:
                continue
        return [str(version) for version in sorted(found)]

    def get(self, version: str) -> Inventory | None:
        """That of `version`, None when none ships."""
        path = self._folder / f"{PROJECT}-{version}.json"
        return Inventory.from_text(path.read_text(encoding="utf-8")) if path.is_file() else None

    def all(self) -> list[Inventory]:
        """All of them, oldest first."""
        return [found for version in self.versions() if (found := self.get(version)) is not None]


def main() -> None:
    """Make shipped inventories again."""
    from rackwell import shipped

    parser = argparse.ArgumentParser(prog="python -m rackwell.build.routes", description=main.__doc__)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="pip download --no-deps sglang==VERSION")
    parser.add_argument("--to", type=Path, default=shipped.catalog() / "routes", help="instead of the catalogue")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for path in arguments.wheels:
        inventory = read_wheel(path)
        target = arguments.to / f"{PROJECT}-{inventory.version}.json"
        target.write_text(inventory.as_text(), encoding="utf-8")
        print(f"{target.name}: {len(inventory.engine)} routes of the engine, {len(inventory.routes)} in all")


if __name__ == "__main__":
    main()
