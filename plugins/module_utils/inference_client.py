# SPDX-License-Identifier: Apache-2.0
"""Asks the engine over HTTP, and judges what it answers."""

from __future__ import annotations

import http.client
import ipaddress
import json
import math
from typing import Any, NamedTuple

# /health generates a token and gives up by itself after 20 s: only a longer silence means that nothing listens any more
HEALTH_TIMEOUT = 30.0


class Reply(NamedTuple):
    """An answer; status 0 when there was none, and then the text says why."""

    status: int
    text: str


def _reachable(host: str) -> str:
    """Where to ask a server that binds to an address: one that binds to all is asked through loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return host


class Client:
    """Talks to one server.

    Args:
        host: address that the server binds to; every address is asked through loopback. key: API key, or empty.
    """

    def __init__(self, host: str, port: int, key: str = "") -> None:
        self.host = _reachable(host)
        self.port = port
        self._key = key

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout: float = HEALTH_TIMEOUT) -> Reply:
        """GET, or POST when there is a body. Never raises for what a server or a network can do."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = None
        try:
            # no proxy of the environment: it is for the world outside, and would answer in the server's place
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
            data = None if body is None else json.dumps(body)
            connection.request("GET" if data is None else "POST", path, data, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read().decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: a host's name or a key that no request can carry
            return Reply(0, str(error) or type(error).__name__)
        finally:
            if connection is not None:
                connection.close()

    def healthy(self) -> Reply:
        """Whether a token can be had."""
        return self.ask("/health_generate")

    def complete(self, prompt: str, max_tokens: int, timeout: float, temperature: float = 0.0) -> Reply:
        """A completion with its log probabilities."""
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "logprobs": 1,
            "model": "default",
        }
        return self.ask("/v1/completions", body, timeout)


def served_names(reply: Reply) -> list[str]:
    """The model names of an answer of /v1/models; empty when it is none."""
    try:
        return [str(card["id"]) for card in json.loads(reply.text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


class Verdict(NamedTuple):
    """What a known-answer prompt showed; ``problem`` is empty when it is as it should be."""

    answer: str
    problem: str


def judge(reply: Reply, expect: str) -> Verdict:
    """Whether an answer is finite, is text and holds what it must.

    Args:
        expect: text that must occur in the answer.
    """
    if reply.status != 200:
        return Verdict("", f"HTTP {reply.status}: {reply.text[:300]}" if reply.status else f"no answer: {reply.text}")
    try:
        choice = json.loads(reply.text)["choices"][0]
        answer = str(choice["text"])
        told = (choice.get("logprobs") or {}).get("token_logprobs") or []
        values = [None if value is None else float(value) for value in told]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return Verdict("", f"not a completion: {reply.text[:300]}")
    # null is how the engine's JSON writes NaN
    if any(value is None or not math.isfinite(value) for value in values):
        return Verdict(answer, "log probabilities are not finite: the numerics of this build are broken")
    bare = answer.strip()
    if not bare:
        return Verdict(answer, "the answer is empty")
    if len(bare) >= 6 and len(set(bare)) == 1:
        return Verdict(answer, f"the answer is one character repeated: {bare[:40]!r}")
    if expect not in answer:
        return Verdict(answer, f"the answer does not hold {expect!r}: {answer[:200]!r}")
    return Verdict(answer, "")
