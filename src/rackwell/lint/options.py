# SPDX-License-Identifier: Apache-2.0
"""The command line of an SGLang release, read from its source as a syntax tree.

Until 0.5.13 every option is a call of ``parser.add_argument``. From 0.5.14 on most are fields of a class, annotated
with ``A[type, "help"]`` or ``A[type, Arg(...)]``, and from 0.5.20 on these fields stand in classes of their own, which
``server_args.py`` collects; what is deprecated is still added by a call. All three are read here.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from rackwell.lint.syntax import UNKNOWN, Member, Module, Modules, Read, Scope, statements

SERVER_ARGS = "sglang.srt.server_args"
_CLASS = "ServerArgs"
_FLAG_ACTIONS = {
    "store_true",
    "store_false",
    "DeprecatedStoreTrueAction",
    "DeprecatedStoreConstAction",
    "DeprecatedAction",
}
_TYPES = {"str": "str", "int": "int", "float": "float", "human_readable_int": "size", "json.loads": "json"}
_TYPES |= {"json_list_type": "json", "nullable_str": "str", "bool": "bool"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the command line.

    Attributes:
        names: with their dashes, the main one first.
        takes: ``none`` (a bare flag), ``one``, ``maybe`` (may stand alone), ``some`` (one or more), ``any``, or a
            number.
        type: ``str``, ``int``, ``float``, ``size`` (an int with a suffix), ``json``, or ``other`` (not to be told).
        choices: what may be given; empty when anything of the type may, or when it cannot be told.
        deprecated: whether it warns and should be replaced. refused: it ends the start with a message.
        successor: what to give instead, as the source says it; empty when it says nothing.
    """

    names: tuple[str, ...]
    takes: str = "one"
    type: str = "str"
    choices: tuple[str | int, ...] = ()
    deprecated: bool = False
    refused: bool = False
    successor: str = ""


@dataclasses.dataclass
class CommandLine:
    """What was read. `unread` names what could not be: where, and why it is left out."""

    options: list[Option]
    unread: list[str]


def read_options(read: Read) -> CommandLine:
    """The options of the wheel that `read` reads from; none when it has no ``server_args.py``."""
    modules = Modules(read)
    module = modules.get(SERVER_ARGS)
    found = CommandLine([], [])
    if module is None or _CLASS not in module.classes:
        return found
    scope = Scope(modules, module)
    for definition, home in _records(scope, module):
        found.options += _fields(definition, scope.at(home))
    for statement in module.classes[_CLASS].body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "add_cli_args":
            _calls(statement, scope.at(module), found, frozenset())
    found.options = _merged(found.options)
    return found


def _merged(options: list[Option]) -> list[Option]:
    """One option a name; what is added by a call after the fields tells more."""
    by_name: dict[str, Option] = {}
    for option in options:
        by_name[option.names[0]] = option
    return [by_name[name] for name in sorted(by_name)]


# ---- fields -------------------------------------------------------------------------------------------------------


def _records(scope: Scope, module: Module) -> Iterator[tuple[ast.ClassDef, Module]]:
    """The classes whose annotated fields are options: the class itself, its bases, and those it collects."""
    pending: list[tuple[ast.ClassDef, Module]] = [(module.classes[_CLASS], module)]
    collected = module.values.get("_INPUT_NAMESPACES")
    if isinstance(collected, (ast.List, ast.Tuple)):
        names = [item.id for item in collected.elts if isinstance(item, ast.Name)]
        pending += [found for name in names if (found := scope.find_class(name)) is not None]
    seen: set[str] = set()
    while pending:
        definition, home = pending.pop(0)
        key = f"{home.name}.{definition.name}"
        if key in seen:
            continue
        seen.add(key)
        yield definition, home
        inside = scope.at(home)
        bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
        pending += [found for name in bases if (found := inside.find_class(name)) is not None]


def _fields(definition: ast.ClassDef, scope: Scope) -> Iterator[Option]:
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            option = _field(statement.target.id, statement.annotation, scope)
            if option is not None:
                yield option


