# SPDX-License-Identifier: Apache-2.0
"""The keys of the proxy in front of the engine: what may be one, and the file that nginx reads them from."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: what a bearer token may consist of by its standard; none of it means anything to nginx
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SHORTEST, LONGEST = 20, 256


class ApiKeyError(ValueError):
    """A key that cannot be one. The text never holds a key."""

    def __init__(self, what: str, fix: str = "make one: openssl rand -hex 32") -> None:
        super().__init__(what)
        self.fix = fix


def read_file(text: str) -> dict[str, str]:
    """Keys in a file of lines ``NAME KEY``; empty lines and such that begin with ``#`` are left out.

    Raises:
        ApiKeyError: a line is something else, or a name is there twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 2:
            raise ApiKeyError("line %d of the keys is not NAME KEY" % number, "")
        if parts[0] in found:
            raise ApiKeyError("line %d of the keys names %s again" % (number, _shown(parts[0])), "name each once")
        found[parts[0]] = parts[1]
    return found


def check(keys: Mapping[str, str]) -> None:
    """Hold keys against what nginx and clients can handle.

    Raises:
        ApiKeyError: there is none, or one is too short, too long, has other characters, or is there twice.
    """
    if not keys:
        raise ApiKeyError("there is no key, so that nobody could ask", "set api_proxy_keys or api_proxy_keys_file")
    seen: dict[str, str] = {}
    for name, key in keys.items():
        if not _NAME.fullmatch(name):
            raise ApiKeyError("a name of a key has other characters than letters, digits, '.', '_' and '-'")
        if not isinstance(key, str) or not _TOKEN.fullmatch(key):
            raise ApiKeyError("the key of %s has other characters than letters, digits and ._~+/=-" % name)
        if not SHORTEST <= len(key) <= LONGEST:
            raise ApiKeyError(
                "the key of %s has %d characters; %d to %d are taken" % (name, len(key), SHORTEST, LONGEST)
            )
        # nginx looks a key up without regard to case, and then compares it with regard to case
        other = seen.setdefault(key.lower(), name)
        if other != name:
            raise ApiKeyError("%s and %s have the same key (but for the case of letters)" % (other, name))


def render(keys: Mapping[str, str], engine_key: str = "") -> str:
    """The file with the keys, for nginx.

    A key is found by the hash of the whole header, so that how long it takes tells nothing of how much of a guess is
    right; that lookup is blind to case, so what it finds is then compared exactly. That comparison, which ends at the
    first difference, is only come to with a key that is right but for the case of its letters.

    Args:
        engine_key: what the engine itself asks for; never told to clients.
    """
    names = sorted(keys)
    lines = ["# Written by rackwell: keys. For root alone."]
    lines += ["map $http_authorization $api_candidate {", '    default "";']
    lines += ['    "bearer %s" "%s";' % (keys[name].lower(), name) for name in names]
    lines += ["}", 'map "$api_candidate $http_authorization" $api_client {', '    default "";']
    lines += ['    "~^%s (?i:bearer) %s$" "%s";' % (_exact(name), _exact(keys[name]), name) for name in names]
    authorization = "Bearer %s" % engine_key if engine_key else ""
    lines += ["}", 'map "" $api_engine_authorization {', '    default "%s";' % authorization, "}", ""]
    return "\n".join(lines)


def check_engine(key: str) -> None:
    """Hold the engine's own key against what can be sent. Raises ApiKeyError."""
    if key and not _TOKEN.fullmatch(key):
        raise ApiKeyError("the engine's own api-key has other characters than letters, digits and ._~+/=-")


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What a diff may tell of the keys: names alone."""
    told = ["key of %s: new" % name for name in sorted(set(after) - set(before))]
    told += ["key of %s: gone" % name for name in sorted(set(before) - set(after))]
    told += ["key of %s: another" % name for name in sorted(set(before) & set(after)) if before[name] != after[name]]
    return told


def _exact(text: str) -> str:
    return re.sub(r"([.+~/=-])", r"\\\1", text)


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else "a name"
