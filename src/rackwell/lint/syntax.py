# SPDX-License-Identifier: Apache-2.0
"""Just enough of Python to tell what a list of choices holds without running the source it stands in.

A module is parsed, never imported: the engine needs torch and a GPU for that, and it is somebody else's code. What is
not understood is `UNKNOWN`, and whoever asks must then claim nothing.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()
"""A value that cannot be told."""

Read = Callable[[str], bytes | None]
"""The content of a file of the wheel by its path, None when there is none."""

_DEEPEST = 24
_BUILTINS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "set": list,
    "frozenset": list,
    "sorted": sorted,
    "tuple": list,
    "str": str,
}
_ENUMS = {"Enum", "StrEnum", "IntEnum", "IntFlag", "Flag", "str"}


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    name: str
    value: Any


@dataclasses.dataclass
class Module:
    """A parsed module: what each of its top-level names is bound to, and what it does to lists afterwards."""

    name: str
    tree: ast.Module
    classes: dict[str, ast.ClassDef] = dataclasses.field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = dataclasses.field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    values: dict[str, ast.expr] = dataclasses.field(default_factory=dict)
    added: dict[str, list[ast.expr]] = dataclasses.field(default_factory=dict)


class Modules:
    """The modules of a wheel, parsed when they are asked for."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[str, Module | None] = {}

    def get(self, name: str) -> Module | None:
        """The module ``a.b.c``, or None when the wheel has none that can be parsed."""
        if name not in self._known:
            self._known[name] = self._parse(name)
        return self._known[name]

    def _parse(self, name: str) -> Module | None:
        path = name.replace(".", "/")
        source = self._read(f"{path}.py")
        package = source is None
        if source is None:
            source = self._read(f"{path}/__init__.py")
        if source is None:
            return None
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return None
        module = Module(name, tree)
        for statement in statements(tree.body):
            _bind(module, statement, package)
        return module


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block, those inside ``if``, ``try`` and ``with`` too: any branch may be the one that runs."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from statements(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


def _bind(module: Module, statement: ast.stmt, package: bool) -> None:
    if isinstance(statement, ast.ClassDef):
        module.classes[statement.name] = statement
    elif isinstance(statement, ast.FunctionDef):
        module.functions[statement.name] = statement
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                module.values[target.id] = statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        module.values[statement.target.id] = statement.value
    elif isinstance(statement, ast.ImportFrom):
        origin = statement.module or ""
        if statement.level:
            base = module.name.split(".")[: len(module.name.split(".")) - statement.level + package]
            origin = ".".join([*base, *([origin] if origin else [])])
        for alias in statement.names:
            module.imports[alias.asname or alias.name] = (origin, alias.name)
    elif (addition := _addition(statement)) is not None:
        module.added.setdefault(addition[0], []).append(addition[1])