def _field(name: str, annotation: ast.expr, scope: Scope) -> Option | None:
    if not isinstance(annotation, ast.Subscript) or _dotted(annotation.value) not in {"A", "Annotated"}:
        return None
    if not isinstance(annotation.slice, ast.Tuple):
        return None
    declared, *metadata = annotation.slice.elts
    keywords: dict[str, ast.expr] | None = None
    for item in metadata:
        if isinstance(item, ast.Call) and _dotted(item.func) == "Arg":
            keywords = {k.arg: k.value for k in item.keywords if k.arg}
            if item.args:
                keywords["help"] = item.args[0]
            break
        if isinstance(scope.evaluate(item), str):
            keywords = {"help": item}
            break
    if keywords is None or scope.evaluate(keywords.get("no_cli")) is True:
        return None
    main = scope.evaluate(keywords.get("cli_name"))
    aliases = scope.evaluate(keywords.get("aliases"))
    names = [main if isinstance(main, str) else "--" + name.replace("_", "-")]
    names += aliases if isinstance(aliases, list) else []
    inner = _not_optional(declared)
    if (extra := keywords.get("action_kwargs")) is not None and isinstance(extra, ast.Dict):
        pairs = zip(extra.keys, extra.values, strict=True)
        keywords |= {str(scope.evaluate(key)): value for key, value in pairs if key is not None}
    if "type_parser" in keywords:
        keywords["type"] = keywords["type_parser"]
    elif "action" not in keywords:
        _from_annotation(inner, keywords)
    return _option(names, keywords, scope)


def _not_optional(node: ast.expr) -> ast.expr:
    """``X`` of ``Optional[X]`` and of ``X | None``."""
    if isinstance(node, ast.Subscript) and _dotted(node.value) in {"Optional", "typing.Optional"}:
        return node.slice
    if isinstance(node, ast.Subscript) and _dotted(node.value) == "Union" and isinstance(node.slice, ast.Tuple):
        rest = [item for item in node.slice.elts if not _is_none(item)]
        return rest[0] if len(rest) == 1 else node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [side for side in (node.left, node.right) if not _is_none(side)]
        return _not_optional(sides[0]) if len(sides) == 1 else node
    return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _from_annotation(inner: ast.expr, keywords: dict[str, ast.expr]) -> None:
    """What SGLang derives from a field's type: bool is a bare flag, a list takes several, Literal has choices."""
    if isinstance(inner, ast.Subscript):
        outer = _dotted(inner.value)
        if outer == "Literal":
            items = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            keywords.setdefault("choices", ast.List(elts=items))
            ints = all(isinstance(item, ast.Constant) and isinstance(item.value, int) for item in items)
            keywords["type"] = ast.Name("int" if ints else "str")
        elif outer in {"list", "List", "typing.List"}:
            keywords.setdefault("nargs", ast.Constant("+"))
            keywords["type"] = inner.slice
    elif _dotted(inner) == "bool":
        keywords["action"] = ast.Constant("store_true")
    else:
        keywords["type"] = inner


# ---- calls --------------------------------------------------------------------------------------------------------


def _calls(function: ast.FunctionDef, scope: Scope, found: CommandLine, inside: frozenset[str]) -> None:
    """The options that `function` adds to its parser, by itself and through the functions that it gives it to."""
    parsers = {argument.arg for argument in function.args.args}
    for statement in statements(function.body):
        scope.assign(statement)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Name) and _group_of(statement, parsers):
            parsers.add(target.id)
        for call in _calls_in(statement):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                _add_argument(call, scope, found)
            elif any(isinstance(argument, ast.Name) and argument.id in parsers for argument in call.args):
                _follow(call, scope, found, inside)


