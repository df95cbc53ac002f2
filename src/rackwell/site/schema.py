# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of what people write, for editors: ``rackwell check --schema NAME``."""

from __future__ import annotations

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
