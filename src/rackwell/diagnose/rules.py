# SPDX-License-Identifier: Apache-2.0
"""The rules: one file each in ``catalog/rules/diagnose/AREA``. To add one is to add a file (docs/diagnose-rules.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml

from rackwell.diagnose.conditions import When
from rackwell.diagnose.tree import Match, MatchError
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import yamlsource
from rackwell.site.validation import validate

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without its C part
    from yaml import SafeLoader  # type: ignore[assignment]

Severity = Literal["blocker", "degraded", "wrong-output", "noise"]
Confidence = Literal["high", "likely", "possible"]
Identifier = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Text = Annotated[str, pydantic.Field(min_length=1)]

#: The areas in the order in which they are read: from the hardware up.
AREAS = {
    "driver": "Driver and GPU", "pve": "Proxmox VE and containers", "p2p": "PCIe and peer-to-peer", "cuda": "CUDA",
    "memory": "Host memory", "network": "Network", "systemd": "systemd", "security": "Security",
    "kernel-build": "Compilers and JIT", "nccl": "NCCL", "flashinfer": "FlashInfer", "sglang": "SGLang",
    "model": "Models and weights", "quality": "Quality of answers", "bench": "Benchmarks",
}  # fmt: skip
#: How far up the causal chain the rules of an area stand where they do not say.
RANKS = {
    "driver": 80, "pve": 70, "p2p": 65, "cuda": 60, "memory": 60, "network": 55, "systemd": 50, "nccl": 50,
    "kernel-build": 46, "model": 44, "flashinfer": 42, "sglang": 40, "quality": 35, "security": 30, "bench": 20,
}  # fmt: skip
SYMPTOM = 15
"""Rules up to this rank name symptoms: anything better that is found explains them."""

_HOLE = re.compile(r"\$\{([^{}]*)\}")
_GROUP = re.compile(r"\(\?P?<([A-Za-z_]\w*)>")


CHECKED: dict[str, Any] = {}
"""As the context of a validation: the same was validated before, and its expressions are not compiled again."""


class Examples(pydantic.BaseModel):
    """Texts that the rule must, and must not find something in."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    match: Annotated[list[Text], pydantic.Field(min_length=1)]
    clean: list[Text] = pydantic.Field(default_factory=list)


