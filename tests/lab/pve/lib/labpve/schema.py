# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). Option names and values, checked against the schema of the Proxmox VE API.

The schema is `api_schema.json` beside the package; `extract_schema.py` takes it from the PyPI package fakepve when the
laboratory is set up, so that it is never a hand-made list.
"""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import Any

from .errors import UsageError

SCHEMA_FILE = Path(__file__).resolve().parent.parent / "api_schema.json"
TRUE, FALSE = ("1", "on", "yes", "true"), ("0", "off", "no", "false")

Properties = dict[str, Any]


def load(path: Path = SCHEMA_FILE) -> dict[str, Properties]:
    """``{"create": {option: schema}, "set": {...}}``."""
    if not path.exists():
        raise SystemExit(f"STAND-IN pct/pvesh: {path} is missing: set the laboratory up again (rackwell lab up)")
    data: dict[str, Properties] = json.loads(path.read_text())
    return data


def find(properties: Properties, option: str) -> Properties | None:
    """The schema of an option; ``dev3`` is found under ``dev[n]``."""
    if option in properties and "[n]" not in option:
        found: Properties = properties[option]
        return found
    indexed = re.fullmatch(r"([a-z]+)(0|[1-9]\d*)", option)
    if indexed and f"{indexed[1]}[n]" in properties:
        limit = 32 if indexed[1] == "net" else 256
        if int(indexed[2]) < limit:
            numbered: Properties = properties[f"{indexed[1]}[n]"]
            return numbered
    return None


def parse_properties(text: str, sub: Properties) -> dict[str, str]:
    """A property string such as ``/dev/nvidia0,mode=0666``, checked against its sub-schema.

    Raises:
        ValueError: with PVE's words.
    """
    default_key = next((key for key, spec in sub.items() if spec.get("default_key")), None)
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            if default_key is None:
                raise ValueError(
                    f"invalid format - value without key, but schema does not define a default key: {part}"
                )
            if default_key in found:
                raise ValueError("invalid format - duplicate key in comma-separated list property: " + default_key)
            key, value = default_key, part
        if key not in sub:
            raise ValueError(
                f"invalid format - format error\n{key}: property is not defined in schema and the schema "
                "does not allow additional properties"
            )
        if key in found:
            raise ValueError(f"invalid format - duplicate key in comma-separated list property: {key}")
        problem = check_value(value, sub[key])
        if problem:
            raise ValueError(f"invalid format - format error\n{key}: {problem}")
        found[key] = normal_boolean(value) if sub[key].get("type") == "boolean" else value
    for key, spec in sub.items():
        if not spec.get("optional") and key not in found:
            raise ValueError(f"invalid format - format error\n{key}: property is missing and it is not optional")
    return found


def print_properties(values: dict[str, str], sub: Properties, first: str = "") -> str:
    """The order in which PVE writes a property string: the default key bare, ``first``, then by name."""
    default_key = next((key for key, spec in sub.items() if spec.get("default_key")), None)
    parts = [values[default_key]] if default_key and default_key in values else []
    rest = sorted((key for key in values if key != default_key), key=lambda key: (key != first, key))
    return ",".join(parts + [f"{key}={values[key]}" for key in rest])


def normal_boolean(value: str) -> str:
    """``on`` and ``yes`` are stored as ``1``."""
    return "1" if value.lower() in TRUE else "0"


def check_value(value: str, spec: Properties) -> str | None:
    """PVE's message for a bad value, or None."""
    kind = spec.get("type", "string")
    wrong = f"type check ('{kind}') failed - got '{value}'"
    if kind == "boolean":
        return None if value.lower() in TRUE + FALSE else wrong
    if kind in ("integer", "number"):
        if not re.fullmatch(r"[+-]?\d+" if kind == "integer" else r"[+-]?(\d+\.?\d*|\.\d+)", value):
            return wrong
        if "minimum" in spec and float(value) < float(spec["minimum"]):
            return f"value must have a minimum value of {spec['minimum']}"
        if "maximum" in spec and float(value) > float(spec["maximum"]):
            return f"value must have a maximum value of {spec['maximum']}"
        return None
    if "enum" in spec and value not in spec["enum"]:
        return f"value '{value}' does not have a value in the enumeration '{', '.join(spec['enum'])}'"
    if "pattern" in spec and not re.fullmatch(re.sub(r"\(\?\^:", "(?:", spec["pattern"]), value):
        return "value does not match the regex pattern"
    if len(value) > int(spec.get("maxLength", 1 << 30)):
        return f"value may only be {spec['maxLength']} characters long"
    if len(value) < int(spec.get("minLength", 0)):
        return f"value must be at least {spec['minLength']} characters long"
    return _check_format(value, spec.get("format"))


