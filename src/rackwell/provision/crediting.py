# SPDX-License-Identifier: Apache-2.0
"""What a result is credited to: release, profile and sweep, named by digest and told without a secret."""

from __future__ import annotations

import hashlib
import json
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from rackwell.bench.result import ProfileRef, Release
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision.builds import Built
from rackwell.provision.declared import Target
from rackwell.site import yamlsource
from rackwell.site.benchfile import Client

HIDDEN = "***"
_SECRET_FLAG = re.compile(r"(^|-)(api-key|key|password|secret|auth-token|hf-token)$")
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_PROXY = re.compile(r"(://)[^/@\s]+@")
_SHORTEST_SECRET = 6
"""What is shorter is hidden in its place only: it would be blotted out wherever it stands."""


def profile_reference(target: Target) -> ProfileRef:
    """Name and digest of the serving profile; comments and order of keys do not count.

    Results and reports are handed around: the values of flags that hold a secret do not go into them.
    """
    path = target.site.profile_file(target.container)
    profile = target.site.profile(target.container)
    data = yamlsource.load(path).data
    return ProfileRef(
        name=path.stem,
        digest=digest(data),
        model_path=profile.model.path,
        served_name=profile.model.served_name,
        repository=profile.model.repository,
        revision=profile.model.revision,
        flags=_flags(profile.flags),
    )


def profile_content(target: Target) -> dict[str, Any]:
    """The whole serving profile, defaults written out and secrets hidden."""
    content: dict[str, Any] = target.site.profile(target.container).model_dump(mode="json", exclude_none=True)
    content["flags"] = _flags(content["flags"])
    content["environment"] = {name: _variable(name, value) for name, value in content["environment"].items()}
    return content


def secrets(target: Target) -> list[str]:
    """Every value of the serving profile that must be in no result, the longest first."""
    profile = target.site.profile(target.container)

    def found() -> Iterator[Any]:
        for name, value in profile.flags.items():
            if _SECRET_FLAG.search(name):
                yield from value if isinstance(value, list) else [value]
        yield from (value for name, value in profile.environment.items() if _SECRET_NAME.search(name))

    return sorted({text for text in map(str, found()) if len(text) >= _SHORTEST_SECRET}, key=len, reverse=True)


def hide(value: Any, hidden: list[str]) -> Any:
    """`value` (JSON-like) with every occurrence of a secret blotted out: a host's texts may hold one anywhere."""
    if not hidden:
        return value
    if isinstance(value, str):
        for secret in hidden:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, Mapping):
        return {hide(key, hidden): hide(one, hidden) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [hide(one, hidden) for one in value]
    return value


def hide_problems(problems: list[Problem], hidden: list[str]) -> list[Problem]:
    """`problems` without secrets."""
    return [Problem(**hide(problem.as_dict(), hidden)) for problem in problems]


def release_reference(built: Built) -> Release:
    """The server's release, as a result names it."""
    return Release(
        digest=built.digest,
        name=built.build,
        sources={source["project"]: source["version"] for source in built.manifest.get("sources", [])},
        patches=[
            # a risk that was accepted is shown wherever the patch is
            f"{patch['name']} (harmful; accepted: {patch['accept_risk']})" if "accept_risk" in patch else patch["name"]
            for patch in built.manifest.get("patches", [])
        ],
    )


def sweep_content(target: Target, bench: str | None = None, client: str = "") -> dict[str, Any]:
    """What the bench file says, defaults written out; `client` takes the place of the file's.

    Raises:
        RackwellError: the bench file does not hold, or there is no such client (exit 2).
    """
    known = typing.get_args(Client)
    if client and client not in known:
        problem = Problem("usage", f"'{client}' is no load generator", "--client", "", f"name {', '.join(known)}")
        raise RackwellError(problem, ExitCode.INVALID)
    content: dict[str, Any] = target.site.bench(target.container, bench).model_dump(mode="json")
    return {**content, "client": client or content["client"]}


def sweep_digest(target: Target, bench: str | None = None, client: str = "") -> str:
    """Digest of what the bench file says; comments, order of keys and defaults that are written out do not count."""
    return digest(sweep_content(target, bench, client))


def digest(data: Any) -> str:
    """SHA-256 of JSON-like data in one canonical form."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).hexdigest()


def _flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: HIDDEN if _SECRET_FLAG.search(name) else value for name, value in flags.items()}


def _variable(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name):
        return HIDDEN
    return _PROXY.sub(rf"\g<1>{HIDDEN}@", value) if isinstance(value, str) else value
