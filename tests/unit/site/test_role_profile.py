# SPDX-License-Identifier: Apache-2.0
"""The role takes every profile that the command line lets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import yaml

from rackwell.site.profile import Profile

VARS = Path(__file__).parents[3] / "roles/inference_server/vars/main.yml"


def test_the_role_knows_each_key_of_a_profile() -> None:
    def keys(model: type[pydantic.BaseModel]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, field in model.model_fields.items():
            kind = field.annotation
            nested = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
            found[name] = keys(kind) if nested else {}  # type: ignore[arg-type]
        return found

    def taken(spec: dict[str, Any]) -> dict[str, Any]:
        return {name: taken(one.get("options") or {}) for name, one in spec.items()}

    spec = yaml.safe_load(VARS.read_text())["__inference_server_profile_spec"]
    assert taken(spec) == keys(Profile)