def _addition(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """``X.append(y)``, ``X.add(y)`` and ``X.extend(y)``, the first two as if they extended by one."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    target, how = call.func.value, call.func.attr
    if not isinstance(target, ast.Name) or how not in {"append", "add", "extend", "update"}:
        return None
    return target.id, call.args[0] if how in {"extend", "update"} else ast.List(elts=[call.args[0]])


class Scope:
    """Where a name is looked up: local values first, then the module and what it imports."""

    def __init__(
        self, modules: Modules, module: Module, local: Mapping[str, Any] | None = None, depth: int = 0
    ) -> None:
        self.modules = modules
        self.module = module
        self.local = dict(local or {})
        self._depth = depth

    def at(self, module: Module, local: Mapping[str, Any] | None = None) -> Scope:
        """The scope of another module, reached from here."""
        return Scope(self.modules, module, local, self._depth + 1)

    def evaluate(self, node: ast.expr | None) -> Any:
        """What `node` comes to: text, numbers, lists (sets and tuples too), dicts, `Member`; else `UNKNOWN`."""
        if node is None or self._depth > _DEEPEST:
            return UNKNOWN
        how = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            return how(node) if how is not None else UNKNOWN
        except (TypeError, ValueError, AttributeError, KeyError):
            return UNKNOWN

    def find_class(self, name: str) -> tuple[ast.ClassDef, Module] | None:
        """The class that `name` stands for here."""
        found = self._find(name, "classes")
        return found if found is not None and isinstance(found[0], ast.ClassDef) else None

    def find_function(self, name: str) -> tuple[ast.FunctionDef, Module] | None:
        """The function that `name` stands for here."""
        found = self._find(name, "functions")
        return found if found is not None and isinstance(found[0], ast.FunctionDef) else None

    def _find(self, name: str, kind: str) -> tuple[Any, Module] | None:
        module: Module | None = self.module
        for _ in range(_DEEPEST):
            if module is None:
                return None
            if name in getattr(module, kind):
                return getattr(module, kind)[name], module
            if name not in module.imports:
                return None
            origin, name = module.imports[name]
            module = self.modules.get(origin)
        return None

    def run(self, body: list[ast.stmt]) -> Any:
        """Run assignments of `body` until it returns a value that can be told."""
        result = UNKNOWN
        for statement in statements(body):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                _bind(self.module, statement, False)
            self.assign(statement)
            if isinstance(statement, ast.Return):
                result = self.evaluate(statement.value)
                if result is not UNKNOWN:
                    return result
        return result

    def assign(self, statement: ast.stmt) -> None:
        """Take over what a plain assignment, or an addition to a list, binds."""
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self.local[statement.targets[0].id] = self.evaluate(statement.value)
        elif (addition := _addition(statement)) is not None and isinstance(self.local.get(addition[0]), list):
            more = self.evaluate(addition[1])
            if isinstance(more, list):
                self.local[addition[0]] = self.local[addition[0]] + more

    # ---- one method a kind of node, named after its class ---------------------------------------------------

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        found: list[Any] = []
        for item in node.elts:
            value = self.evaluate(item.value if isinstance(item, ast.Starred) else item)
            if value is UNKNOWN:
                return UNKNOWN
            found += value if isinstance(item, ast.Starred) else [value]
        return found

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.evaluate(value)
                if not isinstance(inner, dict):
                    return UNKNOWN
                found.update(inner)
            else:
                found[self.evaluate(key)] = self.evaluate(value)
        return UNKNOWN if UNKNOWN in found else found

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if UNKNOWN in (left, right) or not isinstance(node.op, ast.Add):
            return UNKNOWN
        return left + right

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
        return "".join(str(part) for part in parts)

    def _ifexp(self, node: ast.IfExp) -> Any:
        left, right = self.evaluate(node.body), self.evaluate(node.orelse)
        both = isinstance(left, list) and isinstance(right, list)
        return left + [item for item in right if item not in left] if both else UNKNOWN

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.local:
            return self.local[node.id]
        if (found := self._find(node.id, "values")) is not None:
            expression, module = found
            scope = self.at(module)
            value = scope.evaluate(expression)
            for more in module.added.get(node.id, []):
                extra = scope.evaluate(more)
                if isinstance(value, list) and isinstance(extra, list):
                    value = value + extra
            return value
        return UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and (found := self.find_class(node.value.id)) is not None:
            return self._of_class(*found, node.attr)
        owner = self.evaluate(node.value)
        if isinstance(owner, Member):
            return {"name": owner.name, "value": owner.value}.get(node.attr, UNKNOWN)
        return UNKNOWN

    def _of_class(self, definition: ast.ClassDef, module: Module, name: str) -> Any:
        scope = self.at(module)
        for key, value in class_values(definition):
            scope.local[key] = scope.evaluate(value)
            if key == name:
                found = scope.local[key]
                enum = any(isinstance(base, ast.Name) and base.id in _ENUMS for base in definition.bases)
                return Member(key, found) if enum and not isinstance(found, (list, dict)) else found
        return UNKNOWN

    def _subscript(self, node: ast.Subscript) -> Any:
        owner, index = self.evaluate(node.value), self.evaluate(node.slice)
        return owner[index] if isinstance(owner, (list, dict)) else UNKNOWN

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Any:
        generator = node.generators[0]
        if len(node.generators) != 1 or generator.ifs or not isinstance(generator.target, ast.Name):
            return UNKNOWN
        items = self._iterated(generator.iter)
        if items is UNKNOWN:
            return UNKNOWN
        scope = Scope(self.modules, self.module, self.local, self._depth + 1)
        found = []
        for item in items:
            scope.local[generator.target.id] = item
            found.append(scope.evaluate(node.elt))
        return UNKNOWN if UNKNOWN in found else found

    _setcomp = _generatorexp = _listcomp

    def _iterated(self, node: ast.expr) -> Any:
        """The items of a list, the keys of a dict, the members of an enumeration."""
        if isinstance(node, ast.Name) and node.id not in self.local and (found := self.find_class(node.id)) is not None:
            definition, module = found
            return [Member(key, self.at(module).evaluate(value)) for key, value in class_values(definition)]
        value = self.evaluate(node)
        return list(value) if isinstance(value, (list, dict)) else UNKNOWN

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name):
            if node.func.id in _BUILTINS and len(node.args) == 1:
                value = self._iterated(node.args[0])
                return UNKNOWN if value is UNKNOWN else _BUILTINS[node.func.id](value)
            if not node.args and (found := self.find_function(node.func.id)) is not None:
                return self.at(found[1]).run(found[0].body)
            return UNKNOWN
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func, node)
        return UNKNOWN

    def _method(self, function: ast.Attribute, node: ast.Call) -> Any:
        if isinstance(function.value, ast.Name) and (found := self.find_class(function.value.id)) is not None:
            for statement in found[0].body:
                if isinstance(statement, ast.FunctionDef) and statement.name == function.attr and not node.args:
                    return self.at(found[1]).run(statement.body)
        owner = self.evaluate(function.value)
        if function.attr in {"keys", "values"} and isinstance(owner, dict):
            return list(getattr(owner, function.attr)())
        if function.attr in {"lower", "upper"} and isinstance(owner, str):
            return getattr(owner, function.attr)()
        if function.attr == "copy":
            return owner
        return UNKNOWN


def class_values(definition: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The plain assignments in the body of a class."""
    for statement in definition.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            yield statement.target.id, statement.value
