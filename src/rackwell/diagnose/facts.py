# SPDX-License-Identifier: Apache-2.0
"""What a text says of versions, GPUs, flags and environment; what is known of them beforehand comes first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rackwell.diagnose.patterns import compiled

VERSIONED = ("sglang", "flashinfer", "vllm", "nccl", "driver", "torch", "cuda", "pve", "kernel")
_V = r"(?P<version>\d+\.\d+(?:\.\d+)*(?:\.?(?:post|rc|dev)\d+)?(?:\+[a-z0-9.]+)?)"
_SEP = r"(?: {0,8}==? ?v?|[ -]v?|: v?|-python[= ]=?|/v?|\s{1,30}v?| version:? )"

#: fact -> expressions whose group `version` is the version
_VERSIONS = {
    "sglang": [rf"(?i:\bsglang){_SEP}{_V}\b"],
    "flashinfer": [rf"(?i:\bflashinfer(?:[-_]python)?){_SEP}{_V}\b"],
    "vllm": [rf"(?i:\bvllm){_SEP}{_V}\b", rf"vLLM API server version {_V}"],
    "nccl": [rf"NCCL(?: version)? {_V}\b", rf"\bnccl==? ?{_V}", rf"nvidia-nccl-cu1[23]\s*=* ?{_V}"],
    "driver": [
        r"(?i:\bdriver(?: version)?)[: ]{1,8}(?P<version>\d{3}\.\d{2,3}(?:\.\d{2})?)\b",
        r"Kernel Module(?: for x86_64)?\s{1,4}(?P<version>\d{3}\.\d{2,3}(?:\.\d{2})?)",
    ],
    "torch": [rf"(?:\btorch|\bPyTorch){_SEP}{_V}"],
    "cuda": [r"CUDA Version: (?P<version>\d+\.\d+)", r"release (?P<version>\d+\.\d+), V\d"],
    "pve": [r"pve-manager/(?P<version>\d+\.\d+(?:\.\d+)?)"],
    "kernel": [r"(?:Linux version |Linux \S+ |^)(?P<version>\d+\.\d+\.\d+)-\d+-pve\b"],
}
_GPUS = {
    "sm120": (
        r"(?P<gpu>(?:NVIDIA )?RTX PRO \d{4}(?: Blackwell)?(?: (?:Server|Workstation|Max-Q)[ \w-]{0,24}Edition)?"
        r"|(?:NVIDIA )?(?:GeForce )?RTX 50[5-9]0(?: Ti)?)"
    ),
    "sm121": r"(?P<gpu>NVIDIA GB10\b|DGX Spark)",
    "sm100": r"\b(?P<gpu>G?B[23]00\b(?: SXM)?)",
    "sm90": r"\b(?P<gpu>(?:NVIDIA )?G?H[12]00\b(?: [A-Z0-9]{2,6})?)",
    "sm89": r"(?P<gpu>(?:NVIDIA )?(?:GeForce )?RTX 40[5-9]0(?: Ti)?|RTX [4-6]000 Ada|\bL40S?\b)",
    "sm80": r"\b(?P<gpu>(?:NVIDIA )?A100\b)",
    "sm86": r"(?P<gpu>(?:NVIDIA )?(?:GeForce )?RTX 30[5-9]0(?: Ti)?|RTX A[2-6]000\b)",
}
_ARGUMENTS = r"server_args=ServerArgs\("
_FLAG = r" --[a-z][a-z0-9-]{2,60}(?:[= ]|$)"
_FLAG_FIRST = r"^--(?:model|tp|port|host|attention|kv-cache|enable|disable|mem-fraction|quantization|speculative)"
_SET = (
    r"(?P<name>\b(?:NCCL|CUDA|SGLANG|FLASHINFER|TORCH|PYTORCH|VLLM|TRITON)_[A-Z0-9_]{2,60})"
    r"(?:=| set by environment to )(?P<value>[^\s\"']{1,200})"
)
_SHOWN = rf"^Version: {_V}"

_MOST = 400


@dataclasses.dataclass
class Facts:
    """What is known; keys of `flags` have underscores, as the server's own arguments have."""

    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    gpus: list[str] = dataclasses.field(default_factory=list)
    architectures: list[str] = dataclasses.field(default_factory=list)
    flags: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Facts:
        """From ``{sglang: ..., gpus: [...], flags: {...}, environment: {...}}``; other keys are left alone."""
        known = cls(versions={name: str(data[name]) for name in VERSIONED if data.get(name)})
        known.versions.update({str(k): str(v) for k, v in dict(data.get("versions") or {}).items() if v})
        for name in data.get("gpus") or []:
            known.gpu(str(name))
        known.flags = {str(k).replace("-", "_"): v for k, v in dict(data.get("flags") or {}).items()}
        known.environment = {str(k): str(v) for k, v in dict(data.get("environment") or {}).items()}
        return known

    def gpu(self, name: str, architecture: str = "") -> None:
        """A GPU by its name."""
        if not architecture:
            architecture = next((a for a, pattern in _GPUS.items() if compiled(pattern).search(name)), "")
        if architecture and architecture not in self.architectures:
            self.architectures.append(architecture)
        if name not in self.gpus and len(self.gpus) < 16:
            self.gpus.append(name)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``; flags are named only as far as they matter to nobody's secrets."""
        shown = {k: v for k, v in self.flags.items() if not _secret(k)}
        environment = {k: v for k, v in self.environment.items() if not _secret(k)}
        return {"versions": self.versions, "gpus": self.gpus, "flags": shown, "environment": environment}

    def over(self, read: Facts) -> Facts:
        """These, and what they do not say from `read`."""
        return Facts(
            {**read.versions, **self.versions},
            self.gpus or read.gpus,
            self.architectures or read.architectures,
            {**read.flags, **self.flags},
            {**read.environment, **self.environment},
        )


