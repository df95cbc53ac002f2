# SPDX-License-Identifier: Apache-2.0
"""Takes the option schema of containers out of the PyPI package fakepve (a test dependency).

python extract_schema.py OUT.json      with the interpreter that has fakepve installed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROUTES = {"create": ("/nodes/{node}/lxc", "POST"), "set": ("/nodes/{node}/lxc/{vmid}/config", "PUT")}


def extract() -> dict[str, dict[str, object]]:
    """``{"create": {option: schema}, "set": {option: schema}}``, without the parameters that the path carries."""
    from fakepve import schema

    paths = schema.load().paths
    tables = {}
    for name, (route, method) in ROUTES.items():
        properties = paths[route][method]["parameters"]["properties"]
        tables[name] = {key: spec for key, spec in properties.items() if key not in ("node", "vmid")}
    return tables


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(extract(), indent=1, sort_keys=True) + "\n")