def _is_cidr(value: str) -> bool:
    try:
        return "/" in value and bool(ipaddress.IPv4Interface(value))
    except ValueError:
        return False


def _is_address(value: str) -> bool:
    try:
        return bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _is_dns_name(value: str) -> bool:
    return all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?", label) for label in value.split("."))


_FORMATS = {
    "dns-name": (_is_dns_name, "value does not look like a valid DNS name"),
    "ipv4": (_is_address, "value does not look like a valid ipv4 address: {}"),
    "pve-ipv4-config": (
        lambda v: v in ("dhcp", "manual") or _is_cidr(v),
        "value does not look like a valid ipv4 network configuration",
    ),
    "lxc-ip-with-ll-iface-list": (
        lambda v: all(map(_is_address, re.split(r"[ ,;]+", v))),
        "value does not look like a valid ip address: {}",
    ),
    "mac-addr": (
        lambda v: bool(re.fullmatch(r"[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5}", v)),
        "value does not look like a valid unicast MAC address",
    ),
    "pve-lxc-dev-string": (
        lambda v: v.startswith("/dev/") and not re.search(r"/\.\.?(/|$)", v),
        "Not a valid device path",
    ),
    "pve-lxc-mp-string": (
        lambda v: not (v.startswith("/") and re.search(r"/\.\.?(/|$)", v)),
        "{} - not a valid mount point path",
    ),
    "pve-tag-list": (
        lambda v: all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", t) for t in re.split(r"[;, ]+", v) if t),
        "invalid characters in tag",
    ),
    "disk-size": (
        lambda v: bool(re.fullmatch(r"\d+(\.\d+)?[KMGT]?", v)),
        "value does not look like a valid disk size: {}",
    ),
}


def _check_format(value: str, form: Any) -> str | None:
    if isinstance(form, dict):
        try:
            parse_properties(value, form)
        except ValueError as error:
            return str(error)
    elif form in _FORMATS:
        accept, message = _FORMATS[form]
        if not accept(value):
            return message.format(value)
    return None


def check(options: dict[str, str], properties: Properties) -> dict[str, str]:
    """Options as PVE stores them: booleans as 0/1, property strings in PVE's order.

    Raises:
        UsageError: an unknown option, or values that the schema refuses (all of them are named).
    """
    unknown = [f"Unknown option: {name}" for name in options if find(properties, name) is None]
    if unknown:
        raise UsageError(unknown, unknown=True)
    problems, stored = [], {}
    for name in sorted(options):
        spec = find(properties, name) or {}
        problem = check_value(options[name], spec)
        if problem:
            problems.append(f"{name}: {problem}")
        elif isinstance(spec.get("format"), dict):
            values = parse_properties(options[name], spec["format"])
            stored[name] = print_properties(values, spec["format"], "name")
        elif spec.get("type") == "boolean":
            stored[name] = normal_boolean(options[name])
        elif spec.get("format") == "pve-tag-list":
            stored[name] = ";".join(sorted({tag.lower() for tag in re.split(r"[;, ]+", options[name]) if tag}))
        else:
            stored[name] = options[name]
    if problems:
        raise UsageError(problems)
    return stored
