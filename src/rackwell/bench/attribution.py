# SPDX-License-Identifier: Apache-2.0
"""What differs between two runs, and whether a difference in speed can be laid to one part."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rackwell.bench.result import BenchResult

OFF, UNSET = "off", "(default)"
#: of the profile: they decide when a server counts as started, not how fast it is
_PROFILE_IGNORED = frozenset({"limits", "sane", "server", "flags", "environment", "model", "name", "description"})
#: of the environment: names of an occasion, or told elsewhere
_ENVIRONMENT_IGNORED = frozenset(
    {
        "boot_id",
        "matrix",
        "unit_sha256",
        "server_invocation",
        "server_environment",
        "environment_sha256",
        "server_release",
        "server_state",
        "driver",
        "model_config",
    }
)
#: of the sweep: which loads there are, and how long one may take; loads are compared one by one
_SWEEP_IGNORED = frozenset(
    {"concurrency", "input_tokens", "output_tokens", "lengths", "repeats", "point_timeout", "seed", "name"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One part that differs. ``part``: such as ``flag``, ``patch``, ``driver``; ``name``: which of them."""

    part: str
    name: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """Such as ``--x 4 -> 8``."""
        return f"{self.name} {self.before} -> {self.after}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, with the text that people see."""
        return {**dataclasses.asdict(self), "text": self.text}


@dataclasses.dataclass(frozen=True, slots=True)
class Attribution:
    """What may be the cause.

    Attributes:
        verdict: ``cause`` (one part differs), ``refused`` (several do, or parts are not known), ``none``.
        text: in one sentence. unknown: parts that one run or both do not tell. suggestion: what to do.
    """

    verdict: str
    text: str
    changes: list[Change]
    unknown: list[str]
    suggestion: str = ""

    @property
    def cause(self) -> Change | None:
        """The only part that differs."""
        return self.changes[0] if self.verdict == "cause" else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "verdict": self.verdict,
            "text": self.text,
            "cause": self.cause.as_dict() if self.cause else None,
            "changes": [change.as_dict() for change in self.changes],
            "unknown": self.unknown,
            "suggestion": self.suggestion,
        }


def attribute(a: BenchResult, b: BenchResult) -> Attribution:
    """What differs from `a` to `b`, and whether it is one part alone."""
    changes = list(differences(a, b))
    missing = list(unknown(a, b))
    told = "; ".join(change.text for change in changes)
    if len(changes) > 1:
        return Attribution(
            "refused",
            f"{len(changes)} things changed: {told}",
            changes,
            missing,
            "change one at a time: `rackwell bench matrix` measures a profile's variants by themselves",
        )
    if missing:
        known = f"differs in: {told}; but " if changes else "nothing that both runs tell of differs; but "
        return Attribution(
            "refused",
            f"{known}not known: {', '.join(missing)}",
            changes,
            missing,
            "measure both with `rackwell bench`, which records every part",
        )
    if changes:
        return Attribution("cause", f"differs only in: {told}", changes, [])
    return Attribution(
        "none", "nothing that is recorded differs: what is left is noise, or a part that is not recorded", [], []
    )


def differences(a: BenchResult, b: BenchResult) -> Iterator[Change]:
    """Every recorded part that both runs tell of and that is not the same."""
    yield from _release(a, b)
    yield from _profile(a, b)
    yield from _machine(a, b)
    yield from _measuring(a, b)


def unknown(a: BenchResult, b: BenchResult) -> Iterator[str]:
    """Parts that a run does not tell of."""
    parts: tuple[tuple[str, Callable[[BenchResult], bool]], ...] = (
        ("release and patches", lambda r: r.release is not None),
        ("profile", lambda r: bool(r.profile_content or (r.profile and r.profile.flags))),
        ("GPUs", lambda r: bool(r.hardware.gpus)),
        ("driver", lambda r: _driver(r) is not None),
        ("kernel and variables", lambda r: bool(r.environment)),
        ("load generator", lambda r: r.client.version is not None),
    )
    for name, known in parts:
        without = [r.run_id for r in (a, b) if not known(r)]
        if without:
            yield f"{name} ({'neither run' if len(without) == 2 else without[0]})"
    if a.environment and b.environment:
        for key in sorted((set(a.environment) ^ set(b.environment)) - _ENVIRONMENT_IGNORED):
            yield f"{key} ({(b if key in a.environment else a).run_id})"


def _release(a: BenchResult, b: BenchResult) -> Iterator[Change]:
    if a.release is None or b.release is None:
        return
    found = [
        Change("version", project, _said(a.release.sources.get(project)), _said(b.release.sources.get(project)))
        for project in _either(a.release.sources, b.release.sources)
        if a.release.sources.get(project) != b.release.sources.get(project)
    ]
    before, after = set(a.release.patches), set(b.release.patches)
    found += [
        Change("patch", f"patch {patch}", *(("applied", "gone") if patch in before else ("absent", "applied")))
        for patch in sorted(before ^ after)
    ]
    if not found and before == after and a.release.patches != b.release.patches:
        found = [Change("patch", "order of patches", ", ".join(a.release.patches), ", ".join(b.release.patches))]
    if not found and a.release.digest != b.release.digest:
        # other packages, the compiler, or the text of a patch
        found = [Change("release", "content of the release", a.release.digest[:12], b.release.digest[:12])]
    yield from found