def _secret(name: str) -> bool:
    return any(word in name.lower() for word in ("key", "token", "secret", "password", "credential"))


class Reader:
    """Reads facts from the lines in which one of `PATTERNS` was found."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._asked = ""

    def read(self, pattern: str, message: str) -> None:
        """A line in which `pattern` was found."""
        if pattern == _ASKED:
            self._asked = (compiled(_ASKED).search(message) or {"name": ""})["name"].lower()
        elif pattern == _ARGUMENTS:
            self._arguments(message)
        elif pattern in (_FLAG, _FLAG_FIRST):
            self._options(message)
        elif pattern == _SHOWN:
            self._version(self._asked, pattern, message)
        elif pattern == _SET:
            for found in compiled(_SET).finditer(message):
                if len(self.facts.environment) < _MOST:
                    self.facts.environment[found["name"]] = found["value"]
        elif pattern in _KIND:
            name = _KIND[pattern]
            if name in _GPUS:
                found = compiled(pattern).search(message)
                if found and found["gpu"]:
                    self.facts.gpu(found["gpu"], name)
            else:
                self._version(name, pattern, message)

    def _version(self, name: str, pattern: str, message: str) -> None:
        found = compiled(pattern).search(message)
        if found and name in VERSIONED:
            self.facts.versions[name] = found["version"]

    def _arguments(self, message: str) -> None:
        values: dict[str, Any] = {}
        for found in compiled(
            r"(?P<name>\w{2,80})=(?P<value>'[^']{0,400}'|\"[^\"]{0,400}\"|[^,()'\"]{1,200})"
        ).finditer(message):
            if found["name"] != "server_args" and len(values) < 1000:
                values[found["name"]] = _value(found["value"])
        self.facts.flags = values

    def _options(self, message: str) -> None:
        words = message.replace("=", " ").split()[:400]
        for index, word in enumerate(words):
            if word.startswith("--") and len(word) > 3 and len(self.facts.flags) < 1000:
                following = words[index + 1] if index + 1 < len(words) else "--"
                value: Any = True if following.startswith("--") else _value(following)
                self.facts.flags.setdefault(word[2:].replace("-", "_"), value)


def _value(text: str) -> Any:
    text = text.strip().strip("'\"")
    return {"True": True, "False": False, "None": None}.get(text, text)


_ASKED = r"pip3? show (?P<name>sglang|flashinfer|torch|vllm)"
_KIND = {
    **{pattern: name for name, patterns in _VERSIONS.items() for pattern in patterns},
    **{pattern: name for name, pattern in _GPUS.items()},
}
PATTERNS = (*_KIND, _ARGUMENTS, _FLAG, _FLAG_FIRST, _SET, _SHOWN, _ASKED)
