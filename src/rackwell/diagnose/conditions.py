# SPDX-License-Identifier: Apache-2.0
"""`when`: what a rule asks of the facts. What is not known is no hindrance, unless the rule requires it."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from rackwell.diagnose.facts import VERSIONED, Facts

_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True)


def _range(text: str) -> str:
    try:
        SpecifierSet(text, prereleases=True)
    except InvalidSpecifier as error:
        raise ValueError(f"'{text}' is not a range of versions such as >=0.5.9,<0.5.13") from error
    return text


Range = Annotated[str, pydantic.AfterValidator(_range)]


class Declared(pydantic.BaseModel):
    """A flag of the server (without dashes), or a variable of its environment: there, absent, or equal to a value."""

    model_config = _STRICT

    flag: str = ""
    environment: str = ""
    absent: bool = False
    equals: Any = None

    @pydantic.model_validator(mode="after")
    def _one(self) -> Declared:
        if bool(self.flag) == bool(self.environment):
            raise ValueError("names `flag`, or `environment`")
        return self

    def holds(self, facts: Facts) -> bool | None:
        """None when nothing is known."""
        known = facts.flags if self.flag else facts.environment
        if not known:
            return None
        value = known.get(self.flag.replace("-", "_") if self.flag else self.environment)
        unset = value is None or value is False
        if self.absent:
            return unset
        return str(value) == str(self.equals) if self.equals is not None else not unset


class When(pydantic.BaseModel):
    """All that is given must hold.

    Attributes:
        gpu: architectures, such as ``sm120``.
        require: what is not known does not hold.
    """

    model_config = _STRICT

    sglang: Range = ""
    flashinfer: Range = ""
    vllm: Range = ""
    nccl: Range = ""
    driver: Range = ""
    torch: Range = ""
    cuda: Range = ""
    pve: Range = ""
    kernel: Range = ""
    gpu: list[Annotated[str, pydantic.Field(pattern=r"^sm\d{2,3}$")]] = pydantic.Field(default_factory=list)
    profile: Declared | list[Declared] = pydantic.Field(default_factory=list)
    require: bool = False

    def holds(self, facts: Facts) -> bool:
        """Whether the rule applies."""
        held = [self._version(name, facts) for name in VERSIONED if getattr(self, name)]
        if self.gpu:
            held.append(None if not facts.architectures else any(a in self.gpu for a in facts.architectures))
        declared = self.profile if isinstance(self.profile, list) else [self.profile]
        held += [each.holds(facts) for each in declared]
        return all(each is True or (each is None and not self.require) for each in held)

    def _version(self, name: str, facts: Facts) -> bool | None:
        known = facts.versions.get(name)
        if known is None:
            return None
        try:
            return SpecifierSet(getattr(self, name), prereleases=True).contains(Version(known.split("+")[0]))
        except InvalidVersion:
            return None
