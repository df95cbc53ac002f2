# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of what people write, for editors: ``rackwell check --schema NAME``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from rackwell.site import variables
from rackwell.site.benchfile import BenchProfile
from rackwell.site.profile import Profile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def models() -> dict[str, type[pydantic.BaseModel]]:
    """Name -> model of every schema: the two files, and each role's variables."""
    return {"profile": Profile, "bench": BenchProfile, **variables.ROLES}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema `name`. Raises KeyError for an unknown name."""
    return of(models()[name], name)


def of(model: type[pydantic.BaseModel], name: str) -> dict[str, Any]:
    """The JSON Schema of any model."""
    return {"$schema": DIALECT, "$id": f"rackwell.{name}/1", **model.model_json_schema()}


class Published:
    """The schemas of documents that others read, a file ``rackwell.<name>.json`` each."""

    def __init__(self, models: Mapping[str, type[pydantic.BaseModel]]) -> None:
        self._models = models

    def schema(self, name: str) -> dict[str, Any]:
        """The JSON Schema of document `name`. Raises KeyError for an unknown one."""
        return of(self._models[name], name)

    def text(self, name: str) -> str:
        """The file of that schema."""
        return json.dumps(self.schema(name), indent=1, ensure_ascii=False) + "\n"

    def write(self, directory: Path) -> None:
        """Write every schema to `directory`. Raises OSError."""
        for name in self._models:
            (directory / f"rackwell.{name}.json").write_text(self.text(name), encoding="utf-8")
