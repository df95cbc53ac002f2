# SPDX-License-Identifier: Apache-2.0
"""The rules: one file each in ``catalog/rules/lint``. To add one is to add a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.lint.expression import Expression, ExpressionError, holes
from rackwell.lint.findings import Severity
from rackwell.site import yamlsource
from rackwell.site.validation import validate

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without its C part
    from yaml import SafeLoader  # type: ignore[assignment]

Code = Annotated[str, pydantic.Field(pattern=r"^RW[1-9][0-9]{2}$")]
Text = Annotated[str, pydantic.Field(min_length=1)]
GROUPS = {
    "1": "flags and versions",
    "2": "attention and KV cache",
    "3": "mixture of experts and quantisation",
    "4": "allreduce, NCCL and peer-to-peer",
    "5": "memory and concurrency",
    "6": "environment variables and caches",
    "7": "builds and patches",
    "8": "operation",
}


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Applies(_Strict):
    """Where a rule holds; what is not named is everywhere."""

    sglang: str = ""
    flashinfer: str = ""
    gpu: list[str] = pydantic.Field(default_factory=list)
    role: Literal["server", "bench-client"] = "server"


class Examples(_Strict):
    """Contexts, as `rackwell.lint.example` reads them, that the rule must and must not find something in."""

    match: Annotated[list[dict[str, Any]], pydantic.Field(min_length=1)]
    clean: Annotated[list[dict[str, Any]], pydantic.Field(min_length=1)]


class Page(_Strict):
    """What the reference says in the place of `why` and `fix` that a check fills in."""

    why: str = ""
    fix: str = ""


class Rule(_Strict):
    """One rule.

    Attributes:
        when: a condition (`rackwell.lint.expression`). check: a named function of `rackwell.lint.checks`. One, or both.
        what: the finding in one line, the title when absent; ``${…}`` is filled in, as it is in `why` and `fix`.
        at: what it is about, most telling first: flags by name, or ``environment.X``, ``build.sources.sglang``, ....
        unless: rules that say it already.
    """

    id: Code
    title: Text
    severity: Severity
    applies: Applies = Applies()
    when: str = ""
    check: str = ""
    what: str = ""
    at: list[Text] = pydantic.Field(default_factory=list)
    unless: list[Code] = pydantic.Field(default_factory=list)
    why: Text
    fix: Text
    evidence: Annotated[list[Text], pydantic.Field(min_length=1)]
    page: Page = Page()
    examples: Examples

    _condition: Expression | None = pydantic.PrivateAttr(default=None)

    @property
    def condition(self) -> Expression | None:
        """`when`, parsed."""
        return self._condition

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Rule:
        if not self.when and not self.check:
            raise ValueError("needs `when`, or `check`")
        try:
            if self.when:
                self._condition = Expression(self.when)
            for text in (self.what, self.why, self.fix):
                holes(text)
        except ExpressionError as error:
            raise ValueError(str(error)) from error
        return self


def folder(catalog: Path) -> Path:
    """Where the rules lie."""
    return catalog / "rules" / "lint"


def load_rule(path: Path) -> Rule:
    """Read one rule, with file and line for whatever is wrong in it.

    Raises:
        RackwellError: it does not hold, or its file is named after another code (exit 2).
    """
    rule = validate(Rule, yamlsource.load(path), "rule")
    if not re.match(rf"{rule.id}(-|\.)", path.name):
        problem = Problem(
            "wrong-name", f"{path.name} holds the rule {rule.id}", str(path), "", f"name it {rule.id}-….yml"
        )
        raise RackwellError(problem, ExitCode.INVALID)
    return rule


def load_rules(catalog: Path) -> list[Rule]:
    """All rules by code, read fast: what is wrong in one is told as `load_rule` tells it.

    Raises:
        RackwellError: one does not hold, or two have one code (exit 2).
    """
    found: dict[str, Rule] = {}
    for path in sorted(folder(catalog).glob("*.yml")):
        try:
            with path.open("rb") as stream:
                rule = Rule.model_validate(yaml.load(stream, SafeLoader))
        except (yaml.YAMLError, pydantic.ValidationError, OSError):
            rule = load_rule(path)
        if rule.id in found:
            problem = Problem("given-twice", f"{rule.id} is given twice", str(path), "", "give it a code of its own")
            raise RackwellError(problem, ExitCode.INVALID)
        found[rule.id] = rule
    return [found[code] for code in sorted(found)]
