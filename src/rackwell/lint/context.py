# SPDX-License-Identifier: Apache-2.0
"""What a rule can ask about: one profile, the build it runs on, and the machine as far as it is declared or known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from rackwell.lint.expression import ExpressionError
from rackwell.lint.tables import Table

Pointer = tuple[str | int, ...]
LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
"""NCCL_P2P_LEVEL from the nearest to the farthest; NCCL takes their numbers, too."""


def _nowhere(pointer: Pointer) -> str:
    return ".".join(map(str, pointer))


@dataclasses.dataclass(frozen=True)
class Context:
    """One profile with its build.

    Attributes:
        role: ``server``, or ``bench-client`` for the build of the benchmark's client, which has no profile.
        sglang, flashinfer: versions; None when the build does not say.
        table: the options and variables of this SGLang; None when there is no telling.
        flashinfer_table: the variables of this FlashInfer.
        flags, environment, limits, server: the profile's.
        model: what is known of the model, from ``catalog/models`` or ``SITE/models``; empty when nothing is.
        gpu: `architecture` ("sm120"), `memory_gib`, `links` ("pcie", "nvlink"), and `count` of the container.
        patches: names of the build's patches. added: options that these patches bring.
        packages: project -> version or specifier, from the build's requirements, sources and lock.
        machine: `p2p_level` (the farthest level between two of its GPUs, from its recorded baseline), `driver`,
            `template`, and `bench_tokens` (input and output of one request of its benchmark).
        probe_environment: the environment in which the collectives are measured.
        line: ``file:line`` of a pointer that begins with ``flags``, ``environment``, ..., or with ``build``.
    """

    role: str = "server"
    sglang: str | None = None
    flashinfer: str | None = None
    python: str | None = None
    table: Table | None = None
    flashinfer_table: Table | None = None
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    server: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sane: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gpu: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patches: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dependencies: str = "full"
    untabled: str = ""
    probe_environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    line: Callable[[Pointer], str] = _nowhere

    def flag(self, name: str, default: Any = None) -> Any:
        """The value of a flag by any of its names; `default` when it is absent or false."""
        for other in self.names_of(name):
            if other in self.flags and self.flags[other] is not False:
                return self.flags[other]
        return default

    def names_of(self, name: str) -> tuple[str, ...]:
        """All names of an option, without dashes."""
        option = self.table.by_name.get(name) if self.table is not None else None
        if option is None:
            return (name, *_ALIASES.get(name, ()))
        return tuple(dict.fromkeys((name, *(other.lstrip("-") for other in option.names))))

    def pointer_of(self, name: str) -> Pointer:
        """Where a flag stands, by any of its names; where flags stand when it is absent."""
        given = next((other for other in self.names_of(name) if other in self.flags), None)
        return ("flags", given) if given is not None else ("flags", name)

    def version_in(self, project: str, versions: str) -> bool:
        """Whether the version of `project` is known and in the range."""
        known = {"sglang": self.sglang, "flashinfer": self.flashinfer}.get(project, self.packages.get(project))
        return known is not None and in_range(known.removeprefix("=="), versions)

    @property
    def kv_dtype(self) -> str:
        """The dtype that the KV cache comes to: ``auto`` is fp8_e4m3 for sparse attention on Blackwell."""
        given = str(self.flag("kv-cache-dtype", "auto"))
        blackwell = str(self.gpu.get("architecture", "")).startswith(("sm10", "sm12"))
        if given == "auto" and self.model.get("sparse_attention"):
            return "fp8_e4m3" if blackwell else "bfloat16"
        return "bfloat16" if given == "bf16" else given

    @cached_property
    def scope(self) -> dict[str, Any]:
        """The names that conditions know."""
        prefill = self.flag("prefill-attention-backend", self.flag("attention-backend"))
        decode = self.flag("decode-attention-backend", self.flag("attention-backend"))
        return {
            "flag": self.flag,
            "given": lambda name: any(other in self.flags for other in self.names_of(name)),
            "env": lambda name, default=None: self.environment.get(name, default),
            "patch": lambda name: name in self.patches,
            "sglang": lambda versions: self.version_in("sglang", versions),
            "flashinfer": lambda versions: self.version_in("flashinfer", versions),
            "package": lambda name, versions="": (
                name in self.packages and (not versions or self.version_in(name, versions))
            ),
            "pinned": lambda name: self.table.pinned(name) if self.table is not None else "",
            "takes": lambda name: self.table is not None and name in self.table.by_name,
            "minor": lambda text: ".".join(str(text or "").split(".")[:2]),
            "number": number,
            "begins": lambda text, start: isinstance(text, str) and text.startswith(start),
            "has": lambda text, part: isinstance(text, str) and isinstance(part, str) and part in text,
            "version": lambda name: self.packages.get(name, "").removeprefix("=="),
            "gpus_used": lambda: _count(self.flag("tp-size", 1)) * _count(self.flag("pp-size", 1)) * self._replicas(),
            "level": level,
            "model": self.model,
            "gpu": self.gpu,
            "limits": self.limits,
            "server": self.server,
            "sane": self.sane,
            "machine": self.machine,
            "versions": {"sglang": self.sglang, "flashinfer": self.flashinfer, "python": self.python},
            "attention": {"prefill": prefill, "decode": decode, "any": [prefill, decode]},
            "kv": {"dtype": self.kv_dtype},
            "build": {"dependencies": self.dependencies},
            "role": self.role,
        }

    def _replicas(self) -> int:
        attention_only = self.flag("enable-dp-attention") or self.flag("attn-dp-size")
        return 1 if attention_only else _count(self.flag("dp-size", 1))


_ALIASES = {
    "tp-size": ("tensor-parallel-size", "tp"),
    "pp-size": ("pipeline-parallel-size", "pp"),
    "dp-size": ("data-parallel-size", "dp"),
    "ep-size": ("expert-parallel-size", "ep"),
}
"""For releases without a table."""


def in_range(version: str, versions: str) -> bool:
    """Whether `version` is in a range such as ``>=0.5.9,<0.5.13``; post-releases belong to their release."""
    try:
        return SpecifierSet(versions, prereleases=True).contains(Version(version))
    except InvalidVersion:
        return False
    except InvalidSpecifier as error:
        raise ExpressionError(f"'{versions}' is not a range of versions") from error


def level(text: Any) -> int | None:
    """The rank of an NCCL P2P level by its name or number; None when it is none."""
    if text is None:
        return None
    word = str(text).upper()
    if word in LEVELS:
        return LEVELS.index(word)
    return int(word) if word.isdigit() and int(word) < len(LEVELS) else None


def number(value: Any) -> float | None:
    """`value` as a number; None when it is none."""
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _count(value: Any) -> int:
    given = number(value)
    return int(given) if given and given >= 1 else 1
