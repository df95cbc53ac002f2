# SPDX-License-Identifier: Apache-2.0
"""Runs in the environment that a git source is built in: asks the project's build backend, as PEP 517 says.

``python -P pep517.py TREE requires|wheel OUT``; the answer is JSON in ``OUT/answer.json``. Imports nothing of rackwell.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any


def system(tree: Path) -> dict[str, Any]:
    """``[build-system]`` of the project in `tree`, with what PEP 517 says where it is silent.

    Raises:
        ValueError: pyproject.toml is malformed, or the backend lies outside of the project.
    """
    try:
        data = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        data = {}
    found = data.get("build-system", {})
    answer = {
        "requires": [str(text) for text in found.get("requires", ["setuptools>=40.8.0"])],
        "backend": str(found.get("build-backend", "setuptools.build_meta:__legacy__")),
        "path": [str(text) for text in found.get("backend-path", [])],
    }
    for part in answer["path"]:
        if not (tree / part).resolve().is_relative_to(tree.resolve()):
            raise ValueError(f"its backend-path {part!r} leads out of the project")
    return answer


def main(arguments: list[str]) -> None:
    """Ask the backend."""
    tree, question, out = Path(arguments[0]), arguments[1], Path(arguments[2])
    os.chdir(tree)
    found = system(tree)
    sys.path[:0] = [str((tree / part).resolve()) for part in found["path"]]
    name, _, attribute = found["backend"].partition(":")
    backend: Any = importlib.import_module(name)
    for part in attribute.split(".") if attribute else []:
        backend = getattr(backend, part)
    if question == "requires":
        ask = getattr(backend, "get_requires_for_build_wheel", None)
        answer: Any = list(ask(None)) if ask else []
    else:
        answer = backend.build_wheel(str(out), None, None)
    (out / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