class Rule(pydantic.BaseModel):
    """One rule.

    Attributes:
        rank: 0 to 100; the higher, the nearer to the root.
        fatal: seen during a start, the start will not succeed.
        lasting: what it says of the machine stays true when a server is started anew, until the machine is.
        first: nothing that others explain is: see `explains`.
        explains: ids of rules (``*`` stands for anything) that follow from it.
        lint: the code of the lint rule that sees the same cause in a declaration.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    id: Identifier
    area: Literal[
        "pve", "driver", "kernel-build", "cuda", "p2p", "memory", "network", "security", "systemd", "sglang",
        "flashinfer", "nccl", "model", "quality", "bench",
    ]  # fmt: skip
    title: Text
    severity: Severity
    confidence: Confidence = "high"
    rank: Annotated[int, pydantic.Field(ge=0, le=100)] = -1
    fatal: bool = False
    lasting: bool | None = None
    match: Any
    when: When = When()
    cause: Text
    remedy: Text
    naive: str = pydantic.Field(default="", alias="not")
    explains: list[Annotated[str, pydantic.Field(pattern=r"^[a-z0-9*-]+$")]] = pydantic.Field(default_factory=list)
    evidence: list[Text] = pydantic.Field(default_factory=list)
    lint: Annotated[str, pydantic.Field(pattern=r"^(RW[1-9][0-9]{2})?$")] = ""
    examples: Examples

    _tree: Match = pydantic.PrivateAttr()

    @property
    def tree(self) -> Match:
        """`match`, parsed."""
        return self._tree

    @property
    def level(self) -> int:
        """`rank`, or that of the area."""
        return self.rank if self.rank >= 0 else RANKS[self.area]

    @property
    def stays(self) -> bool:
        """`lasting`, or that of the area."""
        return self.lasting if self.lasting is not None else self.area in {"driver", "p2p"}

    @pydantic.field_validator("match")
    @classmethod
    def _match_holds(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if info.context is CHECKED:
            return value
        try:
            Match.parse(value).check()
        except MatchError as error:
            raise ValueError(str(error)) from error
        return value

    @pydantic.model_validator(mode="after")
    def _whole(self, info: pydantic.ValidationInfo) -> Rule:
        self._tree = Match.parse(self.match)
        if info.context is CHECKED:
            return self
        groups = {name for leaf in self._tree.leaves for name in _GROUP.findall(leaf.pattern)}
        for text in (self.cause, self.remedy, self.naive, self.title):
            for hole in _HOLE.findall(text):
                if hole not in groups:
                    raise ValueError(f"${{{hole}}} is no named group of `match`")
        for name in (name for pair in (*self._tree.differ, *self._tree.apart) for name in pair):
            if name not in groups:
                raise ValueError(f"`differ` or `apart`: {name} is no named group of `match`")
        if self.fatal:
            _for_hosts(self._tree)
        if self.severity == "noise" and self.explains:
            raise ValueError("what is normal explains nothing")
        return self


def _for_hosts(tree: Match) -> None:
    """Fatal rules are also looked for on the hosts, by Python's own expressions. Raises ValueError."""
    for leaf in (*tree.leaves, *tree.none):
        try:
            re.compile(leaf.pattern)
        except re.error as error:
            raise ValueError(f"'{leaf.pattern}' of a fatal rule is no expression of Python: {error}") from error


def filled(text: str, values: dict[str, str]) -> str:
    """`text` in one line, its ``${name}`` filled in; what no line gave is shown as ``?``."""
    return " ".join(_HOLE.sub(lambda found: values.get(found[1]) or "?", text).split())


def folder(catalog: Path) -> Path:
    """Where the rules lie."""
    return catalog / "rules" / "diagnose"


def load_rule(path: Path) -> Rule:
    """Read one rule, with file and line for whatever is wrong in it.

    Raises:
        RackwellError: it does not hold, or its file is named after another id or stands in another area (exit 2).
    """
    rule = validate(Rule, yamlsource.load(path), "rule")
    _named(rule, path)
    return rule


def _named(rule: Rule, path: Path) -> None:
    if path.stem != rule.id or path.parent.name != rule.area:
        raise _invalid("wrong-name", f"it holds {rule.id}", path, f"name it {rule.area}/{rule.id}.yml")


def files(catalog: Path) -> list[Path]:
    """The files of all rules."""
    return sorted(folder(catalog).glob("*/*.yml"))


def load_rules(catalog: Path) -> list[Rule]:
    """All rules by id, read fast: what is wrong in one is told as `load_rule` tells it.

    Raises:
        RackwellError: one does not hold, or two have one id (exit 2).
    """
    return [rule for rule, _ in load(catalog)]


def load(catalog: Path) -> list[tuple[Rule, Any]]:
    """As `load_rules`, each with the data that it was made of."""
    found: dict[str, tuple[Rule, Any]] = {}
    for path in files(catalog):
        data = None
        try:
            with path.open("rb") as stream:
                data = yaml.load(stream, SafeLoader)
            rule = Rule.model_validate(data)
        except (yaml.YAMLError, pydantic.ValidationError, OSError, RecursionError):
            rule = load_rule(path)
        _named(rule, path)
        if rule.id in found:
            raise _invalid("given-twice", f"{rule.id} is given twice", path, "give it an id of its own")
        found[rule.id] = rule, data
    return [found[name] for name in sorted(found)]


def _invalid(code: str, what: str, path: Path, fix: str) -> RackwellError:
    return RackwellError(Problem(code, f"{path.name}: {what}", str(path), "", fix), ExitCode.INVALID)
