# SPDX-License-Identifier: Apache-2.0
"""Hides secrets in texts that leave the house, everywhere: also where one stands without its name.

It errs on the side of hiding: a support bundle that lacks a harmless word is still of use.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

_SHORTEST = 6
_LAST_WORDS = r"(?:key|token|secret|password|passwd|passphrase|pwd|credentials?|apikey|auth)"
#: `name=value`, `name: value`, `"name": "value"`, `--name value`: names whose last word says that it is a secret
_NAMED = re.compile(
    rf"""(?ix) (?P<head> (?<![A-Za-z0-9_.-]) (?:--)? "? '? (?P<name> (?:[a-z0-9]{{1,40}}[_.-]){{0,12}}
        (?:{_LAST_WORDS} | [a-z0-9]{{0,40}}(?:password|passwd|secret|apikey)) ) "? '?
        (?: \s? [=:] \s? | \s+ (?=[^\s=:]) (?<=\s) ) )
        (?P<value> "(?:[^"\\\n]|\\.){{1,4000}}" | '(?:[^'\\\n]|\\.){{1,4000}}' | [^\s,;'"()\[\]{{}}]{{1,4000}} )"""
)
#: names that end so and are none: special tokens of a tokenizer, keys of a dictionary
_HARMLESS = re.compile(
    r"(?i)^(?:torch-key|.*(?:eos|bos|pad|sep|unk|cls|mask|image|audio|video|start|end|stop|think|tool|new|next|per|first|last|special)"
    r"[_.-]token|token|key|auth|(?:sort|cache|primary|foreign|routing|public|host|weight|layer|state|dict)[_.-]?key)$"
)
_PLAIN_VALUE = re.compile(
    r"(?i)^(?:true|false|none|null|yes|no|on|off|\*+|[\d.,]+|set|unset|empty|required|not|is|has|was)$"
)
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("hugging-face-token", re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}")),
    ("github-token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})")),
    ("gitlab-token", re.compile(r"\bgl(?:pat|rt|dt|cbt)-[A-Za-z0-9_-]{16,}")),
    ("api-key", re.compile(r"\b(?:sk|pk|rk)-(?:[a-z]+-)?[A-Za-z0-9_-]{16,}|\bnvapi-[A-Za-z0-9_-]{16,}")),
    ("aws-key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("slack-token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("google-key", re.compile(r"\bAIza[A-Za-z0-9_-]{30,}")),
    ("jwt", re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")),
    (
        "authorization",
        re.compile(r"(?i)\b(?<=bearer )[A-Za-z0-9._~+/=-]{6,}|(?<=basic )[A-Za-z0-9+/=]{8,}(?![A-Za-z0-9 ])"),
    ),
    ("cookie", re.compile(r"(?i)(?<=cookie: )[^\r\n]+")),
    ("proxmox-token", re.compile(r"(?<=PVEAPIToken=)\S+|(?<=PVEAuthCookie=)\S+")),
    ("crypted-password", re.compile(r"\$(?:1|2[abxy]?|5|6|y|argon2id?)\$[./A-Za-z0-9=,$-]{10,}")),
)
_URL = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]{1,20}://)(?P<who>[^\s/@:'\"]*:[^\s/@'\"]+|[A-Za-z0-9_-]{20,})(?=@)")
#: `sshpass -p X`, `curl -u user:X`
_OPTION = re.compile(
    r"(?P<head>\bsshpass +-p *|\b(?:curl|wget|mysql)\b[^\n|;]*? (?:-u|--user) ?[^\s:]+:)(?P<value>[^\s]+)"
)
_PEM = re.compile(r"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL)
_SSH = re.compile(r"\b(?P<kind>ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp\d+|sk-[a-z0-9@.-]+) AAAA[A-Za-z0-9+/]{20,}=*")
_HOME = re.compile(r"(?P<head>/home/|\b(?:user|login|uname)[=: ]{1,2})(?P<name>[a-z_][a-z0-9_.-]{0,31})(?![A-Za-z0-9])")
_LOGIN = re.compile(r"\b(?P<name>[a-z_][a-z0-9_-]{0,31})@(?=[A-Za-z0-9.-]+)")
_EVERYBODY = frozenset({"root", "rackwell", "nobody", "www-data", "git"})


def mask(kind: str) -> str:
    """What stands in place of a secret."""
    return f"<hidden:{kind}>"


@functools.lru_cache(maxsize=256)
def forms(value: str) -> tuple[str, ...]:
    """A secret as it is, and as texts carry it: escaped in JSON or Python, in an address, in base64."""
    plain = value.encode()
    found = {value}
    if len(value) >= _SHORTEST:
        found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        found |= {urllib.parse.quote(value, ""), urllib.parse.quote(value), urllib.parse.quote_plus(value)}
        found |= {code(plain).decode().rstrip("=") for code in (base64.b64encode, base64.urlsafe_b64encode)}
    return tuple(sorted(found, key=len, reverse=True))


@dataclasses.dataclass
class Scrubber:
    """Hides secrets in texts that belong together.

    Attributes:
        values: secrets that are known beforehand, as those of a profile.
        names: whether the names of users are hidden too. ssh_keys: whether public keys and host keys are.
        hidden: how often something was hidden, by kind.
    """

    values: set[str] = dataclasses.field(default_factory=set)
    names: bool = False
    ssh_keys: bool = True
    hidden: Counter[str] = dataclasses.field(default_factory=Counter)

    def learn(self, texts: Iterable[str]) -> None:
        """Note the secrets that stand beside their names in any of `texts`, to find them without names too."""
        for text in texts:
            for found in _NAMED.finditer(text):
                value = _secret(found)
                # a short one would be blotted out in the middle of other words
                if value is not None and len(value) >= _SHORTEST + 2:
                    self.values.add(value)

    def scrub(self, text: str) -> str:
        """`text` without secrets."""
        text = self._replace(
            "private-key", _PEM, text, lambda found: f"-----{found['kind']}: {mask('private-key')}-----"
        )
        text = self._replace("url-credentials", _URL, text, lambda found: found["head"] + mask("url-credentials"))
        for kind, pattern in _SHAPES:
            text = self._replace(kind, pattern, text, lambda _, kind=kind: mask(kind))  # type: ignore[misc]
        text = self._replace("option", _OPTION, text, lambda found: found["head"] + mask("option"))
        text = _NAMED.sub(self._named, text)
        for value in sorted({form for one in self.values for form in forms(one)}, key=len, reverse=True):
            if value in text:
                self.hidden["known-secret"] += text.count(value)
                text = text.replace(value, mask("known-secret"))
        if self.ssh_keys:
            text = self._replace("ssh-key", _SSH, text, lambda found: f"{found['kind']} {mask('ssh-key')}")
        if self.names:
            text = self._users(text)
        return text

    def scrub_data(self, value: Any, name: str = "") -> Any:
        """JSON data without secrets; `name` is the key that it stands under."""
        if isinstance(value, dict):
            return {key: self.scrub_data(each, str(key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.scrub_data(each, name) for each in value]
        if not isinstance(value, str):
            return value
        found = _NAMED.match(f'{name}="x"') if name else None
        if found is not None and value and not _HARMLESS.match(name) and not _PLAIN_VALUE.match(value):
            self.hidden["named-secret"] += 1
            return mask("named-secret")
        return self.scrub(value)

    def _users(self, text: str) -> str:
        def hide(found: re.Match[str]) -> str:
            if found["name"] in _EVERYBODY:
                return found[0]
            self.hidden["user"] += 1
            return found[0].replace(found["name"], mask("user"))

        return _LOGIN.sub(hide, _HOME.sub(hide, text))

    def _named(self, found: re.Match[str]) -> str:
        value = _secret(found)
        if value is None:
            return found[0]
        self.hidden["named-secret"] += 1
        quote = found["value"][0] if found["value"][0] in "\"'" else ""
        return f"{found['head']}{quote}{mask('named-secret')}{quote}"

    def _replace(self, kind: str, pattern: re.Pattern[str], text: str, hide: Callable[[re.Match[str]], str]) -> str:
        text, count = pattern.subn(hide, text)
        if count:
            self.hidden[kind] += count
        return text


def _secret(found: re.Match[str]) -> str | None:
    """The value, when it is a secret's."""
    name, value = found["name"], found["value"]
    if value[0] in "\"'":
        value = value[1:-1]
    # `token: abc` of a file of settings is one; `token usage: 0.01` and `key 'x' not found` are none
    bare = name.lower() in {"token", "auth", "key"}
    if name.lower().startswith("credential") and not found["head"].rstrip().endswith("="):
        return None
    assigned = found["head"].rstrip().endswith(("=", ":"))
    if (_HARMLESS.match(name) and not (name.lower() == "token" and assigned)) or _PLAIN_VALUE.match(value):
        return None
    if value.isupper() and value.replace("_", "") == name.upper().lstrip("-").replace("-", "").replace("_", ""):
        return None  # a usage text: --api-key API_KEY
    option = found["head"].lstrip("\"' ").startswith("--")
    if not assigned and not option:
        return None
    if value.startswith("<hidden:") or len(value) < (_SHORTEST if bare else 1):
        return None
    return value
