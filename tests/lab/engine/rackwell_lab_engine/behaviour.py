# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: how it behaves, from ``<model-path>/rackwell-lab-engine.json`` (tests/lab/engine/README.md).

The environment variable ``RACKWELL_LAB_ENGINE`` (JSON text) is laid over the file, so that one profile can fail and the
next, on the same model, not.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rackwell_lab_engine.deaths import DEATHS

FILE = "rackwell-lab-engine.json"
VARIABLE = "RACKWELL_LAB_ENGINE"


class BehaviourError(Exception):
    """The behaviour file is wrong; a laboratory that silently ignores its settings tests nothing."""


@dataclasses.dataclass(frozen=True)
class Faults:
    """What goes wrong. All off by default.

    Attributes:
        die_while_loading: a scheduler raises while loading; text of the exception (true: a usual one).
        die_as: a name of :mod:`deaths`: it ends as the real engine does of that, in its words. With `never_ready` it
            says so and hangs.
        never_ready: ``"closed"``: the port never opens; ``"unhealthy"``: it opens, and /health stays 503.
        hang_after_requests: from the n-th request on nothing is answered any more, health included.
        crash_after_requests: the n-th request kills a scheduler, and it the server.
        fail_requests: every n-th request is answered with an internal error (500).
        output: ``"garbage"``: one character repeated; ``"empty"``: no text; ``"wrong"``: fluent, and not the answer;
            ``"short"``: ends by itself at half of the asked length.
        flush: false: the prefix cache cannot be flushed; answered with 400.
    """

    die_while_loading: bool | str = False
    die_as: str = ""
    never_ready: Literal["", "closed", "unhealthy"] = ""
    hang_after_requests: int | None = None
    crash_after_requests: int | None = None
    fail_requests: int | None = None
    output: Literal["", "garbage", "empty", "wrong", "short"] = ""
    flush: bool = True


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """Speeds and delays; seconds unless said.

    Attributes:
        load_seconds: from launch to the open port. warmup_seconds: from there to healthy.
        health_seconds: how long a /health call takes (the real one: 1). health_timeout: 503 after it when hung.
        drain_poll_seconds: how often the exit after SIGTERM looks whether requests are done (the real one: 5).
        step_ms: time of one decode step by batch size, milliseconds; between the sizes it is interpolated.
        prefill_tokens_per_second: all requests together.
        utilisation: GPU utilisation in percent by batch size; between the sizes it is interpolated.
        exact: ``{"ttft_ms": […], "itl_ms": […]}``: no batching at all. Request number i gets its first token
            ``ttft_ms[i]`` after it came, and its j-th gap is ``itl_ms[i + j]``, both lists taken round and round; each
            token is due at a moment that counts from the request's arrival, so no delay adds up.
        speed: factor on all speeds. adjust: changes of ``speed`` by flags and by the source's text, see the README.
        context_length: tokens, where the model's config.json has no max_position_embeddings.
    """

    load_seconds: float = 2.0
    warmup_seconds: float = 0.3
    health_seconds: float = 0.02
    health_timeout: float = 20.0
    drain_poll_seconds: float = 0.5
    step_ms: Mapping[int, float] = dataclasses.field(default_factory=lambda: {1: 25.0, 16: 40.0, 64: 70.0, 1024: 280.0})
    prefill_tokens_per_second: float = 20000.0
    utilisation: Mapping[int, float] = dataclasses.field(default_factory=lambda: {1: 60.0, 16: 90.0, 64: 98.0})
    exact: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    speed: float = 1.0
    adjust: tuple[Mapping[str, Any], ...] = ()
    context_length: int = 8192
    faults: Faults = dataclasses.field(default_factory=Faults)


_FAULTS = {field.name for field in dataclasses.fields(Faults)}
_SETTINGS = {field.name for field in dataclasses.fields(Behaviour)}
_CURVES = ("step_ms", "utilisation")


