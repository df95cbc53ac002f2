# SPDX-License-Identifier: Apache-2.0
"""YAML with line numbers, so that every complaint about a declaration can name the line to edit."""

from __future__ import annotations

import dataclasses
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rackwell.errors import ExitCode, Problem, RackwellError

Pointer = tuple[str | int, ...]
"""Keys and list indexes from the top of a document to a value."""

_MOST_VALUES = 20_000
_LARGEST = 1 << 256
#: NUL, and halves of characters, which only an escape in quotes can bring
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")


class Sealed(str):
    """A value that only Ansible can open (``!vault``): present, but of unknown content."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Document:
    """One YAML file: its data, and where each part of it stands."""

    path: Path
    data: Any
    lines: dict[Pointer, int]

    def line(self, pointer: Pointer = ()) -> int:
        """The line (from 1) of the key or item at `pointer`, or of its nearest ancestor in the file."""
        for end in range(len(pointer), -1, -1):
            if pointer[:end] in self.lines:
                return self.lines[pointer[:end]]
        return 1

    def where(self, pointer: Pointer = ()) -> str:
        """``file:line`` of `pointer`."""
        return f"{self.path}:{self.line(pointer)}"

    def has(self, pointer: Pointer) -> bool:
        """Whether the file itself holds something at `pointer`."""
        return pointer in self.lines


def load(path: Path) -> Document:
    """Read one YAML document.

    Ansible's tags are tolerated: ``!unsafe`` is plain text, ``!vault`` becomes `Sealed`.

    Raises:
        RackwellError: not readable, not YAML, more than one document, or a key that is given twice (exit 2).
    """
    try:
        # not to wait for the other end of a pipe, nor to read a device for ever
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unreadable(path, "it is not a regular file", "put a YAML file in its place")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _invalid("file-missing", f"{path.name} does not exist", str(path), "", "create it") from None
    except UnicodeDecodeError as error:
        raise _unreadable(path, str(error), "save it as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unreadable(path, reason, "make it a readable file") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """The document in `text`; `path` is only named in complaints. Raises as `load` does."""
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        loader.name = str(path)
        node = loader.get_single_node()
        builder = _Builder(path, loader)
        data = builder.build(node, ()) if node is not None else None
    except RecursionError:
        why, fix = "its values are nested too deeply", "write it flatter"
        raise _invalid("yaml-syntax", f"{path.name} is not valid YAML", str(path), why, fix) from None
    except yaml.reader.ReaderError as error:
        where = f"{path}:{text.count(chr(10), 0, error.position) + 1}"
        why = f"character #x{error.character:04x} may not stand in YAML"
        raise _invalid("yaml-syntax", f"{path.name} is not valid YAML", where, why, "remove it") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise _invalid("yaml-syntax", f"{path.name} is not valid YAML", where, why, "correct the YAML there") from error
    except yaml.YAMLError as error:
        why, fix = str(error), "correct the YAML there"
        raise _invalid("yaml-syntax", f"{path.name} is not valid YAML", str(path), why, fix) from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(path, data, builder.lines)


class _Builder:
    """Turns YAML nodes into data, and remembers the line of each key and item."""

    def __init__(self, path: Path, loader: yaml.SafeLoader) -> None:
        self.path = path
        self.loader = loader
        self.lines: dict[Pointer, int] = {}
        self._open: set[int] = set()
        self._built = 0

    def build(self, node: yaml.Node, pointer: Pointer) -> Any:
        self._built += 1
        if self._built > _MOST_VALUES:
            # aliases of aliases grow without bound
            raise yaml.constructor.ConstructorError(None, None, "more values than a declaration has", node.start_mark)
        self.lines.setdefault(pointer, node.start_mark.line + 1)
        if id(node) in self._open:
            raise yaml.constructor.ConstructorError(None, None, "a value that contains itself", node.start_mark)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, pointer)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*pointer, index)) for index, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, pointer: Pointer) -> dict[Any, Any]:
        merged: dict[Any, Any] = {}
        data: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                for part in self._merged(value_node):
                    merged = {**self.build(part, pointer), **merged}
                continue
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise yaml.constructor.ConstructorError(None, None, "a key that is not plain text", key_node.start_mark)
            if key in data:
                first = self.lines[(*pointer, key)]
                raise _invalid(
                    "duplicate-key",
                    f"{key!r} is given twice",
                    f"{self.path}:{key_node.start_mark.line + 1}",
                    f"it stands in line {first} already, and only one of the two would count",
                    "remove one of them",
                )
            self.lines[(*pointer, key)] = key_node.start_mark.line + 1
            data[key] = self.build(value_node, (*pointer, key))
        return {**merged, **data}

    def _merged(self, node: yaml.Node) -> Iterator[yaml.MappingNode]:
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(part, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(None, None, "'<<' needs a mapping", part.start_mark)
            yield part

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag in {"!vault", "!vault-encrypted"}:
            return Sealed(node.value)
        if node.tag.startswith("!"):
            return node.value
        try:
            value = self.loader.construct_object(node)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # a text that has the form or the tag of a date or a number, and is none: 2026-99-99
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"'{node.value[:80]}' is read as a date or a number, and is none: put it in quotes",
                node.start_mark,
            ) from error
        if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            raise yaml.constructor.ConstructorError(None, None, "a number that is too large", node.start_mark)
        if isinstance(value, str) and _NO_TEXT.search(value):
            raise yaml.constructor.ConstructorError(
                None, None, "a character that no path and no command can hold", node.start_mark
            )
        return value


def _unreadable(path: Path, why: str, fix: str) -> RackwellError:
    return _invalid("file-unreadable", f"{path.name} cannot be read", str(path), why, fix)


def _invalid(code: str, what: str, where: str, why: str = "", fix: str = "") -> RackwellError:
    return RackwellError(Problem(code, what, where, why, fix), ExitCode.INVALID)
