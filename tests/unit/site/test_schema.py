# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import jsonschema
import pytest
import yaml
from sitemaker import SITE

from rackwell.site import schema


@pytest.mark.parametrize("name", sorted(schema.models()))
def test_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema(name))


@pytest.mark.parametrize(("name", "file"), [("profile", "profiles/toy.yml"), ("bench", "bench/quick.yml")])
def test_schema_accepts_what_check_accepts_and_refuses_an_unknown_key(name: str, file: str) -> None:
    data = yaml.safe_load(SITE[file])
    validator = jsonschema.Draft202012Validator(schema.schema(name))
    validator.validate(data)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**data, "nope": 1})