def _curve(name: str, points: Any) -> dict[int, float]:
    if not isinstance(points, dict) or not points:
        raise BehaviourError(f"{name}: must map batch sizes to numbers")
    return {int(size): float(value) for size, value in sorted(points.items(), key=lambda item: int(item[0]))}


def _exact(given: Any) -> dict[str, tuple[float, ...]]:
    if not isinstance(given, dict) or set(given) != {"ttft_ms", "itl_ms"} or not all(given.values()):
        raise BehaviourError("exact: must have two lists that are not empty, ttft_ms and itl_ms")
    return {name: tuple(float(value) for value in values) for name, values in given.items()}


def from_dict(data: Mapping[str, Any]) -> Behaviour:
    """Check and build.

    Raises:
        BehaviourError: an unknown setting, or a value of the wrong form.
    """
    unknown = sorted(set(data) - _SETTINGS) + sorted(f"faults.{name}" for name in set(data.get("faults", {})) - _FAULTS)
    if unknown:
        raise BehaviourError(f"unknown settings: {', '.join(unknown)}")
    values = dict(data)
    for name in _CURVES:
        if name in values:
            values[name] = _curve(name, values[name])
    if values.get("exact"):
        values["exact"] = _exact(values["exact"])
    faults = Faults(**values.pop("faults", {}))
    if faults.die_as and faults.die_as not in DEATHS:
        raise BehaviourError(f"faults.die_as: {faults.die_as!r} is none of {', '.join(DEATHS)}")
    if faults.never_ready not in ("", "closed", "unhealthy"):
        raise BehaviourError(f"faults.never_ready: {faults.never_ready!r} is none of closed, unhealthy")
    if faults.output not in ("", "garbage", "empty", "wrong", "short"):
        raise BehaviourError(f"faults.output: {faults.output!r} is none of garbage, empty, wrong, short")
    values["adjust"] = tuple(values.get("adjust", ()))
    return Behaviour(faults=faults, **values)


def read(model_path: Path, environment: Mapping[str, str] | None = None) -> Behaviour:
    """The behaviour for a model: defaults, then its file, then the environment variable.

    Raises:
        BehaviourError: one of them is wrong.
    """
    environment = os.environ if environment is None else environment
    merged: dict[str, Any] = {}
    sources = [(environment.get(VARIABLE, ""), VARIABLE)]
    path = model_path / FILE
    if path.is_file():
        sources.insert(0, (path.read_text(encoding="utf-8"), str(path)))
    for text, where in sources:
        if not text.strip():
            continue
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise BehaviourError(f"{where}: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise BehaviourError(f"{where}: not a JSON object")
        faults = {**merged.get("faults", {}), **data.get("faults", {})}
        merged = {**merged, **data, "faults": faults}
    return from_dict(merged)


def speed_of(behaviour: Behaviour, flags: Mapping[str, Any], package: Path) -> float:
    """The factor on all speeds that these flags and this source give.

    Args:
        flags: parsed server arguments by field name. package: folder of the installed sglang.
    """
    speed = behaviour.speed
    for rule in behaviour.adjust:
        wanted: Mapping[str, Any] = rule.get("flags", {})
        if any(flags.get(name.replace("-", "_")) != value for name, value in wanted.items()):
            continue
        texts: Mapping[str, str] = rule.get("source_contains", {})
        if any(text not in (package / name).read_text(encoding="utf-8") for name, text in texts.items()):
            continue
        speed *= float(rule["speed"])
    return speed


def interpolate(curve: Mapping[int, float], size: int) -> float:
    """Value of a curve at a batch size: straight lines between its points, flat outside."""
    points = sorted(curve.items())
    for (low, low_value), (high, high_value) in itertools.pairwise(points):
        if low <= size <= high:
            return low_value + (high_value - low_value) * (size - low) / (high - low)
    return points[0][1] if size < points[0][0] else points[-1][1]
