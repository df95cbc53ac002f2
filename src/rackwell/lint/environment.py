# SPDX-License-Identifier: Apache-2.0
"""The environment variables that a project's source reads, found in its syntax trees.

Read is what is given to a function that gets a variable (``os.getenv``, ``os.environ.get``, ``get_bool_env_var``, ...),
looked up in ``os.environ``, or declared as a field of SGLang's ``Envs``. What only C++ or another wheel reads is not
seen.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator

_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_WORTH = re.compile(rb"os\.environ|\bimport environ\b|getenv|env_var|_env\(|\bEnv[A-Z]\w*\(|_DEPRECATED_ENVS")
_GETTERS = re.compile(r"(^|_)env($|_)|environ|getenv|env_var", re.IGNORECASE)
_FIELDS = re.compile(r"Env[A-Z]\w*")
Text = Callable[[ast.expr | None], str]


@dataclasses.dataclass(frozen=True)
class Variable:
    """An environment variable that is read.

    Attributes:
        deprecated: whether the source warns of it. successor: what it names instead, a variable or a sentence.
    """

    name: str
    deprecated: bool = False
    successor: str = ""


def read_environment(files: Iterable[tuple[str, bytes]]) -> list[Variable]:
    """The variables that `files` (path, content) read, by name."""
    found: dict[str, Variable] = {}
    for path, content in files:
        if not path.endswith(".py") or "/test/" in path or not _WORTH.search(content):
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            continue
        for variable in _in_tree(tree):
            known = found.get(variable.name)
            if known is None or (variable.deprecated and not known.deprecated):
                found[variable.name] = variable
    return [found[name] for name in sorted(found)]


def _in_tree(tree: ast.Module) -> Iterator[Variable]:
    constants = {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }

    def text(node: ast.expr | None) -> str:
        value = constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return value if isinstance(value, str) and _NAME.fullmatch(value) else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _call(node, text)
        elif isinstance(node, ast.Subscript) and _last(node.value) == "environ" and isinstance(node.ctx, ast.Load):
            yield from _named(text(node.slice))
        elif isinstance(node, ast.Compare) and _last(node.comparators[0]) == "environ":
            yield from _named(text(node.left))
        elif isinstance(node, ast.ClassDef):
            yield from _declared(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _retired(node, text)


def _named(name: str) -> Iterator[Variable]:
    if name:
        yield Variable(name)


def _call(node: ast.Call, text: Text) -> Iterator[Variable]:
    function = _last(node.func)
    first = text(node.args[0]) if node.args else ""
    owner = _last(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if function == "_print_deprecated_env" and len(node.args) == 2:
        yield Variable(text(node.args[1]), True, first)
    elif function == "_warn_deprecated_env_to_cli_flag" and len(node.args) == 2:
        note = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
        yield Variable(first, True, str(note))
    elif first and (_GETTERS.search(function) or (owner == "environ" and function in {"get", "pop", "setdefault"})):
        yield Variable(first)


def _declared(node: ast.ClassDef) -> Iterator[Variable]:
    """Fields such as ``SGLANG_X = EnvBool(False)``."""
    for statement in node.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        if isinstance(value, ast.Call) and _FIELDS.match(_last(value.func)) and _NAME.fullmatch(name):
            yield Variable(name)
            for keyword in value.keywords:
                if keyword.arg == "deprecated_name" and isinstance(keyword.value, ast.Constant):
                    yield Variable(str(keyword.value.value), True, name)


def _retired(node: ast.Assign | ast.AnnAssign, text: Text) -> Iterator[Variable]:
    """The registry of newer releases: ``_DEPRECATED_ENVS = {"OLD": _DeprecatedEnv(replacement=..., note=...)}``."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if _last(targets[0]) != "_DEPRECATED_ENVS" or not isinstance(node.value, ast.Dict):
        return
    for key, value in zip(node.value.keys, node.value.values, strict=True):
        name = text(key)
        if not name or not isinstance(value, ast.Call):
            continue
        told = {k.arg: k.value.value for k in value.keywords if isinstance(k.value, ast.Constant)}
        positional = next((a.value for a in value.args if isinstance(a, ast.Constant)), "")
        yield Variable(name, True, str(told.get("replacement") or positional or told.get("note") or ""))


def _last(node: ast.expr) -> str:
    """The last name of ``a.b.c``; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
