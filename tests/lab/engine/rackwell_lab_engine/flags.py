# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: the real server's command line, rebuilt from the installed ``server_args.py``.

Unknown flags, bad integers and bad choices end as they do there: usage on stderr, exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rackwell_lab_engine.source import Source, UnresolvableError, load


def _json_list(text: str) -> list[Any]:
    value = json.loads(text)
    if not isinstance(value, list):
        raise argparse.ArgumentTypeError(f"not a JSON list: {text}")
    return value


def _nullable(text: str) -> str | None:
    return None if not text or text == "None" else text


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "json.loads": json.loads,
    "json_list_type": _json_list,
    "nullable_str": _nullable,
}


class _Deprecated(argparse.Action):
    """Takes no value and only warns, as the original's DeprecatedAction does."""

    def __init__(self, option_strings: Sequence[str], dest: str, nargs: int = 0, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"The command line argument '{option_string}' is deprecated.", file=sys.stderr)


def _add_cli_args(source: Source) -> ast.FunctionDef:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
            return node
    raise UnresolvableError(f"no add_cli_args in {source.path}")


def _keywords(source: Source, call: ast.Call, local: dict[str, ast.expr]) -> dict[str, Any]:
    """Keyword arguments of one ``add_argument`` call."""
    options: dict[str, Any] = {}
    for keyword in call.keywords:
        text = ast.unparse(keyword.value)
        match keyword.arg:
            case "help":
                options["help"] = argparse.SUPPRESS if text == "argparse.SUPPRESS" else None
            case "type":
                options["type"] = _TYPES[text]
            case "action" if isinstance(keyword.value, ast.Name):
                if text == "DeprecatedAction":
                    options["action"] = _Deprecated
                # any other class of the original only post-processes what "store" stores
            case "default":
                try:
                    options["default"] = source.value(keyword.value, local)
                except UnresolvableError:
                    options["default"] = None
            case None:
                raise UnresolvableError(f"{source.path}:{call.lineno}: ** in add_argument")
            case name:
                options[name] = source.value(keyword.value, local)
    return options


def build_parser(root: Path) -> argparse.ArgumentParser:
    """The parser that ``python -m sglang.launch_server`` of the package in ``root`` would make.

    Raises:
        UnresolvableError, KeyError: a definition is of a form unknown here; the stand-in must learn it, not skip it.
    """
    source = load(root, "srt.server_args")
    function = _add_cli_args(source)
    local = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }
    parser = argparse.ArgumentParser(prog="launch_server.py")
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    for call in sorted(calls, key=lambda node: node.lineno):
        names = [source.value(arg, local) for arg in call.args]
        parser.add_argument(*names, **_keywords(source, call, local))
    return parser


def parse(root: Path, argv: Sequence[str]) -> dict[str, Any]:
    """Parse the command line into the fields of ``ServerArgs``, in their order, with the defaults of the source.

    Ends the process with exit code 2 on wrong usage.
    """
    parsed = vars(build_parser(root).parse_args(argv))
    fields = load(root, "srt.server_args").fields("ServerArgs")
    # options and fields differ in a few names (tensor_parallel_size is tp_size): as the original's from_cli_args
    aliases = {
        "tp_size": "tensor_parallel_size",
        "attn_cp_size": "attention_context_parallel_size",
        "moe_dp_size": "moe_data_parallel_size",
        "pp_size": "pipeline_parallel_size",
        "dp_size": "data_parallel_size",
        "ep_size": "expert_parallel_size",
    }
    result: dict[str, Any] = {}
    for name, default in fields.items():
        if name in parsed:
            result[name] = parsed[name]
        elif aliases.get(name) in parsed:
            result[name] = parsed[aliases[name]]
        else:
            result[name] = default
    return result