def _calls_in(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls of a statement itself; those of the statements inside it are seen when these are."""
    if isinstance(statement, (ast.If, ast.Try, ast.With, ast.FunctionDef, ast.ClassDef)):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            yield node


def _group_of(statement: ast.stmt, parsers: set[str]) -> bool:
    """Whether it makes a group of options: ``group = parser.add_argument_group(...)``."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    function = call.func if isinstance(call, ast.Call) else None
    return (
        isinstance(function, ast.Attribute)
        and function.attr.startswith("add_")
        and isinstance(function.value, ast.Name)
        and function.value.id in parsers
    )


def _add_argument(call: ast.Call, scope: Scope, found: CommandLine) -> None:
    names = [scope.evaluate(argument) for argument in call.args]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if not names or not all(isinstance(name, str) for name in names) or len(keywords) != len(call.keywords):
        found.unread.append(f"{scope.module.name}:{call.lineno}")
        return
    if names[0].startswith("-"):
        found.options.append(_option(names, keywords, scope))


def _follow(call: ast.Call, scope: Scope, found: CommandLine, inside: frozenset[str]) -> None:
    name = _dotted(call.func)
    if name in inside or name == "add_cli_args_from_dataclass":
        return
    owner, _, method = name.rpartition(".")
    if not owner and (function := scope.find_function(name)) is not None:
        _calls(function[0], scope.at(function[1]), found, inside | {name})
    elif owner and (definition := scope.find_class(owner)) is not None:
        for statement in definition[0].body:
            if isinstance(statement, ast.FunctionDef) and statement.name == method:
                _calls(statement, scope.at(definition[1]), found, inside | {name})


# ---- both ---------------------------------------------------------------------------------------------------------


def _option(names: list[str], keywords: dict[str, ast.expr], scope: Scope) -> Option:
    action = _action(keywords.get("action"), scope)
    about = scope.evaluate(keywords.get("help"))
    about = about if isinstance(about, str) else ""
    successor = scope.evaluate(keywords.get("new_flag"))
    said = bool(re.match(r"\W*(note: --\S+ is )?deprecated", about, re.IGNORECASE))
    deprecated = action.startswith("Deprecated") or said
    refusal = scope.evaluate(keywords.get("error_message"))
    if isinstance(refusal, str):
        about = refusal
    if not isinstance(successor, str):
        successor = _named_in(about, names) if deprecated else ""
    refused = isinstance(refusal, str) and action == "DeprecatedAction"
    if action == "BooleanOptionalAction":
        names = [*names, *(f"--no-{name[2:]}" for name in names if name.startswith("--"))]
    return Option(
        tuple(dict.fromkeys(names)),
        _takes(action, keywords, scope),
        _type(keywords.get("type")),
        _choices(scope.evaluate(keywords.get("choices"))),
        deprecated,
        refused,
        successor,
    )


def _named_in(about: str, names: list[str]) -> str:
    """The other option that a help text speaks of."""
    others = [name for name in re.findall(r"--[a-z0-9][a-z0-9-]*(?:=[A-Za-z0-9_]+)?", about) if name not in names]
    return others[0] if others else ""


def _action(node: ast.expr | None, scope: Scope) -> str:
    if node is None:
        return "store"
    value = scope.evaluate(node)
    return value if isinstance(value, str) else _dotted(node).rpartition(".")[2]


def _takes(action: str, keywords: dict[str, ast.expr], scope: Scope) -> str:
    nargs = keywords.get("nargs")
    if action == "BooleanOptionalAction":
        return "none"
    if action in _FLAG_ACTIONS and nargs is None:
        return "none"
    value = scope.evaluate(nargs)
    return {"?": "maybe", "+": "some", "*": "any"}.get(str(value), str(value) if isinstance(value, int) else "one")


def _type(node: ast.expr | None) -> str:
    if node is None:
        return "str"
    return _TYPES.get(_dotted(node), "other")


def _choices(value: Any) -> tuple[str | int, ...]:
    if not isinstance(value, list) or value is UNKNOWN:
        return ()
    plain = [item.value if isinstance(item, Member) else item for item in value]
    if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in plain if item is not None):
        return ()
    return tuple(sorted({item for item in plain if item is not None}, key=str))


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` for names and attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""
