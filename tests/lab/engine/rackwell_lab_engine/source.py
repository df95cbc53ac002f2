# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: reads constants out of the installed SGLang's source as a syntax tree, without importing it.

Importing ``sglang.srt`` needs torch and a GPU's libraries; its text is enough to know flags, choices and defaults.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class UnresolvableError(Exception):
    """An expression is not constant, or not of a form this reader knows."""


def package_dir(package: str = "sglang") -> Path:
    """The folder of the installed package; it is not imported (its parent packages are)."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


class Source:
    """Module-level names and classes of one Python file, and of the files it imports names from.

    Args:
        root: folder of the ``sglang`` package.
        module: dotted name below ``sglang``, like ``srt.server_args``.
    """

    def __init__(self, root: Path, module: str) -> None:
        base = root.joinpath(*module.split("."))
        self.root = root
        self.path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        self.tree = ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))
        self._values: dict[str, ast.expr] = {}
        self._imports: dict[str, tuple[str, str]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._values[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self._values[node.target.id] = node.value
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sglang."):
                for alias in node.names:
                    self._imports[alias.asname or alias.name] = (node.module.removeprefix("sglang."), alias.name)

    def name(self, name: str, local: Mapping[str, ast.expr] | None = None) -> Any:
        """The value of a name, looked up in ``local``, then in the module, then where it is imported from."""
        if local and name in local:
            return self.value(local[name], local)
        if name in self._values:
            return self.value(self._values[name])
        if name in self._imports:
            module, original = self._imports[name]
            return load(self.root, module).name(original)
        raise UnresolvableError(name)

    def class_of(self, name: str) -> tuple[Source, ast.ClassDef]:
        """A class by name, here or where it is imported from."""
        if name in self.classes:
            return self, self.classes[name]
        if name in self._imports:
            module, original = self._imports[name]
            return load(self.root, module).class_of(original)
        raise UnresolvableError(name)

    def fields(self, name: str) -> dict[str, Any]:
        """Annotated fields of a class with their default values; ``None`` where a default is not constant."""
        owner, node = self.class_of(name)
        fields: dict[str, Any] = {}
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                try:
                    fields[item.target.id] = owner.value(item.value) if item.value is not None else None
                except UnresolvableError:
                    fields[item.target.id] = None
        return fields

    def value(self, node: ast.expr, local: Mapping[str, ast.expr] | None = None) -> Any:
        """Evaluate a constant expression.

        Raises:
            UnresolvableError: the expression is of a form this reader does not know.
        """
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.name(node.id, local)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._elements(node.elts, local)
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand, local)
            case ast.BinOp(op=ast.Add()):
                return self.value(node.left, local) + self.value(node.right, local)
            case ast.Subscript(slice=ast.Constant() as index):
                return self.value(node.value, local)[index.value]
            case ast.JoinedStr():
                return "".join(str(self.value(v, local)) for v in node.values)
            case ast.FormattedValue():
                return self.value(node.value, local)
            case ast.Attribute(value=ast.Name(id=owner)):
                return self._class_value(owner, node.attr)
            # list(Parser.Map.keys()): the only calls that flags are made with
            case ast.Call(func=ast.Name(id="list"), args=[inner]):
                return list(self.value(inner, local))
            case ast.Call(func=ast.Attribute(value=mapping, attr="keys"), args=[]):
                return self._keys(mapping)
        raise UnresolvableError(ast.unparse(node))

    def _elements(self, elements: list[ast.expr], local: Mapping[str, ast.expr] | None) -> list[Any]:
        values: list[Any] = []
        for element in elements:
            if isinstance(element, ast.Starred):
                values.extend(self.value(element.value, local))
            else:
                values.append(self.value(element, local))
        return values

    def _class_body_value(self, owner: str, attribute: str) -> tuple[Source, ast.expr]:
        source, node = self.class_of(owner)
        for item in node.body:
            match item:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name == attribute:
                    return source, value
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == attribute:
                    return source, value
        raise UnresolvableError(f"{owner}.{attribute}")

    def _class_value(self, owner: str, attribute: str) -> Any:
        source, node = self._class_body_value(owner, attribute)
        return source.value(node)

    def _keys(self, mapping: ast.expr) -> list[Any]:
        if isinstance(mapping, ast.Attribute) and isinstance(mapping.value, ast.Name):
            source, node = self._class_body_value(mapping.value.id, mapping.attr)
            if isinstance(node, ast.Dict):
                return [source.value(key) for key in node.keys if key is not None]
        raise UnresolvableError(ast.unparse(mapping))


@functools.cache
def load(root: Path, module: str) -> Source:
    """Parse a module of the installed package, once."""
    return Source(root, module)


def autotune_backends(root: Path) -> list[str]:
    """MoE backends for which the installed model runner autotunes FlashInfer; empty where it cannot be told.

    Shows whether the autotune patch is in the source that would run.
    """
    try:
        source = load(root, "srt.model_executor.model_runner")
    except OSError:
        return []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "_should_run_flashinfer_autotune":
            for test in ast.walk(node):
                if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn):
                    return list(source.value(test.comparators[0]))
    return []
