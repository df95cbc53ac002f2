# SPDX-License-Identifier: Apache-2.0
"""The small language of conditions in rule files: comparisons, ``and``/``or``/``not``, and a few functions.

It is Python's grammar and none of its power: no attribute of an object, no call but those of the table it is given.
What is unknown is ``none``; a comparison with it is false, so that a rule claims nothing about what nobody told.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_CONSTANTS = {"true": True, "false": False, "none": None}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_COMPUTE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_HOLE = re.compile(r"\$\{([^{}]+)\}")


class ExpressionError(ValueError):
    """The text is no condition of this language."""


class Expression:
    """A condition, parsed once."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise ExpressionError(f"'{self.text}' is not a condition: {error}") from error
        for node in ast.walk(self._tree):
            if not isinstance(node, _ALLOWED):
                raise ExpressionError(f"'{self.text}' has what a condition may not have: {type(node).__name__}")

    def names(self) -> set[str]:
        """The functions and namespaces that it uses."""
        return {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)} - set(_CONSTANTS)

    def value(self, scope: Mapping[str, Any]) -> Any:
        """What it comes to. Raises ExpressionError for a name that `scope` does not have."""
        return _value(self._tree, scope)


_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.cmpop, ast.Call, ast.Name, ast.Load,
    ast.Constant, ast.Attribute, ast.Tuple, ast.List, ast.BinOp, ast.operator,
)  # fmt: skip


def _value(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    how = _KINDS.get(type(node))
    if how is None:
        raise ExpressionError(f"'{ast.unparse(node)}' is not a condition")
    return how(node, scope)


def _name(node: ast.Name, scope: Mapping[str, Any]) -> Any:
    if node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if node.id not in scope:
        raise ExpressionError(f"'{node.id}' is not known in conditions")
    return scope[node.id]


def _attribute(node: ast.Attribute, scope: Mapping[str, Any]) -> Any:
    owner = _value(node.value, scope)
    if not isinstance(owner, Mapping):
        raise ExpressionError(f"'{ast.unparse(node)}' is not known in conditions")
    return owner.get(node.attr)


def _items(node: ast.Tuple | ast.List, scope: Mapping[str, Any]) -> list[Any]:
    return [_value(item, scope) for item in node.elts]


def _both_or_either(node: ast.BoolOp, scope: Mapping[str, Any]) -> bool:
    together = all if isinstance(node.op, ast.And) else any
    return together(_value(item, scope) for item in node.values)


def _unary(node: ast.UnaryOp, scope: Mapping[str, Any]) -> Any:
    value = _value(node.operand, scope)
    return not value if isinstance(node.op, ast.Not) else _safely(operator.neg, value)


def _binary(node: ast.BinOp, scope: Mapping[str, Any]) -> Any:
    compute = _COMPUTE.get(type(node.op))
    if compute is None:
        raise ExpressionError(f"'{ast.unparse(node)}' is not a condition")
    return _safely(compute, _value(node.left, scope), _value(node.right, scope))


def _call(node: ast.Call, scope: Mapping[str, Any]) -> Any:
    if not isinstance(node.func, ast.Name) or node.keywords:
        raise ExpressionError(f"'{ast.unparse(node)}' is not a condition")
    function = _value(node.func, scope)
    if not callable(function):
        raise ExpressionError(f"'{node.func.id}' is no function of conditions")
    return function(*(_value(item, scope) for item in node.args))


def _compared(node: ast.Compare, scope: Mapping[str, Any]) -> bool:
    left = _value(node.left, scope)
    for how, item in zip(node.ops, node.comparators, strict=True):
        right = _value(item, scope)
        compare = _COMPARE.get(type(how))
        if compare is None:
            raise ExpressionError(f"'{ast.unparse(node)}': write == or !=")
        if not _safely(compare, left, right):
            return False
        left = right
    return True


_KINDS: dict[type[ast.expr], Callable[[Any, Mapping[str, Any]], Any]] = {
    ast.Constant: lambda node, _: node.value,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Tuple: _items,
    ast.List: _items,
    ast.BoolOp: _both_or_either,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compared,
    ast.Call: _call,
}


def _safely(function: Callable[..., Any], *values: Any) -> Any:
    """The unknown compares and computes to nothing."""
    try:
        return function(*values)
    except (TypeError, ZeroDivisionError):
        return None


def filled(text: str, scope: Mapping[str, Any]) -> str:
    """`text` with each ``${expression}`` replaced by what it comes to."""

    def shown(match: re.Match[str]) -> str:
        value = Expression(match[1]).value(scope)
        if value is None or isinstance(value, bool):
            return {None: "nothing", True: "true", False: "false"}[value]
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3g}"
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return _HOLE.sub(shown, text)


def holes(text: str) -> list[Expression]:
    """The expressions in `text`."""
    return [Expression(match[1]) for match in _HOLE.finditer(text)]


def plain(text: str) -> str:
    """`text` for a reference: each hole as an ellipsis."""
    return _HOLE.sub("…", text)
