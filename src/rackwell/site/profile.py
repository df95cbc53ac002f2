# SPDX-License-Identifier: Apache-2.0
"""The serving profile: ``profiles/NAME.yml``."""

from __future__ import annotations

import re
from typing import Annotated

import pydantic

from rackwell.site.validation import Declared, Real, Whole

Port = Annotated[Whole, pydantic.Field(ge=1, le=65535)]
Seconds = Annotated[Whole, pydantic.Field(ge=1)]
Absolute = Annotated[str, pydantic.Field(pattern=r"^/[^\n]*$")]
OneLine = Annotated[str, pydantic.Field(min_length=1, pattern=r"^[^\n\r\x00]*$")]

FROM_PROFILE = {
    "model-path": "model.path",
    "model": "model.path",
    "served-model-name": "model.served_name",
    "host": "server.host",
    "port": "server.port",
}
"""Server flags that have a place of their own in the profile."""


def _flag_name(name: str) -> str:
    if name in FROM_PROFILE:
        raise ValueError(f"is not set as a flag: set {FROM_PROFILE[name]}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        raise ValueError(f"must be the option's long name without dashes in front, as '{plain}'")
    return name


def _repository(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}", value):
        raise ValueError("must be ORG/NAME, as in the repository's address")
    return value


def _commit(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{40}", value):
        raise ValueError(
            "must be the 40 digits of a commit: a branch, a tag or a short id can come to mean other weights"
        )
    return value


Repository = Annotated[str, pydantic.AfterValidator(_repository)]
Commit = Annotated[str, pydantic.AfterValidator(_commit)]
FlagName = Annotated[str, pydantic.AfterValidator(_flag_name)]
EnvironmentName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FlagValue = bool | Whole | Real | OneLine | list[Whole | Real | OneLine]


class Model(Declared):
    """What is served."""

    path: Absolute = pydantic.Field(description="directory of the weights in the container")
    served_name: OneLine = pydantic.Field(description="the name that clients ask for")
    repository: Repository | None = pydantic.Field(
        default=None, description="repository of the Hugging Face hub that rackwell brings there, as ORG/NAME"
    )
    revision: Commit | None = pydantic.Field(default=None, description="the commit of the repository, all 40 digits")
    include: list[OneLine] = pydantic.Field(default=[], description="patterns of files to bring; all if empty")
    ignore: list[OneLine] = pydantic.Field(default=[], description="patterns of files to leave out")
    facts: OneLine | None = pydantic.Field(
        default=None,
        description="what the lint takes it for: a name of catalog/models; by the path's last part if absent",
    )

    @pydantic.model_validator(mode="after")
    def _pinned(self) -> Model:
        if self.repository and not self.revision:
            raise ValueError("names a repository without `revision`, the commit")
        if not self.repository and (self.include or self.ignore):
            raise ValueError("has patterns of files without `repository`")
        return self

    @property
    def snapshot(self) -> str:
        """Where the snapshot lies below the directory of all snapshots; empty without a repository."""
        return f"{self.repository.replace('/', '--')}/{self.revision}" if self.repository else ""


class Server(Declared):
    """Where the server listens."""

    host: OneLine = pydantic.Field(default="127.0.0.1", description="address to listen on")
    port: Port = 30000


class Limits(Declared):
    """How long things may take, in seconds, and what the process may use."""

    ready_timeout: Seconds = pydantic.Field(default=3600, description="from start to the first answer")
    stop_timeout: Seconds = pydantic.Field(default=120, description="from the stop signal to the kill")
    hang_timeout: Annotated[Whole, pydantic.Field(ge=60)] = pydantic.Field(
        default=900, description="without a sign of health until the watch ends it"
    )
    nofile: Annotated[Whole, pydantic.Field(ge=1024)] = pydantic.Field(default=1048576, description="open files")


class Sane(Declared):
    """A prompt with a known answer: what tells a server that serves from one that serves garbage."""

    prompt: Annotated[str, pydantic.Field(min_length=1)]
    expect: Annotated[str, pydantic.Field(min_length=1, description="text that must occur in the answer")]
    max_tokens: Annotated[Whole, pydantic.Field(ge=1, le=4096)] = 16


class Profile(Declared):
    """A serving profile: the model, the server's flags and environment, and its limits."""

    model: Model
    gpu: OneLine | None = pydantic.Field(
        default=None, description="the GPU it is written for: a name of catalog/gpus; rtx-pro-6000-blackwell if absent"
    )
    server: Server = Server()
    flags: dict[FlagName, FlagValue] = pydantic.Field(
        default_factory=dict,
        description="long option names without dashes in front; true is a bare flag, false is absent",
    )
    environment: dict[EnvironmentName, OneLine | Whole | Real] = pydantic.Field(default_factory=dict)
    limits: Limits = Limits()
    sane: Sane

    @property
    def tensor_parallel(self) -> int:
        """How many GPUs one copy of the model takes."""
        for name in ("tp-size", "tensor-parallel-size", "tp"):
            value = self.flags.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return 1