def _profile(a: BenchResult, b: BenchResult) -> Iterator[Change]:
    flags = [r.profile_content.get("flags") or (r.profile.flags if r.profile else {}) for r in (a, b)]
    if all(flags):
        for name in _either(*flags):
            before, after = flags[0].get(name), flags[1].get(name)
            if before != after:
                switch = all(value in (None, True, False) for value in (before, after))
                yield Change("flag", f"--{name}", _flag(before, switch), _flag(after, switch))
    variables = [_variables(r) for r in (a, b)]
    if all(r.profile_content or r.environment for r in (a, b)):
        for name in _either(*variables):
            if variables[0].get(name) != variables[1].get(name):
                yield Change("variable", name, _said(variables[0].get(name)), _said(variables[1].get(name)))
    models = [_model(r) for r in (a, b)]
    for key in sorted(models[0].keys() & models[1].keys()):
        if models[0][key] != models[1][key]:
            yield Change("model", f"model {key}", _said(models[0][key]), _said(models[1][key]))
    if a.profile_content and b.profile_content:
        for key in _either(a.profile_content, b.profile_content):
            before, after = a.profile_content.get(key), b.profile_content.get(key)
            if key not in _PROFILE_IGNORED and before != after:
                yield Change("profile", key, _said(before), _said(after))


def _model(r: BenchResult) -> dict[str, Any]:
    """Repository and commit where they are known, else the directory."""
    if r.profile is None:
        return {}
    if r.profile.repository:
        return {"repository": r.profile.repository, "revision": r.profile.revision}
    return {"directory": r.profile.model_path} if r.profile.model_path else {}


def _variables(r: BenchResult) -> dict[str, Any]:
    """What the server really ran with, else what the profile says."""
    seen = r.environment.get("server_environment")
    return dict(seen if isinstance(seen, dict) else r.profile_content.get("environment") or {})


def _machine(a: BenchResult, b: BenchResult) -> Iterator[Change]:
    if a.host != b.host:
        yield Change("host", "host", a.host, b.host)
    elif a.container != b.container:
        yield Change("container", "container", a.container, b.container)
    yield from _gpus(a, b)
    drivers = _driver(a), _driver(b)
    if None not in drivers and drivers[0] != drivers[1]:
        yield Change("driver", "driver", str(drivers[0]), str(drivers[1]))
    hidden = _ENVIRONMENT_IGNORED | ({"power_limits_w"} if a.hardware.gpus and b.hardware.gpus else set())
    # another machine has another processor as a matter of course: it belongs to "host"
    if a.host != b.host:
        hidden = hidden | {"cpu"}
    for key in sorted((a.environment.keys() & b.environment.keys()) - hidden):
        if a.environment[key] != b.environment[key]:
            yield Change("environment", key, _said(a.environment[key]), _said(b.environment[key]))
    verdicts = [r.topology.verdict if r.topology else None for r in (a, b)]
    if all(verdicts) and verdicts[0] != verdicts[1]:
        yield Change("topology", "verdict on the GPUs' links", _said(verdicts[0]), _said(verdicts[1]))


def _gpus(a: BenchResult, b: BenchResult) -> Iterator[Change]:
    if not a.hardware.gpus or not b.hardware.gpus:
        return
    if a.hardware.summary != b.hardware.summary:
        yield Change("gpus", "GPUs", a.hardware.summary, b.hardware.summary)
    elif a.host == b.host and None not in _uuids(a) | _uuids(b) and _uuids(a) != _uuids(b):
        yield Change("gpus", "GPUs", "some of this host", "others of it")
    limits = [sorted({g.power_limit_w for g in r.hardware.gpus if g.power_limit_w}) for r in (a, b)]
    if all(limits) and limits[0] != limits[1]:
        yield Change("power-limit", "power limit", *(f"{'/'.join(f'{w:g}' for w in one)} W" for one in limits))


def _measuring(a: BenchResult, b: BenchResult) -> Iterator[Change]:
    if a.client.version and b.client.version and a.client != b.client:
        yield Change("client", "load generator", *(f"{r.client.name} {r.client.version}" for r in (a, b)))
    if a.sweep and b.sweep:
        for key in _either(a.sweep, b.sweep):
            if key not in _SWEEP_IGNORED and a.sweep.get(key) != b.sweep.get(key):
                yield Change("sweep", f"sweep {key}", _said(a.sweep.get(key)), _said(b.sweep.get(key)))


def _driver(r: BenchResult) -> str | None:
    return r.hardware.driver_version or r.environment.get("driver")


def _uuids(r: BenchResult) -> set[str | None]:
    return {gpu.uuid for gpu in r.hardware.gpus}


def _either(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return sorted(set(a) | set(b))


def _flag(value: Any, switch: bool) -> str:
    if switch:
        return "on" if value is True else OFF
    return UNSET if value is None else _said(value)


def _said(value: Any) -> str:
    if value is None:
        return "(not set)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
